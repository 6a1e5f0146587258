/* A cast of many numbers to the grid of an element type, as float32: round_nearest of reference.py. */
#include "cpu.h"

/* numbers that one thread takes at a time */
#define CAST_CHUNK 4096

INLINE void cast_chunk(const element_t t, const int kind, const float *restrict x, int64_t count,
                       float *restrict y)
{
    for (int64_t i = 0; i < count; i++) {
        float q = kind == PLAIN   ? nearest_even(x[i], t)
                  : kind == SHORT ? short_nearest_even(x[i], t)
                                  : round_nearest(x[i], t);
        y[i] = q == q ? q : THE_NAN;
    }
}

void EXPORT(cast)(const element_t *element, const void *x, int32_t dtype, int64_t count,
                  int32_t threads, float *y)
{
    const element_t t = *element;
    expect_writes(y, count * 4);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const fp_state_t state = keep_denormals();
        float buffer[CAST_CHUNK];
#pragma omp for schedule(static)
        for (int64_t n = 0; n < count; n += CAST_CHUNK) {
            const int64_t here = min64(CAST_CHUNK, count - n);
            const float *in = (const float *)x + n;
            if (dtype != FLOAT32) {
                widen(x, dtype, n, here, buffer);
                in = buffer;
            }
            if (kind_of(&t) == PLAIN) cast_chunk(t, PLAIN, in, here, y + n);
            else if (kind_of(&t) == SHORT) cast_chunk(t, SHORT, in, here, y + n);
            else cast_chunk(t, ANY, in, here, y + n);
        }
        restore(state);
    }
}
