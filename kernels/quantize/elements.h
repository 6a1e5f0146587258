/* Scaling and rounding the elements of one row of a tile, to values or to codes. */
#ifndef FP4LAB_ELEMENTS_H
#define FP4LAB_ELEMENTS_H

#include "plan.h"

/* One row of a tile: its numbers (float32, or bfloat16 of the matrix itself), what each block of them
 * is multiplied by before and after rounding, the noise, and the numbers that will be read next, which
 * are fetched meanwhile. Results are values, float32 or bfloat16, or codes. */
typedef struct {
    const void *x;
    const float *multiplier, *factor;
    const void *noise;
    const char *next;
    int64_t columns, next_size;
    int32_t x_dtype, values_dtype;
    void *values;
    uint32_t *codes;
} row_t;

INLINE void fetch(const row_t *row, int64_t at, int64_t count)
{
    const int64_t size = row->next_size;
    for (int64_t i = 0; i < count * size; i += 64) __builtin_prefetch(row->next + at * size + i, 0, 2);
}

/* what is fixed where it is inlined: bits of noise, the dtypes of numbers and of results */
enum { CODES = 3 };
typedef struct { int bits, in, out; } variant_t;

/* A run of elements, finite and of a plain type, from `at` on: v + zero is v, or turns -0 into +0. `m`
 * and `f` are one number for all, or one for each. */
INLINE void run(const variant_t k, const int each, const element_t t, float zero, int64_t at,
                int64_t count, const void *restrict x, const float *restrict m,
                const float *restrict f, const void *restrict noise, void *restrict out)
{
    for (int64_t i = 0; i < count; i++) {
        const float v = number_at(x, k.in, at + i) * m[each ? i : 0] + zero;
        const uint32_t random = k.bits ? noise_at(noise, k.bits, at + i) : 0;
        if (k.out == CODES) ((uint32_t *)out)[at + i] = rounded_code(k.bits, v, t, random);
        else put_at(out, k.out, at + i, rounded(k.bits, v, t, random) * f[each ? i : 0]);
    }
}

INLINE void finite_row(const variant_t k, const int64_t side, const plan_t *p, const row_t *row)
{
    const element_t t = p->element;
    const float zero = p->keep_negative_zero ? -0.0f : 0.0f;
    const float *m = row->multiplier, *f = row->factor;
    void *out = k.out == CODES ? row->codes : row->values;
    const int64_t columns = row->columns;
    int64_t at = 0;
    /* several blocks at a time: they share a register of small numbers, and one waits for no other */
    const int is_small = k.in == BFLOAT16 || k.bits == 8, together = k.out != CODES || is_small;
    if (side == 1 || (together && (side == 16 || side == 32))) {
        for (; at + 64 <= columns; at += 64, m += 64 / side, f += 64 / side) {
            float each_m[64], each_f[64];
            for (int64_t b = 0; b < 64 / side; b++)
                for (int64_t i = 0; i < side; i++)
                    each_m[b * side + i] = m[b], each_f[b * side + i] = f[b];
            fetch(row, at, 64);
            run(k, 1, t, zero, at, 64, row->x, each_m, each_f, row->noise, out);
        }
    }
    if (side == 1) {
        run(k, 1, t, zero, at, columns - at, row->x, m, f, row->noise, out);
        return;
    }
    for (; at + side <= columns; at += side, m++, f++) {
        fetch(row, at, side);
        run(k, 0, t, zero, at, side, row->x, m, f, row->noise, out);
    }
    if (at < columns) run(k, 0, t, zero, at, columns - at, row->x, m, f, row->noise, out);
}

/* any type, rule and number; results hold one NaN */
static void any_row(const plan_t *p, int64_t side, const row_t *row)
{
    const element_t t = p->element;
    const float zero = p->keep_negative_zero ? -0.0f : 0.0f;
    const int bits = p->noise.bits;
    for (int64_t c = 0; c < row->columns; c++) {
        float v = number_at(row->x, row->x_dtype, c) * row->multiplier[c / side] + zero;
        const uint32_t random = bits ? noise_at(row->noise, bits, c) : 0;
        float q = any_rounded(bits, v, t, random);
        if (row->codes) {
            row->codes[c] = any_code_of(q, t);
        } else {
            q *= row->factor[c / side];
            put_at(row->values, row->values_dtype, c, q == q ? q : THE_NAN);
        }
    }
}

/* finite numbers of short floats, such as an operand that is only cast to bf16 */
INLINE void short_run(const variant_t k, const element_t t, float zero, int64_t at, int64_t count,
                      const float *restrict x, float m, float f, const void *restrict noise,
                      void *restrict out)
{
    for (int64_t i = at; i < at + count; i++) {
        float v = x[i] * m + zero;
        float q = k.bits ? short_stochastic(v, t, noise_at(noise, k.bits, i), k.bits) : short_nearest_even(v, t);
        q *= f;
        /* these types have an infinity, which a scale of zero makes NaN */
        put_at(out, k.out, i, q == q ? q : THE_NAN);
    }
}

INLINE void short_row(const variant_t k, const plan_t *p, int64_t side, const row_t *row)
{
    const float zero = p->keep_negative_zero ? -0.0f : 0.0f;
    for (int64_t at = 0, b = 0; at < row->columns; at += side, b++) {
        const int64_t count = min64(side, row->columns - at);
        fetch(row, at, count);
        short_run(k, p->element, zero, at, count, row->x, row->multiplier[b], row->factor[b],
                  row->noise, row->values);
    }
}

/* One row, in blocks of `side` columns. */
static void element_row(const plan_t *p, int finite, int64_t side, const row_t *row)
{
    const int bits = p->noise.bits, in = row->x_dtype, out = row->codes ? CODES : row->values_dtype;
    const int is_short = kind_of(&p->element) == SHORT && out != CODES;
#define SHORT_CASE(BITS, OUT)                                                                     \
    if (bits == BITS && out == OUT) { short_row((variant_t){BITS, FLOAT32, OUT}, p, side, row); return; }
#define CASE(BITS, IN, OUT)                                                                       \
    if (bits == BITS && in == IN && out == OUT) {                                                 \
        const variant_t k = {BITS, IN, OUT};                                                      \
        if (side == 16) finite_row(k, 16, p, row);                                                \
        else if (side == 1) finite_row(k, 1, p, row);                                             \
        else if (side == 32) finite_row(k, 32, p, row);                                           \
        else finite_row(k, side, p, row);                                                         \
        return;                                                                                   \
    }
#define OUTS(BITS, IN) CASE(BITS, IN, FLOAT32) CASE(BITS, IN, BFLOAT16) CASE(BITS, IN, CODES)
    if (!finite || !(is_short || is_plain(&p->element))) { any_row(p, side, row); return; }
    if (is_short) {
        SHORT_CASE(0, FLOAT32) SHORT_CASE(0, BFLOAT16) SHORT_CASE(8, FLOAT32)
        SHORT_CASE(8, BFLOAT16) SHORT_CASE(32, FLOAT32) SHORT_CASE(32, BFLOAT16)
    }
    OUTS(0, FLOAT32) OUTS(0, BFLOAT16) OUTS(8, FLOAT32) OUTS(8, BFLOAT16)
    OUTS(32, FLOAT32) OUTS(32, BFLOAT16)
}

#endif
