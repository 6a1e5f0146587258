/* Largest magnitudes: of the blocks in a tile, and over the whole matrix (the first pass). */
#ifndef FP4LAB_AMAX_H
#define FP4LAB_AMAX_H

#include "scales.h"
#include "tiles.h"

/* Largest magnitudes of the blocks of br x bc in a tile, as the bits of float32. Bits are compared as
 * the numbers are stored, float32 or bfloat16, which is the upper half of one; adjacent blocks of 16 by
 * halves of all of them at once, for then lanes stay full. */
#define HALVE(from, to, count, MASK)                                                               \
    for (int i = 0; i < (count); i++)                                                              \
        to[i] = larger(from[2 * i] & (MASK), from[2 * i + 1] & (MASK));
#define TILE_AMAX(type, name, mask, shift)                                                         \
    static void most_of_16s_##name(const type *restrict u, int64_t blocks, uint32_t *restrict out) \
    {                                                                                              \
        type eight[256], four[128], two[64];                                                       \
        for (int64_t b = 0; b < blocks; b += 32) {                                                 \
            const int here = (int)min64(32, blocks - b);                                           \
            const type *restrict in = u + b * 16;                                                  \
            uint32_t *restrict most = out + b;                                                     \
            HALVE(in, eight, here * 8, mask)                                                       \
            HALVE(eight, four, here * 4, mask)                                                     \
            HALVE(four, two, here * 2, mask)                                                       \
            for (int i = 0; i < here; i++)                                                         \
                most[i] = larger(two[2 * i], two[2 * i + 1]) << shift;                             \
        }                                                                                          \
    }                                                                                              \
    static uint32_t most_of_##name(const type *u, int64_t count)                                   \
    {                                                                                              \
        type most = 0;                                                                             \
        for (int64_t i = 0; i < count; i++) {                                                      \
            const type here = u[i] & mask;                                                         \
            most = here > most ? here : most;                                                      \
        }                                                                                          \
        return (uint32_t)most << shift;                                                            \
    }                                                                                              \
    static void tile_amax_##name(const type *x, int64_t ld, tile_t t, int64_t br, int64_t bc,      \
                                 type *restrict line, uint32_t *amax)                              \
    {                                                                                              \
        const int64_t blocks = ceil_div(t.columns, bc);                                            \
        for (int64_t top = 0; top < t.rows; top += br) {                                           \
            const int64_t rows = min64(br, t.rows - top);                                          \
            uint32_t *out = amax + top / br * blocks;                                              \
            const type *in = x + top * ld;                                                         \
            if (rows > 1) {                                                                        \
                for (int64_t c = 0; c < t.columns; c++) line[c] = in[c] & mask;                    \
                for (int64_t r = 1; r < rows; r++) {                                               \
                    const type *restrict row = in + r * ld;                                        \
                    for (int64_t c = 0; c < t.columns; c++) {                                      \
                        const type u = row[c] & mask;                                              \
                        line[c] = u > line[c] ? u : line[c];                                       \
                    }                                                                              \
                }                                                                                  \
                in = line;                                                                         \
            }                                                                                      \
            int64_t b = 0;                                                                         \
            if (bc == 1)                                                                           \
                for (; b < blocks; b++) out[b] = (uint32_t)(in[b] & mask) << shift;                \
            if (bc == 16) {                                                                        \
                b = t.columns / 16;                                                                \
                most_of_16s_##name(in, b, out);                                                    \
            }                                                                                      \
            for (; (b + 1) * bc <= t.columns; b++) out[b] = most_of_##name(in + b * bc, bc);       \
            if (b < blocks) out[b] = most_of_##name(in + b * bc, t.columns - b * bc);              \
        }                                                                                          \
    }

INLINE uint32_t larger(uint32_t one, uint32_t other) { return one > other ? one : other; }
TILE_AMAX(uint32_t, float32, MAGNITUDE, 0)
TILE_AMAX(uint16_t, bfloat16, 0x7FFFu, 16)

static void tile_amax(view_t x, tile_t t, int64_t br, int64_t bc, float *work, float *amax)
{
    if (x.dtype == FLOAT32) tile_amax_float32(x.data, x.ld, t, br, bc, (uint32_t *)work, (uint32_t *)amax);
    else tile_amax_bfloat16(x.data, x.ld, t, br, bc, (uint16_t *)work, (uint32_t *)amax);
}

/* First pass: magnitudes over a grid of br x bc blocks of the whole matrix, into `grid`. */
static void raise_to(uint32_t *grid, int64_t width, tile_t t, int64_t br, int64_t bc, const float *most)
{
    const int64_t blocks = ceil_div(t.columns, bc);
    for (int64_t i = 0; i < ceil_div(t.rows, br); i++)
        for (int64_t j = 0; j < blocks; j++) {
            uint32_t *to = grid + (t.row / br + i) * width + t.column / bc + j;
            uint32_t u = bits_of(most[i * blocks + j]);
            *to = u > *to ? u : *to;
        }
}

typedef struct { int64_t br, bc, width; uint32_t *most; } grid_t;

static void first_pass_tile(const plan_t *p, const matrix_t *x, tile_t t, grid_t g, scratch_t *s)
{
    tile_amax(values_of(p, x, t, s), t, g.br, g.bc, s->work, s->amax);
#pragma omp critical(fp4lab_raise)
    raise_to(g.most, g.width, t, g.br, g.bc, s->amax);
}

/* one amax, or one for every row of the operand, from those of blocks */
static void outer_from_blocks(const plan_t *p, grid_t g, int64_t A, uint32_t *out)
{
    for (int64_t a = 0; a < A; a++)
        for (int64_t b = 0; b < g.width; b++) {
            uint32_t *o = out + (p->level == LEVEL_TENSOR ? 0 : p->transposed ? b : a);
            uint32_t u = g.most[a * g.width + b];
            *o = u > *o ? u : *o;
        }
}

#endif
