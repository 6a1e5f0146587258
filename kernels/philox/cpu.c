/* The noise of a tensor, number by number: random_bits of reference.py. */
#include "cpu.h"

/* counters that are drawn at a time */
#define DRAWN 1024

/* `out` is rows x columns, uint8 for 8 bits and uint32 for 32 */
void EXPORT(random_bits)(const noise_t *noise, const int64_t *row_ids, int64_t rows, int64_t columns,
                         int32_t threads, void *out)
{
    const int64_t lanes = 128 / noise->bits, size = noise->bits / 8, part = lanes * (DRAWN / 2);
    const int64_t wide = min64(part, columns), high = max64(1, DRAWN / 2 / (wide / lanes + 2));
    const int64_t across = ceil_div(columns, wide), tiles = across * ceil_div(rows, high);
    expect_writes(out, rows * columns * size);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t n = 0; n < tiles; n++) {
        uint32_t scratch[2 * (DRAWN + LANES)], words[4 * (DRAWN + LANES)];
        const int64_t row = n / across * high, column = n % across * wide;
        const int64_t tall = min64(high, rows - row), here = min64(wide, columns - column);
        const int64_t skip = draw(noise, row_ids, row, tall, column, here, scratch, words);
        const int64_t stride = counters_per_row(noise, column, here) * 16;
        for (int64_t r = 0; r < tall; r++)
            memcpy((char *)out + ((row + r) * columns + column) * size,
                   (const char *)words + r * stride + skip * size, (size_t)(here * size));
    }
}
