/* Tiles: the parts of a matrix that are worked on in memory that stays in the cache. */
#ifndef FP4LAB_TILES_H
#define FP4LAB_TILES_H

#include "plan.h"

/* elements of a tile and the most in a row of it, where the blocks allow it: 32 KB of float32 */
#define TILE 8192
#define WIDE 4096
#define NARROW 256
/* tiles that are written transposed have these rows, so that stores fill cache lines, and are larger */
#define TURNED_ROWS 128
#define TURNED_TILE (4 * TILE)

typedef struct {
    float *source, *values, *work, *out;     /* the tile converted, transformed; a row; results */
    float *amax, *decode, *multiplier, *factor, *other_decode, *other_multiplier, *errors, *sums;
    uint8_t *codes;
    uint16_t *narrowed;
    uint32_t *row_codes, *drawn, *counters;
    int is_widened;                          /* whether `source` holds the tile at hand */
} scratch_t;

/* rows and columns that blocks and transforms keep together */
static int64_t lcm(int64_t a, int64_t b)
{
    int64_t x = a, y = b;
    while (y) { int64_t rest = x % y; x = y; y = rest; }
    return a / x * b;
}

/* whether its elements can be read as a bfloat16 matrix is stored */
static int reads_bfloat16(const plan_t *p) { return is_plain(&p->element) && !p->selection; }
static int spans(const plan_t *p) { return p->block_rows == 0 || p->block_columns == 0; }

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
        /* two codes share a byte along the blocks */
        if (p->packed && p->transposed) unit_rows = lcm(unit_rows, 2);
        else if (p->packed) unit_columns = lcm(unit_columns, 2);
    }
    const int64_t high = lcm(unit_rows, TURNED_ROWS);
    if (turned && high <= 8 * TURNED_ROWS) unit_rows = high;
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
    s->work = take(&at, columns * 4);
    s->amax = take(&at, blocks * 4);
    s->decode = take(&at, blocks * 4);
    s->multiplier = take(&at, blocks * 4);
    s->factor = take(&at, blocks * 4);
    s->other_decode = take(&at, blocks * 4);
    s->other_multiplier = take(&at, blocks * 4);
    s->errors = take(&at, 2 * columns * 4);
    s->sums = take(&at, lines * columns * 4);
    s->drawn = take(&at, (counters + LANES) * 16);
    s->counters = take(&at, (counters + LANES) * 8);
    return at - memory;
}

/* numbers of a tile, float32 or bfloat16: those of the matrix, or converted or transformed ones */
typedef struct { const void *data; int64_t ld; int32_t dtype; } view_t;

static view_t as_stored(const matrix_t *x, tile_t t)
{
    const int64_t at = t.row * x->stride + t.column;
    return (view_t){(const char *)x->data + at * size_of(x->dtype), x->stride, x->dtype};
}

/* the tile as float32, converted once where the matrix has 16 bits */
static view_t widened(const matrix_t *x, tile_t t, scratch_t *s)
{
    if (x->dtype == FLOAT32) return as_stored(x, t);
    for (int64_t r = 0; r < t.rows && !s->is_widened; r++)
        widen(x->data, x->dtype, (t.row + r) * x->stride + t.column, t.columns, s->source + r * t.columns);
    s->is_widened = 1;
    return (view_t){s->source, t.columns, FLOAT32};
}

/* what a plan quantizes of the tile: transformed, and rounded to the matrix's type */
static view_t values_of(const plan_t *p, const matrix_t *x, tile_t t, scratch_t *s)
{
    if (!p->hadamard.matrix)
        return x->dtype == BFLOAT16 && reads_bfloat16(p) ? as_stored(x, t) : widened(x, t, s);
    const int in_one_read = p->transposed && x->dtype == BFLOAT16;
    const view_t from = in_one_read ? as_stored(x, t) : widened(x, t, s);
    if (p->transposed)
        hadamard_columns(p->hadamard, t.rows, t.columns, from.data, from.dtype, from.ld, s->values);
    else
        hadamard_rows(p->hadamard, t.rows, t.columns, from.data, from.ld, s->values);
    if (x->dtype == BFLOAT16 && !in_one_read)
        for (int64_t i = 0; i < t.rows * t.columns; i++)
            s->values[i] = from_bfloat16(to_bfloat16(s->values[i]));
    if (x->dtype == FLOAT16)
        for (int64_t i = 0; i < t.rows * t.columns; i++)
            s->values[i] = from_float16(to_float16(s->values[i]));
    return (view_t){s->values, t.columns, FLOAT32};
}

#endif
