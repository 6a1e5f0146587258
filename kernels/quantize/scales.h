/* Block scales from the largest magnitudes of blocks: scales.py beside this file, in its order. */
#ifndef FP4LAB_SCALES_H
#define FP4LAB_SCALES_H

#include "../minifloat/cpu.h"
#include "plan.h"

/* 2^e for e from -127, which is subnormal, to 127 */
INLINE float exp2_of(int32_t e) { return float_of(e == -127 ? 1u << 22 : (uint32_t)(e + 127) << 23); }

static void powers_of_two(const plan_t *p, int64_t count, float *restrict decode,
                          float *restrict multiplier)
{
    const int divided = p->scale_rule == RULE_ROUND_UP || p->scale_rule == RULE_NEAREST;
    const float largest = p->element.max_value;
    /* the mantissa from which on the next power is taken; beyond 24 bits: never */
    const uint32_t from = p->scale_rule == RULE_FLOOR     ? 1u << 24
                          : p->scale_rule == RULE_EVEN    ? (bits_of(p->even_limit) & 0x7FFFFFu)
                          : p->scale_rule == RULE_NEAREST ? 1u << 22
                                                          : 1u;
    const int32_t shift = divided ? 0 : p->element.max_exponent;
    const int32_t low = p->scale.min_exponent, high = p->scale.max_exponent;
    for (int64_t i = 0; i < count; i++) {
        const float a = decode[i], ideal = divided ? a / largest : a;
        /* a subnormal one has its exponent when it is made normal */
        const int small = bits_of(ideal) < 1u << 23;
        const uint32_t u = bits_of(small ? ideal * 0x1p32f : ideal);
        int32_t e = (int32_t)(u >> 23) - (small ? 159 : 127) - shift + ((u & 0x7FFFFFu) >= from);
        e = e < low || ideal == 0.0f ? low : e;
        e = e > high ? high : e;
        const int special = bits_of(a) >= INFINITY_BITS;
        decode[i] = special ? THE_NAN : exp2_of(e);
        multiplier[i] = special ? THE_NAN : exp2_of(-e);
    }
}

INLINE float encode_first(const plan_t *p, float a, float *multiplier)
{
    float m = at_most(p->element.max_value / a, FLOAT_MAX);
    if (p->scale_rule == RULE_ROUND_UP && m == m) m = float_of(bits_of(m) & INFINITY_BITS);
    if (p->zero_scale != 0.0f && a == 0.0f) m = 1.0f / p->zero_scale;
    *multiplier = m;
    return 1.0f / m;
}

/* What two-level scales need to know, by value: fields behind a pointer could alias what is written. */
typedef struct {
    element_t scale, precision;
    float folded, encode, inverse, target, floor, zero, stretch;
    int is_folded;
} level_t;

INLINE level_t second_level(const plan_t *p, float amax, float stretch)
{
    float encode = 1.0f;
    if (p->level != LEVEL_NONE) {
        encode = at_most((float)p->amax_factor / amax, FLOAT_MAX);
        if (encode == 0.0f) encode = 1.0f;
    }
    const float inverse = at_most(1.0f / encode, FLOAT_MAX);
    return (level_t){p->scale, p->precision, encode * (float)(1.0 / p->target), encode, inverse,
                     (float)p->target, p->scale_floor, p->zero_scale, stretch,
                     p->block_scale == FOLDED};
}

INLINE float two_level(const level_t l, const int plain, const int folded, float a, float *multiplier)
{
    float ideal;
    if (folded) {
        ideal = at_most(a * l.folded, FLOAT_MAX);
    } else {
        float ratio = a / l.target;
        ideal = (plain ? ratio : round_nearest(ratio, l.precision)) * l.encode;
    }
    /* a factor of 1 changes nothing */
    ideal *= l.stretch;
    float s = plain ? nearest_even(ideal, l.scale) : round_nearest(ideal, l.scale);
    s = s < l.floor ? l.floor : s;
    s = a == 0.0f && l.zero != 0.0f ? l.zero : s;
    *multiplier = at_most(1.0f / (s * l.inverse), FLOAT_MAX);
    return s;
}

static void two_level_run(const level_t l, const int plain, int64_t count, float *restrict decode,
                          float *restrict multiplier)
{
    if (plain && l.is_folded)
        for (int64_t j = 0; j < count; j++)
            decode[j] = two_level(l, 1, 1, decode[j], multiplier + j);
    else if (plain)
        for (int64_t j = 0; j < count; j++)
            decode[j] = two_level(l, 1, 0, decode[j], multiplier + j);
    else
        for (int64_t j = 0; j < count; j++)
            decode[j] = two_level(l, 0, l.is_folded, decode[j], multiplier + j);
}

/* second-level amax of block (a, b) of the stored grid */
INLINE float amax_of(const plan_t *p, int64_t a, int64_t b)
{
    if (p->level == LEVEL_NONE) return 1.0f;
    return p->amax[p->level == LEVEL_TENSOR ? 0 : p->transposed ? b : a];
}

/* Scales of a tile of rows x columns blocks whose first is (a, b); `decode` comes in as the largest
 * magnitudes and goes out as the stored scales. */
static void block_scales(const plan_t *p, int64_t a, int64_t b, int64_t rows, int64_t columns,
                         float stretch, float *restrict decode, float *restrict multiplier)
{
    const int64_t count = rows * columns;
    if (p->block_scale == POWER_OF_TWO) {
        powers_of_two(p, count, decode, multiplier);
    } else if (p->block_scale == UNSCALED) {
        for (int64_t i = 0; i < count; i++) decode[i] = multiplier[i] = 1.0f;
    } else if (p->block_scale == ENCODE) {
        for (int64_t i = 0; i < count; i++) decode[i] = encode_first(p, decode[i], multiplier + i);
    } else {
        const int plain = is_plain(&p->scale) && p->precision.mantissa_bits == 23;
        if (p->level != LEVEL_ROW) {
            two_level_run(second_level(p, amax_of(p, a, b), stretch), plain, count, decode, multiplier);
            return;
        }
        for (int64_t i = 0; i < rows; i++) {
            float *d = decode + i * columns, *m = multiplier + i * columns;
            if (!p->transposed)
                two_level_run(second_level(p, amax_of(p, a + i, b), stretch), plain, columns, d, m);
            else
                for (int64_t j = 0; j < columns; j++)
                    two_level_run(second_level(p, amax_of(p, a, b + j), stretch), plain, 1, d + j, m + j);
        }
    }
}

/* largest magnitude, as bits; NaN is larger than all */
INLINE uint32_t most_of(const uint32_t *u, int64_t count)
{
    uint32_t most = 0;
    for (int64_t i = 0; i < count; i++) most = (u[i] & MAGNITUDE) > most ? u[i] & MAGNITUDE : most;
    return most;
}

/* what multiplies an element's value, and whether every number under these scales is finite */
static int output_factors(const plan_t *p, int64_t a, int64_t b, int64_t rows, int64_t columns,
                          const float *restrict decode, const float *restrict multiplier,
                          float *restrict factor)
{
    const int64_t count = rows * columns;
    const float inverse = (float)(1.0 / p->amax_factor);
    if (p->result == ELEMENTS) {
        for (int64_t i = 0; i < count; i++) factor[i] = 1.0f;
    } else if (p->result == OPERAND || p->level == LEVEL_NONE) {
        memcpy(factor, decode, (size_t)count * 4);
    } else if (p->level == LEVEL_TENSOR) {
        const float amax = p->amax[0];
        for (int64_t i = 0; i < count; i++) factor[i] = (decode[i] * amax) * inverse;
    } else {
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < columns; j++)
                factor[i * columns + j] = (decode[i * columns + j] * amax_of(p, a + i, b + j)) * inverse;
    }
    return most_of((const uint32_t *)factor, count) < INFINITY_BITS &&
           most_of((const uint32_t *)multiplier, count) < INFINITY_BITS;
}

#endif
