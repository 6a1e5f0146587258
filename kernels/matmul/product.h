/* What is multiplied, and activations as int8. */
#ifndef FP4LAB_PRODUCT_H
#define FP4LAB_PRODUCT_H

#include "../quantize/stored.h"

typedef struct {
    stored_t weights;      /* rows N, columns K; without amax and y */
    int64_t batch;         /* B */
    const void *x;         /* B x K, contiguous, of weights.dtype */
    const float *alpha;    /* one number, or one for each of N rows */
    int32_t alpha_per_row, int8;
    float *y;              /* B x N */
} product_t;

/* columns whose int8 activations share a scale */
#define ACTIVATION_BLOCK 16

/* int8 activations: round(x 127 / amax) to nearest, ties to even, and amax / 127, for each block */
static void activations_to_int8(const float *x, int64_t count, int8_t *codes, float *scale)
{
    for (int64_t at = 0; at < count; at += ACTIVATION_BLOCK) {
        const int64_t here = min64(ACTIVATION_BLOCK, count - at);
        uint32_t most = 0;
        for (int64_t i = 0; i < here; i++) {
            const uint32_t u = bits_of(x[at + i]) & MAGNITUDE;
            most = u > most ? u : most;
        }
        const float step = float_of(most) / 127.0f;
        const float inverse = step > 0.0f ? at_most(1.0f / step, FLOAT_MAX) : 0.0f;
        /* a NaN or an infinity makes the block NaN, by its scale */
        scale[at / ACTIVATION_BLOCK] = most < INFINITY_BITS ? step : THE_NAN;
        for (int64_t i = 0; i < here; i++) {
            /* adding 1.5 * 2^23 rounds; what is beyond 127 by the rounding of `inverse` is 127 */
            float q = most < INFINITY_BITS ? x[at + i] * inverse : 0.0f;
            q = at_most(q < -127.0f ? -127.0f : q, 127.0f) + 12582912.0f;
            codes[at + i] = (int8_t)(int32_t)(q - 12582912.0f);
        }
    }
}

#endif
