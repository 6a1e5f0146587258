/* 4-over-6: per block the better of two scales, by the error that the format names (reference.py). */
#ifndef FP4LAB_SELECT_H
#define FP4LAB_SELECT_H

#include "elements.h"
#include "scales.h"

/* One row's errors under given scales; `side` columns share one. Padded columns follow with x = 0. */
INLINE void error_run(const plan_t *p, const int plain, const int bits, const int squared, int64_t count,
                      const float *restrict x, float m, float decode, float outer, const void *noise,
                      int64_t at, float *restrict error)
{
    const element_t t = p->element;
    const float zero = p->keep_negative_zero ? -0.0f : 0.0f, factor = (float)p->amax_factor;
    for (int64_t i = 0; i < count; i++) {
        float v = x[i] * m + zero;
        uint32_t random = bits ? noise_at(noise, bits, at + i) : 0;
        float q = plain ? rounded(bits, v, t, random) : any_rounded(bits, v, t, random);
        float difference = ((q * decode) * outer) / factor - x[i];
        error[i] = squared ? difference * difference : magnitude(difference);
    }
}

static void error_row(const plan_t *p, int finite, int64_t side, int64_t a, int64_t b, int64_t columns,
                      const float *x, const float *m, const float *decode, const void *noise,
                      float *error)
{
    const int plain = finite && is_plain(&p->element) && p->noise.bits != 32;
    const int squared = p->selection == SELECT_MSE, bits = p->noise.bits;
    for (int64_t c = 0; c < columns; c += side, b++, m++, decode++) {
        const int64_t count = min64(side, columns - c);
        const float outer = amax_of(p, a, b);
#define ERRORS(PLAIN, BITS, SQUARED, COUNT)                                                          \
    error_run(p, PLAIN, BITS, SQUARED, COUNT, x + c, *m, *decode, outer, noise, c, error + c)
        if (plain && bits == 0 && squared && count == 16) ERRORS(1, 0, 1, 16);
        else if (plain && bits == 0 && count == 16) ERRORS(1, 0, 0, 16);
        else if (plain && bits == 8 && squared && count == 16) ERRORS(1, 8, 1, 16);
        else if (plain && bits == 8 && count == 16) ERRORS(1, 8, 0, 16);
        else ERRORS(0, bits, squared, count);
    }
}

/* the error of a zero that fills an incomplete block */
static float padding_error(const plan_t *p, float m, float decode, float outer)
{
    float x = 0.0f, error;
    uint32_t none = 0;
    error_run(p, 0, p->noise.bits, p->selection == SELECT_MSE, 1, &x, m, decode, outer, &none, 0, &error);
    return error;
}

/* Sums an operand block's errors, `lines` of `length` numbers: each from left to right, then the
 * lines in halves. `sums` holds them, one every `stride`. */
INLINE float in_halves(float *sums, int64_t lines, int64_t stride)
{
    for (int64_t half = lines / 2; half >= 1; half /= 2)
        for (int64_t i = 0; i < half; i++) sums[i * stride] += sums[(i + half) * stride];
    return sums[0];
}

/* Errors of the blocks in one row of blocks, of which `rows` rows are there; `work` holds
 * `columns` errors and block_rows x (blocks x block_columns) sums. */
static void block_errors(const plan_t *p, int finite, int64_t a, int64_t b, int64_t rows,
                         int64_t columns, const float *x, int64_t ld, const float *m,
                         const float *decode, const char *noise, int64_t noise_stride, float *work,
                         float *errors)
{
    const int64_t br = p->block_rows, bc = p->block_columns, blocks = ceil_div(columns, bc);
    float *error = work, *sums = work + round_up(columns, bc);
    const int64_t width = blocks * bc;
    if (!p->transposed) {
        /* a line is a row of the block, its length the columns */
        for (int64_t r = 0; r < br; r++) {
            if (r < rows)
                error_row(p, finite, bc, a, b, columns, x + r * ld, m, decode,
                          noise ? noise + r * noise_stride : NULL, error);
            for (int64_t j = 0; j < blocks; j++) {
                const int64_t there = r < rows ? min64(bc, columns - j * bc) : 0;
                float sum = 0.0f;
                for (int64_t i = 0; i < there; i++) sum += error[j * bc + i];
                if (there < bc) {
                    float pad = padding_error(p, m[j], decode[j], amax_of(p, a, b + j));
                    for (int64_t i = there; i < bc; i++) sum += pad;
                }
                sums[r * blocks + j] = sum;
            }
        }
        for (int64_t j = 0; j < blocks; j++) errors[j] = in_halves(sums + j, br, blocks);
        return;
    }
    for (int64_t c = 0; c < width; c++) sums[c] = 0.0f;
    for (int64_t r = 0; r < br; r++) {
        if (r < rows)
            error_row(p, finite, bc, a, b, columns, x + r * ld, m, decode,
                      noise ? noise + r * noise_stride : NULL, error);
        for (int64_t j = 0; j < blocks; j++) {
            const int64_t there = r < rows ? min64(bc, columns - j * bc) : 0;
            for (int64_t i = 0; i < there; i++) sums[j * bc + i] += error[j * bc + i];
            if (there < bc) {
                float pad = padding_error(p, m[j], decode[j], amax_of(p, a, b + j));
                for (int64_t i = there; i < bc; i++) sums[j * bc + i] += pad;
            }
        }
    }
    for (int64_t j = 0; j < blocks; j++) errors[j] = in_halves(sums + j * bc, bc, 1);
}

#endif
