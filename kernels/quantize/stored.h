/* Codes and scales as they are stored, and the numbers they stand for. */
#ifndef FP4LAB_STORED_H
#define FP4LAB_STORED_H

#include "../minifloat/cpu.h"

typedef struct {
    int64_t rows, columns, block_rows, block_columns; /* blocks: 0 is the whole extent */
    element_t element;
    int32_t packed, per_row, dtype, threads;
    float inverse;             /* 1 / (C * M) */
    const uint8_t *codes;
    const void *scales;        /* codes of the scale type, or float32 */
    const float *scale_values; /* the number of every scale code; NULL: scales are float32 */
    const float *amax;         /* the second level, or NULL where it does not enter */
    void *y;
} stored_t;

/* the number of a code of at most 8 bits: normal ones are shifted into place */
INLINE float number_of(uint32_t code, const element_t t, const int has_special)
{
    const uint32_t drop = (uint32_t)(23 - t.mantissa_bits);
    uint32_t m = code & ((uint32_t)t.sign_code - 1u), sign = code & (uint32_t)t.sign_code ? SIGN : 0u;
    float normal = float_of((m << drop) + ((uint32_t)(t.min_exponent + 126) << 23));
    float subnormal = (float)(int32_t)m * float_of((uint32_t)(t.min_exponent - t.mantissa_bits + 127) << 23);
    float a = m >> t.mantissa_bits ? normal : subnormal;
    if (has_special) {
        a = m > (uint32_t)t.max_code ? THE_NAN : a;
        a = m == (uint32_t)t.inf_code && t.inf_code != t.nan_code ? INFINITY : a;
    }
    return float_of(bits_of(a) | sign);
}

/* `count` codes that begin with a byte */
INLINE void run_of(const element_t t, const int packed, const int has_special, const int64_t count,
                   const uint8_t *restrict codes, float f, float *restrict y)
{
    uint32_t wide[32];
    for (int64_t at = 0; at < count; at += 32) {
        const int here = (int)min64(32, count - at);
        if (packed)
            for (int i = 0; i < (here + 1) / 2; i++) {
                uint32_t two = codes[at / 2 + i];
                wide[2 * i] = two & 15;
                wide[2 * i + 1] = two >> 4;
            }
        else
            for (int i = 0; i < here; i++) wide[i] = codes[at + i];
        for (int i = 0; i < here; i++) y[at + i] = number_of(wide[i], t, has_special) * f;
    }
}

#if defined(__AVX512F__)
/* 16 packed codes: each lane takes its nibble, and the table its number */
INLINE __m512 sixteen_of(const uint8_t *codes, __m512 table)
{
    const __m512i half = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m512i shift = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    __m512i eight = _mm512_castsi128_si512(_mm_loadl_epi64((const __m128i *)codes));
    __m512i lanes = _mm512_srlv_epi32(_mm512_permutexvar_epi32(half, eight), shift);
    return _mm512_permutexvar_ps(lanes, table);
}

static void blocks_of_16(const element_t t, int64_t blocks, const uint8_t *codes,
                         const float *factor, float *y)
{
    float numbers[16];
    for (uint32_t code = 0; code < 16; code++) numbers[code] = number_of(code, t, 0);
    const __m512 table = _mm512_loadu_ps(numbers);
    for (int64_t b = 0; b < blocks; b++) {
        __builtin_prefetch(codes + b * 8 + 1024, 0, 2);
        _mm512_storeu_ps(y + b * 16, _mm512_mul_ps(sixteen_of(codes + b * 8, table), _mm512_set1_ps(factor[b])));
    }
}
#else
static void blocks_of_16(const element_t t, int64_t blocks, const uint8_t *codes,
                         const float *factor, float *y)
{
    for (int64_t b = 0; b < blocks; b++) run_of(t, 1, 0, 16, codes + b * 8, factor[b], y + b * 16);
}
#endif

static void stored_row(const stored_t *p, const uint8_t *codes, const float *factor, int64_t bc, float *y)
{
    const element_t t = p->element;
    const int has_special = t.nan_code || t.inf_code;
    int64_t b = 0;
    if (p->packed && bc == 16 && !has_special) {
        b = p->columns / 16;
        blocks_of_16(t, b, codes, factor, y);
    }
    for (int64_t at = b * bc; at < p->columns; at += bc, b++) {
        const int64_t count = min64(bc, p->columns - at);
        /* a constant here bounds `count`, so that a block is one round of run_of */
        if (!p->packed && bc == 32 && !has_special)
            run_of(t, 0, 0, count, codes + at, factor[b], y + at);
        else if (!p->packed)
            run_of(t, 0, 1, count, codes + at, factor[b], y + at);
        else if (at % 2 == 0)
            run_of(t, 1, has_special, count, codes + at / 2, factor[b], y + at);
        else
            for (int64_t i = at; i < at + count; i++)
                y[i] = number_of(codes[i / 2] >> i % 2 * 4 & 15, t, has_special) * factor[b];
    }
}

/* what multiplies the elements of each block in a row; returns whether all of it is finite */
static int row_factors(const stored_t *p, int64_t row, int64_t blocks, float *restrict factor)
{
    const int64_t at = row / side(p->block_rows, p->rows) * blocks;
    const uint8_t *codes = (const uint8_t *)p->scales + at;
    const float *scales = (const float *)p->scales + at, *values = p->scale_values;
    const float inverse = p->inverse, outer = p->amax ? p->amax[p->per_row ? row : 0] : 0.0f;
    uint32_t most = 0;
    if (values) for (int64_t b = 0; b < blocks; b++) factor[b] = values[codes[b]];
    else memcpy(factor, scales, (size_t)blocks * 4);
    if (p->amax) for (int64_t b = 0; b < blocks; b++) factor[b] = (factor[b] * outer) * inverse;
    for (int64_t b = 0; b < blocks; b++) most |= (bits_of(factor[b]) & MAGNITUDE) >= INFINITY_BITS;
    return !most;
}

#endif
