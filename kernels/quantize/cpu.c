/* Block quantization on a CPU: the arithmetic of scales.py and reference.py, in the same order, so
 * that every bit is equal, in at most two reads of the matrix.
 *
 * A first pass finds what no part of the matrix knows alone: the second-level amax, and the amax of
 * blocks that span the whole matrix. The second works tile by tile, in memory that stays in the
 * cache: convert and transform, largest magnitudes, scales, elements. Two plans over one matrix share
 * both reads. Tiles go to threads.
 */
#include "amax.h"
#include "elements.h"
#include "plan.h"
#include "scales.h"
#include "select.h"
#include "tiles.h"
#include "write.h"

/* 4-over-6: leaves the chosen scales in decode and multiplier */
static void choose(const plan_t *p, int64_t a, int64_t b, tile_t t, int64_t br, int64_t bc, view_t x,
                   const char *noise, int64_t noise_stride, scratch_t *s)
{
    const int64_t high = ceil_div(t.rows, br), wide = ceil_div(t.columns, bc);
    for (int64_t i = 0; i < high; i++) {
        const int64_t top = i * br, at = i * wide;
        float *decode = s->decode + at, *multiplier = s->multiplier + at;
        float *decode4 = s->other_decode + at, *multiplier4 = s->other_multiplier + at;
        const int finite = output_factors(p, a + i, b, 1, wide, decode, multiplier, s->factor) &
                           output_factors(p, a + i, b, 1, wide, decode4, multiplier4, s->factor) &
                           (most_of((const uint32_t *)s->amax + at, wide) < INFINITY_BITS);
        const blocks_t blocks = {
            .a = a + i,
            .b = b,
            .rows = min64(br, t.rows - top),
            .columns = t.columns,
            .x = {(const float *)x.data + top * x.ld, x.ld, FLOAT32},
            .noise = noise ? noise + top * noise_stride : NULL,
            .noise_stride = noise_stride,
        };
        float *error6 = s->errors, *error4 = s->errors + wide;
        block_errors(p, finite, &blocks, multiplier, decode, s->sums, error6);
        block_errors(p, finite, &blocks, multiplier4, decode4, s->sums, error4);
        for (int64_t j = 0; j < wide; j++) {
            const int four = error4[j] < error6[j];
            decode[j] = four ? decode4[j] : decode[j];
            multiplier[j] = four ? multiplier4[j] : multiplier[j];
        }
    }
}

/* the noise of a tile; its rows lie `stride` bytes apart */
static const char *noise_of(const plan_t *p, tile_t t, scratch_t *s, int64_t *stride)
{
    if (!p->noise.bits) return NULL;
    const int64_t skip = draw(&p->noise, p->row_ids, t.row, t.rows, t.column, t.columns, s->counters,
                              s->drawn);
    *stride = counters_per_row(&p->noise, t.column, t.columns) * 16;
    return (const char *)s->drawn + skip * p->noise.bits / 8;
}

static void second_pass_tile(const plan_t *p, const matrix_t *x, tile_t t, grid_t g, scratch_t *s)
{
    const int64_t br = side(p->block_rows, x->rows), bc = side(p->block_columns, x->columns);
    const int64_t a = t.row / br, b = t.column / bc;
    const int64_t high = ceil_div(t.row + t.rows, br) - a, wide = ceil_div(t.column + t.columns, bc) - b;
    const view_t values = values_of(p, x, t, s);
    if (spans(p))
        for (int64_t i = 0; i < high; i++)
            memcpy(s->amax + i * wide, g.most + (a + i) * g.width + b, (size_t)wide * 4);
    else
        tile_amax(values, t, br, bc, s->work, s->amax);
    memcpy(s->decode, s->amax, (size_t)(high * wide) * 4);
    block_scales(p, a, b, high, wide, 1.0f, s->decode, s->multiplier);

    int64_t noise_stride = 0;
    const char *noise = noise_of(p, t, s, &noise_stride);
    if (p->selection) {
        memcpy(s->other_decode, s->amax, (size_t)(high * wide) * 4);
        block_scales(p, a, b, high, wide, 1.5f, s->other_decode, s->other_multiplier);
        choose(p, a, b, t, br, bc, values, noise, noise_stride, s);
    }
    int finite = output_factors(p, a, b, high, wide, s->decode, s->multiplier, s->factor);
    finite &= most_of((const uint32_t *)s->amax, high * wide) < INFINITY_BITS;
    /* blocks that do not start with the tile span it: one number for all its columns */
    const int one = !p->block_columns || p->block_scale == UNSCALED;
    const int64_t columns_a_scale = one ? t.columns : bc;
    const int32_t values_dtype = p->dtype == BFLOAT16 ? BFLOAT16 : FLOAT32;
    const int64_t size = size_of(x->dtype), out_size = size_of(values_dtype);
    const int is_narrow = writes_in_place(p) && t.columns <= NARROW;
    for (int64_t r = 0; r < t.rows; r++) {
        const int64_t at = ((t.row + r) / br - a) * wide;
        const row_t row = {
            .x = (const char *)values.data + r * values.ld * size_of(values.dtype),
            .x_dtype = values.dtype,
            .multiplier = s->multiplier + at,
            .factor = s->factor + at,
            .noise = noise ? noise + r * noise_stride : NULL,
            .next = (const char *)x->data + ((t.row + r) * x->stride + t.column + t.ahead) * size,
            .columns = t.columns,
            .next_size = size,
            .values = writes_in_place(p)
                          ? (char *)p->values + ((t.row + r) * x->columns + t.column) * out_size
                          : (char *)s->out + r * t.columns * out_size,
            .values_dtype = values_dtype,
            .codes = p->codes ? s->row_codes : NULL,
        };
        /* of narrow tiles the hardware sees no run of lines that it could fetch ahead */
        const char *later = (const char *)row.values + 8 * x->columns * out_size;
        for (int64_t i = 0; is_narrow && i < t.columns * out_size; i += 64) __builtin_prefetch(later + i, 1);
        element_row(p, finite, columns_a_scale, &row);
        if (p->codes && !p->turned) write_code_row(p, x, t, r, s->row_codes);
        for (int64_t c = 0; p->codes && p->turned && c < t.columns; c++)
            s->codes[r * t.columns + c] = (uint8_t)s->row_codes[c];
    }
    if (p->codes && p->turned) write_turned_codes(p, x, t, s);
    else if (p->values && !writes_in_place(p)) write_values(p, x, t, s);
    if (p->decode || p->scale_codes) write_scales(p, a, b, high, wide, s->decode);
}

/* both passes over all tiles; `first` says which */
static int pass(const plan_t *plans, int count, const matrix_t *x, const grid_t *grids, int first)
{
    int64_t rows, columns;
    tile_shape(plans, count, x, first, &rows, &columns);
    const int64_t wide = ceil_div(x->columns, columns), tiles = wide * ceil_div(x->rows, rows);
    int failed = 0;
#pragma omp parallel num_threads(x->threads) if (x->threads > 1) reduction(| : failed)
    {
        const fp_state_t state = keep_denormals();
        scratch_t s;
        void *memory = malloc(lay_out(&s, 64, plans, count, rows, columns) + 64);
        failed = memory == NULL;
        lay_out(&s, ((uintptr_t)memory + 63) / 64 * 64, plans, count, rows, columns);
#pragma omp for schedule(static)
        for (int64_t n = 0; n < tiles; n++) {
            if (failed) continue;
            tile_t t = {.row = n / wide * rows, .column = n % wide * columns};
            t.rows = min64(rows, x->rows - t.row);
            t.columns = min64(columns, x->columns - t.column);
            t.ahead = t.column + columns < x->columns ? columns : rows * x->stride - t.column;
            s.is_widened = 0;
            for (int i = 0; i < count; i++) {
                if (!first) second_pass_tile(plans + i, x, t, grids[i], &s);
                else if (grids[i].most) first_pass_tile(plans + i, x, t, grids[i], &s);
            }
        }
        free(memory);
        restore(state);
    }
    return failed;
}

/* Quantizes one matrix by one or two plans. Returns 0, or 1 when memory ran out. A plan may have no
 * memory for the amax of a whole tensor, which is then not told. */
int EXPORT(quantize)(plan_t *plans, int32_t count, const matrix_t *x)
{
    const fp_state_t state = keep_denormals();
    grid_t grids[2] = {{0}};
    float unread[2];
    int failed = 0, needed = 0, wanted = 0;
    for (int i = 0; i < count; i++) {
        plan_t *p = plans + i;
        grid_t *g = grids + i;
        if (!p->amax) p->amax = unread + i;
        const int outer = p->level != LEVEL_NONE && !p->has_amax;
        wanted |= p->values || p->codes;
        expect_writes(p->values, x->rows * x->columns * size_of(p->dtype));
        expect_writes(p->codes, x->rows * x->columns / (p->packed ? 2 : 1));
        if (!spans(p) && !outer) continue;
        needed = 1;
        int by_row = p->level == LEVEL_ROW && !p->transposed, by_column = p->level == LEVEL_ROW && p->transposed;
        g->br = spans(p) ? side(p->block_rows, x->rows) : by_row ? 1 : x->rows;
        g->bc = spans(p) ? side(p->block_columns, x->columns) : by_column ? 1 : x->columns;
        g->width = ceil_div(x->columns, g->bc);
        g->most = calloc((size_t)(g->width * ceil_div(x->rows, g->br)), 4);
        failed |= g->most == NULL;
    }
    if (needed && !failed) failed = pass(plans, count, x, grids, 1);
    for (int i = 0; i < count && !failed; i++) {
        const plan_t *p = plans + i;
        const grid_t g = grids[i];
        const int64_t amaxes = p->level == LEVEL_NONE   ? 0
                               : p->level == LEVEL_TENSOR ? 1
                               : p->transposed            ? x->columns
                                                          : x->rows;
        if (amaxes && !p->has_amax) {
            memset(p->amax, 0, (size_t)amaxes * 4);
            if (g.most) outer_from_blocks(p, g, ceil_div(x->rows, g.br), (uint32_t *)p->amax);
        }
        for (int64_t j = 0; j < amaxes; j++)
            if (p->amax[j] != p->amax[j]) p->amax[j] = THE_NAN;
    }
    if (wanted && !failed) failed = pass(plans, count, x, grids, 0);
    free(grids[0].most);
    free(grids[1].most);
    restore(state);
    return failed;
}
