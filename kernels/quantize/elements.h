/* Scaling and rounding the elements of one row of a tile, to values or to codes. */
#ifndef FP4LAB_ELEMENTS_H
#define FP4LAB_ELEMENTS_H

#include "plan.h"

/* One row of a tile: its numbers, what each block of them is multiplied by before and after rounding,
 * the noise, and the numbers that will be read next, which are fetched meanwhile. */
typedef struct {
    const float *x, *multiplier, *factor;
    const uint32_t *noise;
    const char *next;
    int64_t columns, next_size;
} row_t;

INLINE float stochastic32(float v, const element_t t, uint32_t random)
{
    float a = at_most(magnitude(v), t.max_value);
    int32_t e = grid_exponent(a, t);
    float steps = a * float_of(((uint32_t)(254 + t.mantissa_bits) << 23) - (uint32_t)e);
    int32_t whole = (int32_t)steps;
    /* below 2^32, for the fraction has at most 24 bits; a carry moves up */
    uint32_t threshold = (uint32_t)((steps - (float)whole) * 0x1p32f);
    whole += random > ~threshold;
    return with_sign(at_most((float)whole * grid_power(e, -t.mantissa_bits), t.max_value), v);
}

INLINE float rounded(const int bits, float v, const element_t t, uint32_t random)
{
    return bits == 0 ? nearest_even(v, t) : bits == 8 ? stochastic8(v, t, random)
                                                       : stochastic32(v, t, random);
}

INLINE uint32_t rounded_code(const int bits, float v, const element_t t, uint32_t random)
{
    return bits == 0   ? nearest_even_code(v, t)
           : bits == 8 ? stochastic8_code(v, t, random)
                       : code_of(stochastic32(v, t, random), t);
}

/* A run of elements, finite and of a plain type: v + zero is v, or turns -0 into +0. `m` and `f` are
 * one number for all, or one for each. */
#define RUN(bits, to_codes, count, M, F)                                              \
    for (int64_t i = 0; i < (count); i++) {                                           \
        float v = in[i] * (M) + zero;                                                 \
        uint32_t random = bits ? noise[at + i] : 0;                                   \
        if (to_codes) codes[at + i] = rounded_code(bits, v, t, random);      \
        else values[at + i] = rounded(bits, v, t, random) * (F);                      \
    }

INLINE void finite_row(const int bits, const int to_codes, const int64_t side, const plan_t *p,
                       const row_t *row, float *restrict values, uint32_t *restrict codes)
{
    const element_t t = p->element;
    const float zero = p->keep_negative_zero ? -0.0f : 0.0f;
    const float *restrict x = row->x, *restrict m = row->multiplier, *restrict f = row->factor;
    const uint32_t *restrict noise = row->noise;
    const char *next = row->next;
    const int64_t columns = row->columns, size = row->next_size;
    int64_t at = 0, b = 0;
    if (side == 1) {
        for (; at < columns; at += 64, x += 64, m += 64, f += 64) {
            const float *restrict in = x;
            for (int64_t i = 0; i < 256 * size / 4; i += 64) __builtin_prefetch(next + at * size + i, 0, 2);
            RUN(bits, to_codes, min64(64, columns - at), m[i], f[i])
        }
        return;
    }
    for (; at + side <= columns; at += side, b++) {
        const float *restrict in = x + at;
        const float mb = m[b], fb = f[b];
        __builtin_prefetch(next + at * size, 0, 2);
        if (side == 32) __builtin_prefetch(next + (at + 16) * size, 0, 2);
        RUN(bits, to_codes, side, mb, fb)
    }
    if (at < columns) {
        const float *restrict in = x + at;
        const float mb = m[b], fb = f[b];
        RUN(bits, to_codes, columns - at, mb, fb)
    }
}

/* any type, rule and number; results hold one NaN */
static void any_row(const plan_t *p, int64_t side, const row_t *row, float *values, uint32_t *codes)
{
    const element_t t = p->element;
    const float zero = p->keep_negative_zero ? -0.0f : 0.0f;
    const int bits = p->noise.bits;
    for (int64_t c = 0; c < row->columns; c++) {
        float v = row->x[c] * row->multiplier[c / side] + zero;
        float q = bits ? round_stochastic(v, t, row->noise[c], bits)
                       : round_nearest(v, t);
        if (codes) {
            codes[c] = any_code_of(q, t);
        } else {
            q *= row->factor[c / side];
            values[c] = q == q ? q : THE_NAN;
        }
    }
}

/* finite numbers of short floats, such as an operand that is only cast to bf16 */
INLINE void short_run(const int bits, const element_t t, float zero, int64_t count,
                      const float *restrict x, float m, float f, const uint32_t *restrict noise,
                      float *restrict values)
{
    for (int64_t i = 0; i < count; i++) {
        float v = x[i] * m + zero;
        float q = (bits ? short_stochastic(v, t, noise[i], bits) : short_nearest_even(v, t)) * f;
        /* these types have an infinity, which a scale of zero makes NaN */
        values[i] = q == q ? q : THE_NAN;
    }
}

static void short_row(const plan_t *p, int64_t side, const row_t *row, float *values)
{
    const float zero = p->keep_negative_zero ? -0.0f : 0.0f;
    for (int64_t at = 0, b = 0; at < row->columns; at += side, b++) {
        const int64_t count = min64(side, row->columns - at);
        const float m = row->multiplier[b], f = row->factor[b], *x = row->x + at;
        const uint32_t *noise = row->noise ? row->noise + at : NULL;
        for (int64_t i = 0; i < count; i += 16) __builtin_prefetch(row->next + (at + i) * row->next_size, 0, 2);
        if (p->noise.bits == 0) short_run(0, p->element, zero, count, x, m, f, NULL, values + at);
        else if (p->noise.bits == 8) short_run(8, p->element, zero, count, x, m, f, noise, values + at);
        else short_run(32, p->element, zero, count, x, m, f, noise, values + at);
    }
}

#define SIDES(bits, to_codes)                                                        \
    switch (side) {                                                                  \
    case 1: finite_row(bits, to_codes, 1, p, row, values, codes); break;             \
    case 16: finite_row(bits, to_codes, 16, p, row, values, codes); break;           \
    case 32: finite_row(bits, to_codes, 32, p, row, values, codes); break;           \
    default: finite_row(bits, to_codes, side, p, row, values, codes); break;         \
    }

/* One row, in blocks of `side` columns: to `values`, or to `codes` where that is given. */
static void element_row(const plan_t *p, int finite, int64_t side, const row_t *row, float *values,
                        uint32_t *codes)
{
    const int bits = p->noise.bits;
    if (finite && kind_of(&p->element) == SHORT && !codes) short_row(p, side, row, values);
    else if (!finite || !is_plain(&p->element)) any_row(p, side, row, values, codes);
    else if (bits == 0 && !codes) SIDES(0, 0)
    else if (bits == 0) SIDES(0, 1)
    else if (bits == 8 && !codes) SIDES(8, 0)
    else if (bits == 8) SIDES(8, 1)
    else if (!codes) finite_row(32, 0, side, p, row, values, codes);
    else finite_row(32, 1, side, p, row, values, codes);
}

#endif
