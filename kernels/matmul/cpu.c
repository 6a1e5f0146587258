/* Products of a few rows of activations with weights that stay packed in memory.
 *
 *     y_BN = (x_BK @ w_NK^T) alpha_N,   w = element x block scale
 *
 * Reading the weights is most of the work. Where the processor allows it E2M1 codes are looked up in
 * registers (lookup.h); elsewhere rows are decoded to float32 first. With int8 activations each block
 * of x has a scale of its own.
 */
#include "lookup.h"
#include "product.h"

/* sum of products in 16 lanes, which are added in halves */
static float dot(const float *restrict a, const float *restrict b, int64_t count)
{
    float lane[16] = {0};
    int64_t i = 0;
    for (; i + 16 <= count; i += 16)
        for (int l = 0; l < 16; l++) lane[l] += a[i + l] * b[i + l];
    for (int l = 0; i + l < count; l++) lane[l] += a[i + l] * b[i + l];
    for (int half = 8; half; half /= 2)
        for (int l = 0; l < half; l++) lane[l] += lane[l + half];
    return lane[0];
}

/* rows decoded to float32, one after the other */
static int decoded_product(const product_t *q)
{
    const stored_t *p = &q->weights;
    const int64_t K = p->columns, N = p->rows, width = p->packed ? ceil_div(K, 2) : K;
    const int64_t bc = side(p->block_columns, K), blocks = ceil_div(K, bc);
    float *x = malloc((size_t)max64(q->batch * K, 1) * 4);
    int failed = x == NULL;
    if (!failed) {
        for (int64_t b = 0; b < q->batch; b++) {
            float *row = x + b * K;
            widen(q->x, p->dtype, b * K, K, row);
            if (!q->int8) continue;
            for (int64_t at = 0; at < K; at += ACTIVATION_BLOCK) {
                int8_t codes[ACTIVATION_BLOCK];
                float scale;
                const int64_t here = min64(ACTIVATION_BLOCK, K - at);
                activations_to_int8(row + at, here, codes, &scale);
                for (int64_t i = 0; i < here; i++) row[at + i] = (float)codes[i] * scale;
            }
        }
#pragma omp parallel num_threads(p->threads) if (p->threads > 1) reduction(| : failed)
        {
            const fp_state_t state = keep_denormals();
            float *factor = malloc((size_t)(blocks + K) * 4), *row = factor + blocks;
            failed = factor == NULL;
#pragma omp for schedule(static)
            for (int64_t n = 0; n < N; n++) {
                if (failed) continue;
                row_factors(p, n, blocks, factor);
                stored_row(p, p->codes + n * width, factor, bc, row);
                for (int64_t b = 0; b < q->batch; b++)
                    q->y[b * N + n] = dot(row, x + b * K, K) * q->alpha[q->alpha_per_row ? n : 0];
            }
            free(factor);
            restore(state);
        }
    }
    free(x);
    return failed;
}

/* Returns 0, or 1 when memory ran out. */
int EXPORT(packed_product)(const product_t *q)
{
    const fp_state_t state = keep_denormals();
#if defined(__AVX512F__)
    int status = looked_up_product(q);
    if (status == NOT_TAKEN) status = decoded_product(q);
#else
    const int status = decoded_product(q);
#endif
    restore(state);
    return status;
}
