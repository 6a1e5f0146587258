/* Largest magnitudes: of the blocks in a tile, and over the whole matrix (the first pass). */
#ifndef FP4LAB_AMAX_H
#define FP4LAB_AMAX_H

#include "scales.h"
#include "tiles.h"

/* `most_of` adjacent blocks of 16, by halves of all of them at once: lanes stay full */
static void most_of_16s(const uint32_t *restrict u, int64_t blocks, uint32_t *restrict out)
{
    uint32_t eight[256], four[128], two[64];
    for (int64_t b = 0; b < blocks; b += 32) {
        const int here = (int)min64(32, blocks - b);
        const uint32_t *restrict in = u + b * 16;
#define HALVE(from, to, count, MASK)                                             \
    for (int i = 0; i < (count); i++) {                                          \
        uint32_t left = from[2 * i] & (MASK), right = from[2 * i + 1] & (MASK);  \
        to[i] = left > right ? left : right;                                     \
    }
        HALVE(in, eight, here * 8, MAGNITUDE)
        HALVE(eight, four, here * 4, ~0u)
        HALVE(four, two, here * 2, ~0u)
        uint32_t *restrict most = out + b;
        HALVE(two, most, here, ~0u)
#undef HALVE
    }
}

/* largest magnitudes of the blocks of br x bc in a tile */
static void tile_amax(const float *x, int64_t ld, tile_t t, int64_t br, int64_t bc, float *work,
                      float *amax)
{
    const int64_t blocks = ceil_div(t.columns, bc);
    uint32_t *line = (uint32_t *)work;
    for (int64_t top = 0; top < t.rows; top += br) {
        const int64_t rows = min64(br, t.rows - top);
        uint32_t *out = (uint32_t *)amax + top / br * blocks;
        const uint32_t *in = (const uint32_t *)(x + top * ld);
        if (rows > 1 || bc == 1) {
            uint32_t *restrict most = bc == 1 ? out : line;
            for (int64_t c = 0; c < t.columns; c++) most[c] = in[c] & MAGNITUDE;
            for (int64_t r = 1; r < rows; r++) {
                const uint32_t *restrict row = in + r * ld;
                for (int64_t c = 0; c < t.columns; c++) {
                    uint32_t u = row[c] & MAGNITUDE;
                    most[c] = u > most[c] ? u : most[c];
                }
            }
            in = most;
        }
        if (bc == 1) continue;
        int64_t b = bc == 16 ? t.columns / 16 : 0;
        if (bc == 16) most_of_16s(in, b, out);
        for (; (b + 1) * bc <= t.columns; b++) out[b] = most_of(in + b * bc, bc);
        if (b < blocks) out[b] = most_of(in + b * bc, t.columns - b * bc);
    }
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

/* magnitude of a plain tile for one number, without a conversion */
static uint32_t narrow_amax(const matrix_t *x, tile_t t)
{
    uint16_t most = 0;
    for (int64_t r = 0; r < t.rows; r++) {
        const uint16_t *in = (const uint16_t *)x->data + (t.row + r) * x->stride + t.column;
        uint16_t of_row = 0;
        for (int64_t c = 0; c < t.columns; c++) {
            uint16_t u = in[c] & 0x7FFF;
            of_row = u > of_row ? u : of_row;
        }
        most = of_row > most ? of_row : most;
    }
    return bits_of(x->dtype == BFLOAT16 ? from_bfloat16(most) : from_float16(most));
}

typedef struct { int64_t br, bc, width; uint32_t *most; } grid_t;

static void first_pass_tile(const plan_t *p, const matrix_t *x, tile_t t, const float *source,
                            int64_t ld, grid_t g, scratch_t *s)
{
    if (!p->hadamard.matrix && x->dtype != FLOAT32 && g.br >= x->rows && g.bc >= x->columns) {
        s->amax[0] = float_of(narrow_amax(x, t));
    } else {
        const float *values = values_of(p, x, t, source, s, &ld);
        tile_amax(values, ld, t, g.br, g.bc, s->work, s->amax);
    }
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
