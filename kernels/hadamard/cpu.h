/* Hadamard transform of a tile: reference.py beside this file. Sums run over k from left to right,
 * start at +0 and are scaled last; a difference is the same as adding the negative. */
#ifndef FP4LAB_HADAMARD_H
#define FP4LAB_HADAMARD_H

#include "../native/common.h"

/* `matrix` is diag(signs) H, row-major; a tile is rows x columns with leading dimension `ld` */
typedef struct {
    int32_t size;
    const float *matrix;
} hadamard_t;

/* numbers of one vector register */
#if defined(__AVX512F__)
#define WIDTH 16
#elif defined(__AVX2__)
#define WIDTH 8
#else
#define WIDTH 4
#endif
typedef float vector_t __attribute__((vector_size(WIDTH * 4)));
typedef uint32_t words_t __attribute__((vector_size(WIDTH * 4)));
typedef uint16_t halves_t __attribute__((vector_size(WIDTH * 2)));

INLINE vector_t load(const float *x) { vector_t v; memcpy(&v, x, sizeof v); return v; }
INLINE void store(float *x, vector_t v) { memcpy(x, &v, sizeof v); }

/* from number i on; `dtype` is a constant where it is inlined */
INLINE vector_t load_at(const void *x, const int dtype, int64_t i)
{
    if (dtype == FLOAT32) return load((const float *)x + i);
    halves_t halves;
    memcpy(&halves, (const uint16_t *)x + i, sizeof halves);
    return (vector_t)(__builtin_convertvector(halves, words_t) << 16);
}

/* as from_bfloat16(to_bfloat16(..)) of each */
INLINE vector_t in_bfloat16(vector_t v)
{
    const words_t u = (words_t)v, nan = (words_t)((u & MAGNITUDE) > INFINITY_BITS);
    const words_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) & 0xFFFF0000u;
    return (vector_t)((nan & 0x7FC00000u) | (~nan & rounded));
}

/* four groups of 16 at a time, or `groups` that are left: lanes are j */
INLINE void rows_of_16(const float *matrix, const int groups, const float *x, float *y)
{
    enum { PARTS = 16 / WIDTH };
    vector_t sum[4][PARTS];
    for (int g = 0; g < groups; g++)
        for (int p = 0; p < PARTS; p++) sum[g][p] = (vector_t){0};
#pragma GCC unroll 4
    for (int k = 0; k < 16; k++)
#pragma GCC unroll 4
        for (int p = 0; p < PARTS; p++) {
            const vector_t row = load(matrix + k * 16 + p * WIDTH);
#pragma GCC unroll 4
            for (int g = 0; g < groups; g++) sum[g][p] += row * x[g * 16 + k];
        }
    for (int g = 0; g < groups; g++)
        for (int p = 0; p < PARTS; p++) store(y + g * 16 + p * WIDTH, sum[g][p] * 0.25f);
}

/* along the columns of every row */
static void hadamard_rows(const hadamard_t h, int64_t rows, int64_t columns, const float *x,
                          int64_t ld, float *restrict y)
{
    const int n = h.size;
    const float scale = (float)(1.0 / sqrt((double)n));
    for (int64_t r = 0; r < rows; r++) {
        const float *restrict in = x + r * ld;
        float *restrict out = y + r * columns;
        int64_t c = 0;
        if (n == 16) {
            for (; c + 64 <= columns; c += 64) rows_of_16(h.matrix, 4, in + c, out + c);
            for (; c < columns; c += 16) rows_of_16(h.matrix, 1, in + c, out + c);
        }
        for (; c < columns; c += n) {
            for (int j = 0; j < n; j++) out[c + j] = 0.0f;
            for (int k = 0; k < n; k++)
                for (int j = 0; j < n; j++) out[c + j] += h.matrix[k * n + j] * in[c + k];
            for (int j = 0; j < n; j++) out[c + j] *= scale;
        }
    }
}

/* eight of the rows of a transform of 16 along the rows, from `first` on, for one vector of columns;
 * `first` is a constant where this is inlined, and so is the sign of every term */
INLINE void columns_of_16(const float *matrix, const int first, const int dtype, const void *x,
                          int64_t begin, int64_t ld, float *y, int64_t ldy)
{
    vector_t sum[8] = {{0}};
#pragma GCC unroll 16
    for (int k = 0; k < 16; k++) {
        const vector_t in = load_at(x, dtype, begin + k * ld) * matrix[k * 16];
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++)
            sum[j] = __builtin_parity((unsigned)(k & (first + j))) ? sum[j] - in : sum[j] + in;
    }
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        const vector_t out = sum[j] * 0.25f;
        store(y + (first + j) * ldy, dtype == FLOAT32 ? out : in_bfloat16(out));
    }
}

INLINE void columns_as(const int dtype, const hadamard_t h, int64_t rows, int64_t columns,
                       const void *x, int64_t ld, float *restrict y)
{
    const int n = h.size;
    const float scale = (float)(1.0 / sqrt((double)n));
    for (int64_t g = 0; g < rows; g += n) {
        int64_t begin = 0;
        if (n == 16)
            for (; begin + WIDTH <= columns; begin += WIDTH) {
                float *out = y + g * columns + begin;
                columns_of_16(h.matrix, 0, dtype, x, g * ld + begin, ld, out, columns);
                columns_of_16(h.matrix, 8, dtype, x, g * ld + begin, ld, out, columns);
            }
        if (begin == columns) continue;
        for (int j = 0; j < n; j++) {
            float *restrict out = y + (g + j) * columns;
            for (int64_t c = begin; c < columns; c++) out[c] = 0.0f;
            for (int k = 0; k < n; k++) {
                const float sign = h.matrix[k * n + j];
                for (int64_t c = begin; c < columns; c++)
                    out[c] += sign * number_at(x, dtype, (g + k) * ld + c);
            }
            for (int64_t c = begin; c < columns; c++) {
                const float sum = out[c] * scale;
                out[c] = dtype == FLOAT32 ? sum : from_bfloat16(to_bfloat16(sum));
            }
        }
    }
}

/* along the rows; what a bfloat16 tile gives is rounded to that */
static void hadamard_columns(const hadamard_t h, int64_t rows, int64_t columns, const void *x,
                             int32_t dtype, int64_t ld, float *restrict y)
{
    if (dtype == FLOAT32) columns_as(FLOAT32, h, rows, columns, x, ld, y);
    else columns_as(BFLOAT16, h, rows, columns, x, ld, y);
}

#endif
