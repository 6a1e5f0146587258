/* Hadamard transform of blocks along the columns or rows of a matrix, in the type it came in. */
#include "cpu.h"

#define ROWS_WIDE 2048

static void copy_with_one_nan(const float *restrict x, int64_t count, float *restrict y)
{
    for (int64_t i = 0; i < count; i++) y[i] = x[i] == x[i] ? x[i] : THE_NAN;
}

/* `x` and `y` are rows x columns, contiguous; blocks run along `by_rows` ? the rows : the columns */
int EXPORT(hadamard)(const hadamard_t *h, const void *x, int32_t dtype, int64_t rows, int64_t columns,
                     int32_t by_rows, int32_t threads, void *y)
{
    const int64_t n = h->size, high = by_rows ? n : 1;
    const int64_t wide = min64(columns, by_rows ? max64(16, ROWS_WIDE * 8 / n) : round_up(ROWS_WIDE, n));
    const int64_t across = ceil_div(columns, wide), tiles = across * (rows / high);
    int failed = 0;
    expect_writes(y, rows * columns * size_of(dtype));
#pragma omp parallel num_threads(threads) if (threads > 1) reduction(| : failed)
    {
        const fp_state_t state = keep_denormals();
        float *in = malloc((size_t)(2 * high * wide) * 4), *out = in + high * wide;
        failed = in == NULL;
#pragma omp for schedule(static)
        for (int64_t t = 0; t < tiles; t++) {
            if (failed) continue;
            const int64_t row = t / across * high, column = t % across * wide;
            const int64_t here = min64(wide, columns - column);
            for (int64_t r = 0; r < high; r++)
                widen(x, dtype, (row + r) * columns + column, here, in + r * here);
            if (by_rows) hadamard_columns(*h, high, here, in, FLOAT32, here, out);
            else hadamard_rows(*h, high, here, in, here, out);
            for (int64_t r = 0; r < high; r++) {
                const int64_t at = (row + r) * columns + column;
                if (dtype == FLOAT32) copy_with_one_nan(out + r * here, here, (float *)y + at);
                else narrow(out + r * here, dtype, here, (uint16_t *)y + at);
            }
        }
        free(in);
        restore(state);
    }
    return failed;
}
