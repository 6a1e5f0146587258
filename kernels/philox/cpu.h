/* Philox4x32-10 over batches of counters: reference.py beside this file. */
#ifndef FP4LAB_PHILOX_H
#define FP4LAB_PHILOX_H

#include "../native/common.h"

/* where the noise of a tensor comes from; `key` includes stream and mode */
typedef struct {
    int32_t bits; /* 0: none */
    uint32_t key[2], step, microbatch;
    int64_t column_offset;
} noise_t;

/* counters that are computed together; a batch is padded to a multiple */
#define LANES 32

#if defined(__AVX512F__)
typedef struct { __m512i word[4]; } counters_t;

INLINE void philox_multiply(__m512i a, __m512i constant, __m512i *high, __m512i *low)
{
    __m512i even = _mm512_mul_epu32(a, constant);
    __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), constant);
    *high = _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
    *low = _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
}

INLINE void philox_round(counters_t *c, __m512i key0, __m512i key1)
{
    __m512i high0, low0, high2, low2;
    philox_multiply(c->word[0], _mm512_set1_epi64(0xD2511F53), &high0, &low0);
    philox_multiply(c->word[2], _mm512_set1_epi64(0xCD9E8D57), &high2, &low2);
    c->word[0] = _mm512_ternarylogic_epi32(high2, c->word[1], key0, 0x96); /* exclusive or */
    c->word[2] = _mm512_ternarylogic_epi32(high0, c->word[3], key1, 0x96);
    c->word[1] = low2;
    c->word[3] = low0;
}

/* the four words of 16 counters, counter by counter */
INLINE void philox_store(const counters_t *c, uint32_t *out)
{
    __m512i a = _mm512_unpacklo_epi32(c->word[0], c->word[1]);
    __m512i b = _mm512_unpackhi_epi32(c->word[0], c->word[1]);
    __m512i d = _mm512_unpacklo_epi32(c->word[2], c->word[3]);
    __m512i e = _mm512_unpackhi_epi32(c->word[2], c->word[3]);
    __m512i u0 = _mm512_unpacklo_epi64(a, d), u1 = _mm512_unpackhi_epi64(a, d);
    __m512i u2 = _mm512_unpacklo_epi64(b, e), u3 = _mm512_unpackhi_epi64(b, e);
    /* 128-bit lane k of u_i is counter 4 k + i */
    __m512i v0 = _mm512_shuffle_i32x4(u0, u1, 0x88), v1 = _mm512_shuffle_i32x4(u0, u1, 0xDD);
    __m512i v2 = _mm512_shuffle_i32x4(u2, u3, 0x88), v3 = _mm512_shuffle_i32x4(u2, u3, 0xDD);
    _mm512_storeu_si512(out, _mm512_shuffle_i32x4(v0, v2, 0x88));
    _mm512_storeu_si512(out + 16, _mm512_shuffle_i32x4(v1, v3, 0x88));
    _mm512_storeu_si512(out + 32, _mm512_shuffle_i32x4(v0, v2, 0xDD));
    _mm512_storeu_si512(out + 48, _mm512_shuffle_i32x4(v1, v3, 0xDD));
}

static void philox(const noise_t *noise, const uint32_t *block, const uint32_t *row, int64_t count,
                   uint32_t *out)
{
    const __m512i step = _mm512_set1_epi32((int)noise->step);
    const __m512i microbatch = _mm512_set1_epi32((int)noise->microbatch);
    for (int64_t n = 0; n < count; n += LANES) {
        counters_t first = {{_mm512_loadu_si512(block + n), _mm512_loadu_si512(row + n), step,
                             microbatch}};
        counters_t second = {{_mm512_loadu_si512(block + n + 16), _mm512_loadu_si512(row + n + 16),
                              step, microbatch}};
        uint32_t key0 = noise->key[0], key1 = noise->key[1];
        for (int r = 0; r < 10; r++) {
            __m512i k0 = _mm512_set1_epi32((int)key0), k1 = _mm512_set1_epi32((int)key1);
            philox_round(&first, k0, k1);
            philox_round(&second, k0, k1);
            key0 += 0x9E3779B9u;
            key1 += 0xBB67AE85u;
        }
        philox_store(&first, out + 4 * n);
        philox_store(&second, out + 4 * n + 64);
    }
}
#else
static void philox(const noise_t *noise, const uint32_t *block, const uint32_t *row, int64_t count,
                   uint32_t *restrict out)
{
    for (int64_t n = 0; n < count; n += LANES) {
        uint32_t c0[LANES], c1[LANES], c2[LANES], c3[LANES];
        uint32_t key0 = noise->key[0], key1 = noise->key[1];
        for (int i = 0; i < LANES; i++) {
            c0[i] = block[n + i];
            c1[i] = row[n + i];
            c2[i] = noise->step;
            c3[i] = noise->microbatch;
        }
        for (int r = 0; r < 10; r++) {
            for (int i = 0; i < LANES; i++) {
                uint64_t even = (uint64_t)c0[i] * 0xD2511F53u, odd = (uint64_t)c2[i] * 0xCD9E8D57u;
                uint32_t next0 = (uint32_t)(odd >> 32) ^ c1[i] ^ key0;
                uint32_t next2 = (uint32_t)(even >> 32) ^ c3[i] ^ key1;
                c1[i] = (uint32_t)odd;
                c3[i] = (uint32_t)even;
                c0[i] = next0;
                c2[i] = next2;
            }
            key0 += 0x9E3779B9u;
            key1 += 0xBB67AE85u;
        }
        for (int i = 0; i < LANES; i++) {
            out[4 * (n + i)] = c0[i];
            out[4 * (n + i) + 1] = c1[i];
            out[4 * (n + i) + 2] = c2[i];
            out[4 * (n + i) + 3] = c3[i];
        }
    }
}
#endif

/* counters that one row of columns [first, first + count) needs */
INLINE int64_t counters_per_row(const noise_t *noise, int64_t first, int64_t count)
{
    int64_t lanes = 128 / noise->bits, begin = noise->column_offset + first;
    return (begin + count - 1) / lanes - begin / lanes + 1;
}

/* number i of a row of noise; `bits` is a constant where it is inlined */
INLINE uint32_t noise_at(const void *noise, const int bits, int64_t i)
{
    return bits == 8 ? ((const uint8_t *)noise)[i] : ((const uint32_t *)noise)[i];
}

/* The noise of a tile of rows x columns from (row, column) on: `counters_per_row` x 4 words a row,
 * of which the first `skip` numbers belong to columns before the tile. `scratch` holds two words for
 * every counter, rounded up to LANES. Counters are numbered through the tile, so that narrow rows
 * fill the lanes too. */
static int64_t draw(const noise_t *noise, const int64_t *row_ids, int64_t row, int64_t rows,
                    int64_t column, int64_t columns, uint32_t *scratch, uint32_t *out)
{
    const int64_t lanes = 128 / noise->bits, begin = noise->column_offset + column;
    const int64_t per_row = counters_per_row(noise, column, columns), count = rows * per_row;
    const int64_t padded = round_up(count, LANES);
    uint32_t *blocks = scratch, *row_numbers = scratch + padded;
    for (int64_t r = 0; r < rows; r++) {
        uint32_t number = (uint32_t)(row_ids ? row_ids[row + r] : row + r);
        for (int64_t b = 0; b < per_row; b++) {
            blocks[r * per_row + b] = (uint32_t)(begin / lanes + b);
            row_numbers[r * per_row + b] = number;
        }
    }
    for (int64_t i = count; i < padded; i++) blocks[i] = row_numbers[i] = 0;
    philox(noise, blocks, row_numbers, count, out);
    return begin % lanes;
}

#endif
