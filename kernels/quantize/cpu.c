/* Block quantization on a CPU: the arithmetic of scales.py and reference.py, in the same order, so
 * that every bit is equal, in at most two reads of the matrix.
 *
 * A first pass finds what no part of the matrix knows alone: the second-level amax, and the amax of
 * blocks that span the whole matrix. The second works tile by tile, in memory that stays in the
 * cache: convert and transform, largest magnitudes, scales, elements. Two plans over one matrix share
 * both reads. Tiles go to threads.
 */
#include "elements.h"
#include "plan.h"
#include "scales.h"
#include "select.h"

/* elements of a tile and the most in a row of it, where the blocks allow it: 32 KB of float32 */
#ifndef TILE
#define TILE 8192
#endif
#define WIDE 4096
/* tiles that are written transposed have these rows, so that stores fill cache lines, and are larger */
#define TURNED_ROWS 128
#define TURNED_TILE (4 * TILE)

typedef struct {
    float *source, *values, *work, *out;     /* the tile converted, transformed; a row; results */
    float *amax, *decode, *multiplier, *factor, *other_decode, *other_multiplier, *errors, *sums;
    uint8_t *codes;
    uint16_t *narrowed;
    uint32_t *row_codes, *noise, *drawn, *counters;
    uint64_t *quads;
} scratch_t;

/* rows and columns that blocks and transforms keep together */
static int64_t lcm(int64_t a, int64_t b)
{
    int64_t x = a, y = b;
    while (y) { int64_t rest = x % y; x = y; y = rest; }
    return a / x * b;
}

static int spans(const plan_t *p) { return p->block_rows == 0 || p->block_columns == 0; }
static int64_t side(int64_t block, int64_t extent) { return block ? block : max64(extent, 1); }

static void tile_shape(const plan_t *plans, int count, const matrix_t *x, int first, int64_t *rows,
                       int64_t *columns)
{
    int64_t unit_rows = 1, unit_columns = 1, turned = 0;
    for (int i = 0; i < count; i++) {
        const plan_t *p = plans + i;
        const int64_t transform = p->hadamard.matrix ? p->hadamard.size : 1;
        unit_rows = lcm(unit_rows, max64(p->block_rows, 1));
        unit_columns = lcm(unit_columns, max64(p->block_columns, 1));
        if (p->transposed) unit_rows = lcm(unit_rows, transform);
        else unit_columns = lcm(unit_columns, transform);
        turned |= p->turned && !first;
        if (p->packed) unit_columns = lcm(unit_columns, 2);
    }
    if (turned) unit_rows = lcm(unit_rows, TURNED_ROWS);
    const int64_t cells = turned ? TURNED_TILE : TILE;
    const int64_t wanted = max64(64, min64(WIDE, cells / unit_rows));
    *columns = min64(round_up(wanted, unit_columns), round_up(x->columns, unit_columns));
    *rows = unit_rows * max64(1, cells / (unit_rows * *columns));
    *rows = min64(*rows, round_up(x->rows, unit_rows));
}

static void *take(uintptr_t *at, int64_t bytes)
{
    uintptr_t taken = *at;
    *at += (uintptr_t)round_up(bytes, 64);
    return (void *)taken;
}

/* lays out a tile's memory from `memory` on; returns its size */
static size_t lay_out(scratch_t *s, uintptr_t memory, const plan_t *plans, int count, int64_t rows,
                      int64_t columns)
{
    uintptr_t at = memory;
    int64_t cells = rows * columns, blocks = 1, counters = 0, lines = 1;
    for (int i = 0; i < count; i++) {
        const plan_t *p = plans + i;
        blocks = max64(blocks, ceil_div(rows, side(p->block_rows, rows)) *
                                   ceil_div(columns, side(p->block_columns, columns)));
        if (p->noise.bits)
            counters = max64(counters, rows * (columns * p->noise.bits / 128 + 2));
        if (p->selection) lines = max64(lines, p->block_rows + 2);
    }
    s->source = take(&at, cells * 4);
    s->values = take(&at, cells * 4);
    s->out = take(&at, cells * 4);
    s->codes = take(&at, cells);
    s->row_codes = take(&at, columns * 4);
    s->narrowed = take(&at, cells * 2);
    s->work = take(&at, 16 * columns * 4);
    s->quads = take(&at, cells * 4);
    s->amax = take(&at, blocks * 4);
    s->decode = take(&at, blocks * 4);
    s->multiplier = take(&at, blocks * 4);
    s->factor = take(&at, blocks * 4);
    s->other_decode = take(&at, blocks * 4);
    s->other_multiplier = take(&at, blocks * 4);
    s->errors = take(&at, 2 * columns * 4);
    s->sums = take(&at, lines * columns * 4);
    s->noise = take(&at, counters ? cells * 4 : 0);
    s->drawn = take(&at, (counters + LANES) * 16);
    s->counters = take(&at, (counters + LANES) * 8);
    return at - memory;
}

/* the tile as float32, converted where the matrix has 16 bits */
static const float *source_of(const matrix_t *x, tile_t t, float *buffer, int64_t *ld)
{
    if (x->dtype == FLOAT32) {
        *ld = x->stride;
        return (const float *)x->data + t.row * x->stride + t.column;
    }
    for (int64_t r = 0; r < t.rows; r++)
        widen(x->data, x->dtype, (t.row + r) * x->stride + t.column, t.columns, buffer + r * t.columns);
    *ld = t.columns;
    return buffer;
}

/* and what a plan quantizes of it: transformed, and rounded to the matrix's type */
static const float *values_of(const plan_t *p, const matrix_t *x, tile_t t, const float *source,
                              scratch_t *s, int64_t *ld)
{
    if (!p->hadamard.matrix) return source;
    if (p->transposed)
        hadamard_columns(p->hadamard, t.rows, t.columns, source, *ld, s->values);
    else
        hadamard_rows(p->hadamard, t.rows, t.columns, source, *ld, s->values);
    *ld = t.columns;
    if (x->dtype == BFLOAT16)
        for (int64_t i = 0; i < t.rows * t.columns; i++)
            s->values[i] = from_bfloat16(to_bfloat16(s->values[i]));
    if (x->dtype == FLOAT16)
        for (int64_t i = 0; i < t.rows * t.columns; i++)
            s->values[i] = from_float16(to_float16(s->values[i]));
    return s->values;
}

/* `most_of` adjacent blocks of 16, by halves of all of them at once: lanes stay full */
static void most_of_16s(const uint32_t *restrict u, int64_t blocks, uint32_t *restrict out)
{
    uint32_t eight[256], four[128], two[64];
    for (int64_t b = 0; b < blocks; b += 32) {
        const int here = (int)min64(32, blocks - b);
        const uint32_t *restrict in = u + b * 16;
#define HALVE(from, to, count, MASK)                                             \
    for (int i = 0; i < (count); i++) {                                          \
        uint32_t left = from[2 * i] & (MASK), right = from[2 * i + 1] & (MASK);  \
        to[i] = left > right ? left : right;                                     \
    }
        HALVE(in, eight, here * 8, MAGNITUDE)
        HALVE(eight, four, here * 4, ~0u)
        HALVE(four, two, here * 2, ~0u)
        uint32_t *restrict most = out + b;
        HALVE(two, most, here, ~0u)
#undef HALVE
    }
}

/* largest magnitudes of the blocks of br x bc in a tile */
static void tile_amax(const float *x, int64_t ld, tile_t t, int64_t br, int64_t bc, float *work,
                      float *amax)
{
    const int64_t blocks = ceil_div(t.columns, bc);
    uint32_t *line = (uint32_t *)work;
    for (int64_t top = 0; top < t.rows; top += br) {
        const int64_t rows = min64(br, t.rows - top);
        uint32_t *out = (uint32_t *)amax + top / br * blocks;
        const uint32_t *in = (const uint32_t *)(x + top * ld);
        if (rows > 1 || bc == 1) {
            uint32_t *restrict most = bc == 1 ? out : line;
            for (int64_t c = 0; c < t.columns; c++) most[c] = in[c] & MAGNITUDE;
            for (int64_t r = 1; r < rows; r++) {
                const uint32_t *restrict row = in + r * ld;
                for (int64_t c = 0; c < t.columns; c++) {
                    uint32_t u = row[c] & MAGNITUDE;
                    most[c] = u > most[c] ? u : most[c];
                }
            }
            in = most;
        }
        if (bc == 1) continue;
        int64_t b = bc == 16 ? t.columns / 16 : 0;
        if (bc == 16) most_of_16s(in, b, out);
        for (; (b + 1) * bc <= t.columns; b++) out[b] = most_of(in + b * bc, bc);
        if (b < blocks) out[b] = most_of(in + b * bc, t.columns - b * bc);
    }
}

/* First pass: magnitudes over a grid of br x bc blocks of the whole matrix, into `grid`. */
static void raise_to(uint32_t *grid, int64_t width, tile_t t, int64_t br, int64_t bc, const float *most)
{
    const int64_t blocks = ceil_div(t.columns, bc);
    for (int64_t i = 0; i < ceil_div(t.rows, br); i++)
        for (int64_t j = 0; j < blocks; j++) {
            uint32_t *to = grid + (t.row / br + i) * width + t.column / bc + j;
            uint32_t u = bits_of(most[i * blocks + j]);
            *to = u > *to ? u : *to;
        }
}

/* magnitude of a plain tile for one number, without a conversion */
static uint32_t narrow_amax(const matrix_t *x, tile_t t)
{
    uint16_t most = 0;
    for (int64_t r = 0; r < t.rows; r++) {
        const uint16_t *in = (const uint16_t *)x->data + (t.row + r) * x->stride + t.column;
        uint16_t of_row = 0;
        for (int64_t c = 0; c < t.columns; c++) {
            uint16_t u = in[c] & 0x7FFF;
            of_row = u > of_row ? u : of_row;
        }
        most = of_row > most ? of_row : most;
    }
    return bits_of(x->dtype == BFLOAT16 ? from_bfloat16(most) : from_float16(most));
}

typedef struct { int64_t br, bc, width; uint32_t *most; } grid_t;

static void first_pass_tile(const plan_t *p, const matrix_t *x, tile_t t, const float *source,
                            int64_t ld, grid_t g, scratch_t *s)
{
    if (!p->hadamard.matrix && x->dtype != FLOAT32 && g.br >= x->rows && g.bc >= x->columns) {
        s->amax[0] = float_of(narrow_amax(x, t));
    } else {
        const float *values = values_of(p, x, t, source, s, &ld);
        tile_amax(values, ld, t, g.br, g.bc, s->work, s->amax);
    }
#pragma omp critical(fp4lab_raise)
    raise_to(g.most, g.width, t, g.br, g.bc, s->amax);
}

/* one amax, or one for every row of the operand, from those of blocks */
static void outer_from_blocks(const plan_t *p, grid_t g, int64_t A, uint32_t *out)
{
    for (int64_t a = 0; a < A; a++)
        for (int64_t b = 0; b < g.width; b++) {
            uint32_t *o = out + (p->level == LEVEL_TENSOR ? 0 : p->transposed ? b : a);
            uint32_t u = g.most[a * g.width + b];
            *o = u > *o ? u : *o;
        }
}

/* Writes `rows` x `columns` numbers of 1, 2 or 4 bytes transposed: first 8 bytes of a column become one
 * number, for all columns at once; then each column is written in one go, for its neighbours lie far
 * apart, often at a power of two, where caches hold few of them. */
#define TURN(type, per_quad)                                                                       \
    static void turn_##type(const type *restrict in, int64_t rows, int64_t columns,                \
                            type *restrict out, int64_t ld, uint64_t *restrict quads)              \
    {                                                                                              \
        const int width = (int)sizeof(type) * 8;                                                   \
        const int64_t whole = rows / per_quad;                                                     \
        for (int64_t q = 0; q < whole; q++)                                                        \
            for (int64_t c = 0; c < columns; c++) {                                                \
                uint64_t quad = 0;                                                                 \
                for (int k = 0; k < per_quad; k++)                                                 \
                    quad |= (uint64_t)in[(q * per_quad + k) * columns + c] << (k * width);         \
                quads[q * columns + c] = quad;                                                     \
            }                                                                                      \
        for (int64_t c = 0; c < columns; c++) {                                                    \
            for (int64_t q = 0; q < whole; q++)                                                    \
                memcpy(out + c * ld + q * per_quad, quads + q * columns + c, 8);                   \
            for (int64_t r = whole * per_quad; r < rows; r++) out[c * ld + r] = in[r * columns + c]; \
        }                                                                                          \
    }
TURN(uint8_t, 8)
TURN(uint16_t, 4)
TURN(uint32_t, 2)

/* one row of codes to bytes, or two of them to a byte */
static void write_code_row(const plan_t *p, const matrix_t *x, tile_t t, int64_t r,
                           const uint32_t *restrict codes)
{
    if (!p->packed) {
        uint8_t *restrict out = p->codes + (t.row + r) * x->columns + t.column;
        for (int64_t c = 0; c < t.columns; c++) out[c] = (uint8_t)codes[c];
        return;
    }
    uint8_t *restrict out = p->codes + (t.row + r) * ceil_div(x->columns, 2) + t.column / 2;
    for (int64_t c = 0; c < t.columns / 2; c++) {
        uint64_t two;
        memcpy(&two, codes + 2 * c, 8);
        out[c] = (uint8_t)(two | two >> 28);
    }
    if (t.columns % 2) out[t.columns / 2] = (uint8_t)codes[t.columns - 1];
}

/* a tile of codes, transposed; the columns of `s->codes` become rows */
static void write_turned_codes(const plan_t *p, const matrix_t *x, tile_t t, scratch_t *s)
{
    uint8_t *restrict codes = s->codes;
    int64_t width = x->rows, first = t.row, rows = t.rows;
    if (p->packed) {
        /* two rows become one, in place */
        for (int64_t r = 0; r < t.rows / 2; r++)
            for (int64_t c = 0; c < t.columns; c++)
                codes[r * t.columns + c] = (uint8_t)(codes[2 * r * t.columns + c] |
                                                     codes[(2 * r + 1) * t.columns + c] << 4);
        if (t.rows % 2)
            memmove(codes + t.rows / 2 * t.columns, codes + (t.rows - 1) * t.columns, (size_t)t.columns);
        width = ceil_div(width, 2), first /= 2, rows = ceil_div(rows, 2);
    }
    turn_uint8_t(codes, rows, t.columns, p->codes + t.column * width + first, width, s->quads);
}

static void write_values(const plan_t *p, const matrix_t *x, tile_t t, scratch_t *s)
{
    const int64_t size = p->dtype == FLOAT32 ? 4 : 2;
    const int64_t ld = p->turned ? x->rows : x->columns;
    char *to = (char *)p->values + (p->turned ? t.column * ld + t.row : t.row * ld + t.column) * size;
    if (!p->turned) {
        /* float32 was written in place */
        for (int64_t r = 0; p->dtype != FLOAT32 && r < t.rows; r++)
            narrow(s->out + r * t.columns, p->dtype, t.columns, (uint16_t *)(to + r * ld * size));
    } else if (p->dtype == FLOAT32) {
        turn_uint32_t((const uint32_t *)s->out, t.rows, t.columns, (uint32_t *)to, ld, s->quads);
    } else {
        narrow(s->out, p->dtype, t.rows * t.columns, s->narrowed);
        turn_uint16_t(s->narrowed, t.rows, t.columns, (uint16_t *)to, ld, s->quads);
    }
}

/* 4-over-6: leaves the chosen scales in decode and multiplier */
static void choose(const plan_t *p, int64_t a, int64_t b, tile_t t, int64_t br, int64_t bc,
                   const float *x, int64_t ld, const uint32_t *noise, scratch_t *s)
{
    const int64_t high = ceil_div(t.rows, br), wide = ceil_div(t.columns, bc);
    for (int64_t i = 0; i < high; i++) {
        const int64_t top = i * br, rows = min64(br, t.rows - top), at = i * wide;
        float *decode = s->decode + at, *multiplier = s->multiplier + at;
        float *decode4 = s->other_decode + at, *multiplier4 = s->other_multiplier + at;
        const int finite = output_factors(p, a + i, b, 1, wide, decode, multiplier, s->factor) &
                           output_factors(p, a + i, b, 1, wide, decode4, multiplier4, s->factor) &
                           (most_of((const uint32_t *)s->amax + at, wide) < INFINITY_BITS);
        const uint32_t *drawn = noise ? noise + top * t.columns : NULL;
        float *error6 = s->errors, *error4 = s->errors + wide;
        block_errors(p, finite, a + i, b, rows, t.columns, x + top * ld, ld, multiplier, decode,
                     drawn, t.columns, s->sums, error6);
        block_errors(p, finite, a + i, b, rows, t.columns, x + top * ld, ld, multiplier4, decode4,
                     drawn, t.columns, s->sums, error4);
        for (int64_t j = 0; j < wide; j++) {
            const int four = error4[j] < error6[j];
            decode[j] = four ? decode4[j] : decode[j];
            multiplier[j] = four ? multiplier4[j] : multiplier[j];
        }
    }
}

static void write_scales(const plan_t *p, int64_t a, int64_t b, int64_t high, int64_t wide,
                         const float *decode)
{
    for (int64_t i = 0; i < high; i++)
        for (int64_t j = 0; j < wide; j++) {
            const float d = decode[i * wide + j];
            const int64_t to = (a + i) * p->scale_strides[0] + (b + j) * p->scale_strides[1];
            if (p->decode) p->decode[to] = d == d ? d : THE_NAN;
            if (!p->scale_codes) continue;
            if (p->scale.has_zero) {
                p->scale_codes[to] = (uint8_t)any_code_of(d == d ? d : THE_NAN, p->scale);
            } else {
                /* a power of two: its exponent bits, which are 0 for 2^-127 */
                int32_t code = (int32_t)(bits_of(d) >> 23) - 127 - p->scale.min_exponent;
                p->scale_codes[to] = (uint8_t)(d != d ? p->scale.nan_code : code > 0 ? code : 0);
            }
        }
}

/* the noise of a tile, a word for every number: bytes would halve the width of what they are added to */
static const uint32_t *noise_of(const plan_t *p, tile_t t, scratch_t *s)
{
    const int64_t stride = counters_per_row(&p->noise, t.column, t.columns) * 16;
    const int64_t skip = draw(&p->noise, p->row_ids, t.row, t.rows, t.column, t.columns, s->counters,
                              s->drawn);
    for (int64_t r = 0; r < t.rows; r++) {
        const uint8_t *restrict bytes = (const uint8_t *)s->drawn + r * stride + skip * p->noise.bits / 8;
        uint32_t *restrict out = s->noise + r * t.columns;
        if (p->noise.bits == 32) memcpy(out, bytes, (size_t)t.columns * 4);
        else for (int64_t c = 0; c < t.columns; c++) out[c] = bytes[c];
    }
    return s->noise;
}

static void second_pass_tile(const plan_t *p, const matrix_t *x, tile_t t, const float *source,
                             int64_t ld, grid_t g, scratch_t *s)
{
    const int64_t br = side(p->block_rows, x->rows), bc = side(p->block_columns, x->columns);
    const int64_t a = t.row / br, b = t.column / bc;
    const int64_t high = ceil_div(t.row + t.rows, br) - a, wide = ceil_div(t.column + t.columns, bc) - b;
    const float *values = values_of(p, x, t, source, s, &ld);
    if (spans(p))
        for (int64_t i = 0; i < high; i++)
            memcpy(s->amax + i * wide, g.most + (a + i) * g.width + b, (size_t)wide * 4);
    else
        tile_amax(values, ld, t, br, bc, s->work, s->amax);
    memcpy(s->decode, s->amax, (size_t)(high * wide) * 4);
    block_scales(p, a, b, high, wide, 1.0f, s->decode, s->multiplier);

    const uint32_t *noise = p->noise.bits ? noise_of(p, t, s) : NULL;
    if (p->selection) {
        memcpy(s->other_decode, s->amax, (size_t)(high * wide) * 4);
        block_scales(p, a, b, high, wide, 1.5f, s->other_decode, s->other_multiplier);
        choose(p, a, b, t, br, bc, values, ld, noise, s);
    }
    int finite = output_factors(p, a, b, high, wide, s->decode, s->multiplier, s->factor);
    finite &= most_of((const uint32_t *)s->amax, high * wide) < INFINITY_BITS;
    /* blocks that do not start with the tile span it: one number for all its columns */
    const int one = !p->block_columns || p->block_scale == UNSCALED;
    const int64_t columns_a_scale = one ? t.columns : bc;
    const int64_t size = x->dtype == FLOAT32 ? 4 : 2;
    const int direct = p->values && p->dtype == FLOAT32 && !p->turned;
    for (int64_t r = 0; r < t.rows; r++) {
        const int64_t at = ((t.row + r) / br - a) * wide;
        float *out = direct ? (float *)p->values + (t.row + r) * x->columns + t.column
                            : s->out + r * t.columns;
        const row_t row = {
            .x = values + r * ld,
            .multiplier = s->multiplier + at,
            .factor = s->factor + at,
            .noise = noise ? noise + r * t.columns : NULL,
            .next = (const char *)x->data + ((t.row + r) * x->stride + t.column + t.ahead) * size,
            .columns = t.columns,
            .next_size = size,
        };
        element_row(p, finite, columns_a_scale, &row, out, p->codes ? s->row_codes : NULL);
        if (p->codes && !p->turned) write_code_row(p, x, t, r, s->row_codes);
        for (int64_t c = 0; p->codes && p->turned && c < t.columns; c++)
            s->codes[r * t.columns + c] = (uint8_t)s->row_codes[c];
    }
    if (p->codes && p->turned) write_turned_codes(p, x, t, s);
    else if (p->values) write_values(p, x, t, s);
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
            int64_t ld;
            const float *source = NULL;
            for (int i = 0; i < count; i++) {
                if (first && !grids[i].most) continue;
                if (!source) source = source_of(x, t, s.source, &ld);
                if (first) first_pass_tile(plans + i, x, t, source, ld, grids[i], &s);
                else second_pass_tile(plans + i, x, t, source, ld, grids[i], &s);
            }
        }
        free(memory);
        restore(state);
    }
    return failed;
}

/* Quantizes one matrix by one or two plans. Returns 0, or 1 when memory ran out. */
int EXPORT(quantize)(const plan_t *plans, int32_t count, const matrix_t *x)
{
    const fp_state_t state = keep_denormals();
    grid_t grids[2] = {{0}};
    int failed = 0, needed = 0, wanted = 0;
    for (int i = 0; i < count; i++) {
        const plan_t *p = plans + i;
        grid_t *g = grids + i;
        const int outer = p->level != LEVEL_NONE && !p->has_amax;
        wanted |= p->values || p->codes;
        expect_writes(p->values, x->rows * x->columns * (p->dtype == FLOAT32 ? 4 : 2));
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
