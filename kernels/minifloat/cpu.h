/* One number on the grid of an element type: reference.py beside this file, for one float. */
#ifndef FP4LAB_MINIFLOAT_H
#define FP4LAB_MINIFLOAT_H

#include "../native/common.h"

enum { TIES_EVEN, TIES_AWAY, TIES_ZERO };
enum { SATURATE, SPECIAL };

typedef struct {
    int32_t mantissa_bits, min_exponent, max_exponent;
    int32_t ties, overflow, short_float, has_zero;
    int32_t max_code, sign_code, nan_code, inf_code; /* 0 for a NaN or infinity without a code */
    float max_value, beyond;               /* what a magnitude above max_value becomes */
} element_t;

/* Types and rules whose rounding has no branch: ties to even, saturating or on a float's own bits; all
 * others are ANY, by `round_nearest`. */
enum { PLAIN, SHORT, ANY };

INLINE int kind_of(const element_t *t)
{
    if (t->ties != TIES_EVEN || t->mantissa_bits == 23) return ANY;
    return t->short_float ? SHORT : t->overflow == SATURATE ? PLAIN : ANY;
}

INLINE int is_plain(const element_t *t) { return kind_of(t) == PLAIN; }

INLINE float with_sign(float q, float v) { return float_of(bits_of(q) | (bits_of(v) & SIGN)); }
INLINE float magnitude(float v) { return float_of(bits_of(v) & MAGNITUDE); }

/* exponent bits, still shifted by 23, of the binade whose spacing applies at a */
INLINE int32_t grid_exponent(float a, const element_t t)
{
    int32_t e = (int32_t)(bits_of(a) & INFINITY_BITS), low = (127 + t.min_exponent) * (1 << 23);
    return e > low ? e : low;
}

INLINE float grid_power(int32_t exponent, int32_t shift)
{
    return float_of((uint32_t)exponent + (uint32_t)shift * (1u << 23));
}

/* plain types: the nearest number */
INLINE float nearest_even(float v, const element_t t)
{
    float a = at_most(magnitude(v), t.max_value);
    float big = grid_power(grid_exponent(a, t), 23 - t.mantissa_bits);
    return with_sign((a + big) - big, v);
}

/* code of a number of the grid, which is below 2^(max_exponent + 1): steps, and the binades below */
INLINE uint32_t code_of(float q, const element_t t)
{
    float a = magnitude(q);
    int32_t e = grid_exponent(a, t), low = (127 + t.min_exponent) * (1 << 23);
    uint32_t steps = bits_of(a + grid_power(e, 23 - t.mantissa_bits)) & ((4u << t.mantissa_bits) - 1);
    uint32_t code = steps + ((uint32_t)(e - low) >> (23 - t.mantissa_bits));
    return code | (bits_of(q) >> 31) * (uint32_t)t.sign_code;
}

/* the same, NaN and infinity included */
INLINE uint32_t any_code_of(float q, const element_t t)
{
    if (q != q) return (uint32_t)t.nan_code;
    if (magnitude(q) > FLOAT_MAX)
        return (uint32_t)t.inf_code | (bits_of(q) >> 31) * (uint32_t)t.sign_code;
    return code_of(q, t);
}

/* plain types: the code of the nearest number, for the sum that finds a code rounds */
INLINE uint32_t nearest_even_code(float v, const element_t t)
{
    return code_of(with_sign(at_most(magnitude(v), t.max_value), v), t);
}

/* short floats, ties to even: the leading bits; the carry of a magnitude never reaches the sign */
INLINE float short_nearest_even(float v, const element_t t)
{
    const int drop = 23 - t.mantissa_bits;
    uint32_t u = bits_of(v) & MAGNITUDE;
    float q = float_of(((u + ((1u << (drop - 1)) - 1) + ((u >> drop) & 1u)) >> drop) << drop);
    q = t.overflow == SATURATE && q > t.max_value ? t.max_value : q;
    return u > INFINITY_BITS ? v : with_sign(q, v);
}

/* every rule of round_nearest */
static float round_nearest(float v, const element_t t)
{
    if (v != v || t.mantissa_bits == 23) return v;
    float a = magnitude(v), q;
    if (t.short_float) {
        if (t.ties == TIES_EVEN) return short_nearest_even(v, t);
        int drop = 23 - t.mantissa_bits;
        uint32_t below_half = (1u << (drop - 1)) - 1;
        q = float_of(((bits_of(a) + below_half + (t.ties == TIES_AWAY)) >> drop) << drop);
        if (t.overflow == SATURATE && q > t.max_value) q = t.max_value;
        return with_sign(q, v);
    }
    float limit = at_most(ldexpf(1.0f, t.max_exponent) * 2.0f, FLOAT_MAX);
    a = at_most(a, t.overflow == SATURATE ? t.max_value : limit);
    int32_t e = grid_exponent(a, t);
    if (t.ties == TIES_EVEN) {
        float big = grid_power(e, 23 - t.mantissa_bits);
        q = (a + big) - big;
    } else {
        float spacing = grid_power(e, -t.mantissa_bits), steps = a / spacing, whole = floorf(steps);
        float rest = steps - whole;
        q = (whole + (t.ties == TIES_AWAY ? rest >= 0.5f : rest > 0.5f)) * spacing;
    }
    if (t.overflow == SPECIAL && q > t.max_value) q = t.beyond;
    return with_sign(q, v);
}

/* one over the spacing of the binade whose exponent bits are `e`: a power of two */
INLINE float inverse_spacing(int32_t e, const element_t t)
{
    return float_of(((uint32_t)(254 + t.mantissa_bits) << 23) - (uint32_t)e);
}

/* plain types: to one of the neighbours, as `random` of 8 bits says */
INLINE float stochastic8(float v, const element_t t, uint32_t random)
{
    float a = at_most(magnitude(v), t.max_value);
    int32_t e = grid_exponent(a, t);
    /* in 256ths of the spacing: by powers of two, so the product is exact */
    int32_t parts = (int32_t)(a * inverse_spacing(e, t) * 256.0f) + (int32_t)random;
    float q = at_most((float)(parts >> 8) * grid_power(e, -t.mantissa_bits), t.max_value);
    return with_sign(q, v);
}

INLINE uint32_t stochastic8_code(float v, const element_t t, uint32_t random)
{
    float a = at_most(magnitude(v), t.max_value);
    int32_t e = grid_exponent(a, t), low = (127 + t.min_exponent) * (1 << 23);
    int32_t parts = (int32_t)(a * inverse_spacing(e, t) * 256.0f) + (int32_t)random;
    int32_t code = (parts >> 8) + ((e - low) >> (23 - t.mantissa_bits));
    code = code > t.max_code ? t.max_code : code;
    return (uint32_t)code | (bits_of(v) >> 31) * (uint32_t)t.sign_code;
}

/* the same with 32 bits */
INLINE float stochastic32(float v, const element_t t, uint32_t random)
{
    float a = at_most(magnitude(v), t.max_value);
    int32_t e = grid_exponent(a, t);
    float steps = a * inverse_spacing(e, t);
    int32_t whole = (int32_t)steps;
    /* below 2^32, for the fraction has at most 24 bits; a carry moves up */
    uint32_t threshold = (uint32_t)((steps - (float)whole) * 0x1p32f);
    whole += random > ~threshold;
    return with_sign(at_most((float)whole * grid_power(e, -t.mantissa_bits), t.max_value), v);
}

/* plain types: the nearest number, or a neighbour by `bits` of noise, which is a constant where this
 * is inlined; and its code */
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

/* short floats: the dropped bits and the noise, both as 32 bits, add up to a carry */
INLINE float short_stochastic(float v, const element_t t, uint32_t random, int bits)
{
    const int drop = 23 - t.mantissa_bits;
    uint32_t u = bits_of(v) & MAGNITUDE, dropped = u << (32 - drop), noise = random << (32 - bits);
    float q = float_of(((u >> drop) + (noise > ~dropped)) << drop);
    q = t.overflow == SATURATE && q > t.max_value ? t.max_value : q;
    return u > INFINITY_BITS ? v : with_sign(q, v);
}

/* every rule of round_stochastic, with 8 or 32 bits */
static float round_stochastic(float v, const element_t t, uint32_t random, int bits)
{
    if (v != v) return v;
    float a = magnitude(v), q;
    if (t.short_float) return short_stochastic(v, t, random, bits);
    float limit = at_most(ldexpf(1.0f, t.max_exponent) * 2.0f, FLOAT_MAX);
    a = at_most(a, t.overflow == SATURATE ? t.max_value : limit);
    float spacing = grid_power(grid_exponent(a, t), -t.mantissa_bits), steps = a / spacing;
    if (bits == 8) {
        q = floorf((floorf(steps * 256.0f) + (float)random) * 0x1p-8f) * spacing;
    } else {
        float whole = floorf(steps);
        uint64_t threshold = (uint64_t)((steps - whole) * 0x1p32f);
        q = (whole + (((uint64_t)random + threshold) >> 32)) * spacing;
    }
    if (q > t.max_value) q = t.overflow == SPECIAL ? t.beyond : t.max_value;
    return with_sign(q, v);
}

/* any type and rule, with as many bits of noise */
INLINE float any_rounded(const int bits, float v, const element_t t, uint32_t random)
{
    return bits ? round_stochastic(v, t, random, bits) : round_nearest(v, t);
}

#endif
