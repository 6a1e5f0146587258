/* What a tile gives is written as codes, values and scales, also transposed. */
#ifndef FP4LAB_WRITE_H
#define FP4LAB_WRITE_H

#include "tiles.h"

/* Writes `rows` x `columns` numbers of 1, 2 or 4 bytes transposed, in strips of columns that fill a cache
 * line: 8 bytes of a column become one number, for all columns of the strip at once, and the strip is
 * put together where the cache holds it. Columns of the result lie far apart, often at a power of two,
 * where caches hold few of them, so each is then written in one go, and those of the next strip are
 * fetched meanwhile. */
#define TURN(type, per_quad)                                                                       \
    static void turn_##type(const type *restrict in, int64_t rows, int64_t columns,                \
                            type *restrict out, int64_t ld)                                        \
    {                                                                                              \
        enum { STRIP = 64 / sizeof(type), HIGH = TURNED_ROWS, LINES = HIGH / STRIP };              \
        type strip[STRIP][HIGH];                                                                   \
        for (int64_t top = 0; top < rows; top += HIGH)                                             \
            for (int64_t left = 0; left < columns; left += STRIP) {                                \
                const int64_t high = min64(HIGH, rows - top), wide = min64(STRIP, columns - left); \
                const type *restrict from = in + top * columns + left;                             \
                int64_t r = 0;                                                                     \
                for (; wide == STRIP && r + per_quad <= high; r += per_quad) {                     \
                    uint64_t quads[STRIP];                                                         \
                    for (int c = 0; c < STRIP; c++) {                                              \
                        quads[c] = 0;                                                              \
                        for (int k = 0; k < per_quad; k++)                                         \
                            quads[c] |= (uint64_t)from[(r + k) * columns + c] << (k * 8 * sizeof(type)); \
                    }                                                                              \
                    for (int c = 0; c < STRIP; c++) memcpy(strip[c] + r, quads + c, 8);            \
                    for (int64_t n = r; n < r + per_quad; n++)                                     \
                        __builtin_prefetch(out + (left + STRIP + n / LINES) * ld + top +           \
                                               n % LINES * STRIP, 1, 2);                           \
                }                                                                                  \
                for (; r < high; r++)                                                              \
                    for (int64_t c = 0; c < wide; c++) strip[c][r] = from[r * columns + c];        \
                for (int64_t c = 0; c < wide; c++)                                                 \
                    memcpy(out + (left + c) * ld + top, strip[c], (size_t)high * sizeof(type));    \
            }                                                                                      \
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
    turn_uint8_t(codes, rows, t.columns, p->codes + t.column * width + first, width);
}

/* whether values are written where they belong; others are turned or narrowed tile by tile */
static int writes_in_place(const plan_t *p) { return p->values && !p->turned && p->dtype != FLOAT16; }

static void write_values(const plan_t *p, const matrix_t *x, tile_t t, scratch_t *s)
{
    const int64_t size = size_of(p->dtype);
    const int64_t ld = p->turned ? x->rows : x->columns;
    void *to = (char *)p->values + (p->turned ? t.column * ld + t.row : t.row * ld + t.column) * size;
    const void *from = s->out;
    if (p->dtype == FLOAT16) {
        uint16_t *narrowed = p->turned ? s->narrowed : to;
        const int64_t rows = p->turned ? t.columns : ld;
        for (int64_t r = 0; r < t.rows; r++)
            narrow(s->out + r * t.columns, FLOAT16, t.columns, narrowed + r * rows);
        from = s->narrowed;
    }
    if (p->turned && size == 4) turn_uint32_t(from, t.rows, t.columns, to, ld);
    else if (p->turned) turn_uint16_t(from, t.rows, t.columns, to, ld);
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

#endif
