/* Codes and block scales back to numbers: `from_storage`, `dequantized` and `operand` of reference.py. */
#include "stored.h"

/* Returns 0, or 1 when memory ran out. */
int EXPORT(dequantize)(const stored_t *p)
{
    const int64_t K = p->columns, bc = side(p->block_columns, K), blocks = ceil_div(K, bc);
    const int64_t width = p->packed ? ceil_div(K, 2) : K;
    int failed = 0;
    expect_writes(p->y, p->rows * K * size_of(p->dtype));
#pragma omp parallel num_threads(p->threads) if (p->threads > 1) reduction(| : failed)
    {
        const fp_state_t state = keep_denormals();
        float *factor = malloc((size_t)(blocks + K) * 4), *row = factor + blocks;
        failed = factor == NULL;
#pragma omp for schedule(static)
        for (int64_t r = 0; r < p->rows; r++) {
            if (failed) continue;
            const uint8_t *codes = p->codes + r * width;
            const int finite = row_factors(p, r, blocks, factor);
            float *out = p->dtype == FLOAT32 ? (float *)p->y + r * K : row;
            stored_row(p, codes, factor, bc, out);
            if (!finite || p->element.nan_code)
                for (int64_t c = 0; c < K; c++) out[c] = out[c] == out[c] ? out[c] : THE_NAN;
            if (p->dtype != FLOAT32) narrow(row, p->dtype, K, (uint16_t *)p->y + r * K);
        }
        free(factor);
        restore(state);
    }
    return failed;
}
