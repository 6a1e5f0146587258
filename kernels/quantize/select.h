/* 4-over-6: per block the better of two scales, by the error that the format names (reference.py). */
#ifndef FP4LAB_SELECT_H
#define FP4LAB_SELECT_H

#include "elements.h"
#include "scales.h"
#include "tiles.h"

/* errors of numbers of one block in one row, under given scales */
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

/* One row of blocks, the first of which is (a, b): its numbers, float32, of which rows x columns are
 * there, and their noise, or NULL. */
typedef struct {
    int64_t a, b, rows, columns;
    view_t x;
    const char *noise;
    int64_t noise_stride; /* bytes from one row to the next */
} blocks_t;

/* errors of the numbers in row r; `m` and `decode` are of the blocks */
static void error_row(const plan_t *p, int finite, const blocks_t *k, int64_t r, const float *m,
                      const float *decode, float *error)
{
    const int plain = finite && is_plain(&p->element) && p->noise.bits != 32;
    const int squared = p->selection == SELECT_MSE, bits = p->noise.bits;
    const int64_t bc = p->block_columns;
    const float *x = (const float *)k->x.data + r * k->x.ld;
    const char *noise = k->noise ? k->noise + r * k->noise_stride : NULL;
    for (int64_t c = 0, b = k->b; c < k->columns; c += bc, b++, m++, decode++) {
        const int64_t count = min64(bc, k->columns - c);
        const float outer = amax_of(p, k->a, b);
#define ERRORS(PLAIN, BITS, SQUARED, COUNT)                                                          \
    error_run(p, PLAIN, BITS, SQUARED, COUNT, x + c, *m, *decode, outer, noise, c, error + c)
        if (plain && bits == 0 && squared && count == 16) ERRORS(1, 0, 1, 16);
        else if (plain && bits == 0 && count == 16) ERRORS(1, 0, 0, 16);
        else if (plain && bits == 8 && squared && count == 16) ERRORS(1, 8, 1, 16);
        else if (plain && bits == 8 && count == 16) ERRORS(1, 8, 0, 16);
        else ERRORS(0, bits, squared, count);
    }
}

/* errors of the zeros that fill incomplete blocks of a row, from column `from` on */
static void pad_row(const plan_t *p, const blocks_t *k, int64_t from, const float *m,
                    const float *decode, float *error)
{
    const int64_t bc = p->block_columns, width = round_up(k->columns, bc);
    for (int64_t c = from; c < width; c++) {
        const int64_t j = c / bc;
        const float x = 0.0f;
        const uint32_t none = 0;
        error_run(p, 0, p->noise.bits, p->selection == SELECT_MSE, 1, &x, m[j], decode[j],
                  amax_of(p, k->a, k->b + j), &none, 0, error + c);
    }
}

/* adds `lines` numbers, one every `stride`, in halves; overwrites them */
INLINE float in_halves(float *sums, int64_t lines, int64_t stride)
{
    for (int64_t half = lines / 2; half >= 1; half /= 2)
        for (int64_t i = 0; i < half; i++) sums[i * stride] += sums[(i + half) * stride];
    return sums[0];
}

/* Errors of the blocks in a row of blocks, summed along the operand's rows from left to right, and then
 * over these in halves. `work` holds the errors of one row, filled up to whole blocks, and the sums: one
 * for every block in every row, or, where the operand is the transpose, one for every column. */
static void block_errors(const plan_t *p, int finite, const blocks_t *k, const float *m,
                         const float *decode, float *work, float *errors)
{
    const int64_t br = p->block_rows, bc = p->block_columns, blocks = ceil_div(k->columns, bc);
    const int64_t width = blocks * bc;
    float *error = work, *sums = work + width;
    for (int64_t c = 0; p->transposed && c < width; c++) sums[c] = 0.0f;
    for (int64_t r = 0; r < br; r++) {
        if (r < k->rows) error_row(p, finite, k, r, m, decode, error);
        pad_row(p, k, r < k->rows ? k->columns : 0, m, decode, error);
        if (p->transposed) {
            for (int64_t c = 0; c < width; c++) sums[c] += error[c];
            continue;
        }
        for (int64_t j = 0; j < blocks; j++) {
            float sum = 0.0f;
            for (int64_t i = 0; i < bc; i++) sum += error[j * bc + i];
            sums[r * blocks + j] = sum;
        }
    }
    for (int64_t j = 0; j < blocks; j++)
        errors[j] = p->transposed ? in_halves(sums + j * bc, bc, 1) : in_halves(sums + j, br, blocks);
}

#endif
