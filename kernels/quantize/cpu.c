/* Block quantization of a float32 matrix on a CPU: the arithmetic of scales.py and reference.py, in
 * the same order, so that every bit is equal. Plain C with a C interface, no libraries but libm.
 *
 * The matrix is read as it is stored, M x K row-major. A block covers `br` x `bc` of it: 1 x 16 when
 * blocks run along rows, 16 x 1 when the transpose is quantized. Blocks form an A x B grid; the last
 * ones may be cropped. Compile with -ffp-contract=off and never with -ffast-math.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FLOAT_MAX 3.4028234663852886e38f
/* results hold this NaN and no other: the sign of a computed one depends on the processor */
#define THE_NAN float_of(0x7FC00000u)
enum { FOLDED, DIVIDED, POWER_OF_TWO, ENCODE };
enum { NEAREST, FLOOR, CEIL, ROUND_UP, EVEN };
enum { LEVEL_NONE, LEVEL_TENSOR, LEVEL_ROW };
enum { ELEMENTS, OPERAND, DEQUANTIZED };

typedef struct {
    int32_t mantissa_bits, min_exponent, max_exponent;
    float max_value;
} element_t;

typedef struct {
    int64_t rows, columns;               /* M, K */
    int64_t block_rows, block_columns;   /* br, bc, as stored */
    element_t element, scale;
    int32_t scale_rule, block_scale, level, transposed, keep_negative_zero, result;
    float scale_floor, zero_scale;
    int32_t hadamard, has_signs, noise_bits, has_amax;
    uint32_t key[2], step, microbatch;
    int64_t column_offset;
    double target, amax_factor;          /* M, and C * M or 1 */
} plan_t;

static inline uint32_t bits_of(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static inline float float_of(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static inline float at_most(float x, float limit) { return x > limit ? limit : x; } /* keeps NaN */

/* minifloat/reference.py: round_nearest, ties to even, saturating; |v| and its sign apart */
static inline float grid_exponent(float a, int32_t min_exponent, int32_t shift)
{
    int32_t e = (int32_t)(bits_of(a) & 0x7F800000u), low = (127 + min_exponent) * (1 << 23);
    e = e > low ? e : low;
    return float_of((uint32_t)e + (uint32_t)shift * (1u << 23));
}

static inline float with_sign(float q, float v) { return float_of(bits_of(q) | (bits_of(v) & 0x80000000u)); }

static inline float round_nearest(float v, const element_t t)
{
    float a = at_most(float_of(bits_of(v) & 0x7FFFFFFFu), t.max_value);
    float big = grid_exponent(a, t.min_exponent, 23 - t.mantissa_bits);
    return with_sign((a + big) - big, v);
}

static inline float round_stochastic8(float v, const element_t t, uint8_t random)
{
    float a = at_most(float_of(bits_of(v) & 0x7FFFFFFFu), t.max_value);
    float spacing = grid_exponent(a, t.min_exponent, -t.mantissa_bits);
    int32_t parts = (int32_t)((a / spacing) * 256.0f) + random;
    float q = at_most((float)(parts >> 8) * spacing, t.max_value);
    return a != a ? v : with_sign(q, v);
}

static inline float round_stochastic32(float v, const element_t t, uint32_t random)
{
    float a = at_most(float_of(bits_of(v) & 0x7FFFFFFFu), t.max_value);
    float spacing = grid_exponent(a, t.min_exponent, -t.mantissa_bits);
    float steps = a / spacing;
    int32_t whole = (int32_t)steps;
    uint64_t threshold = (uint64_t)((steps - (float)whole) * 4294967296.0f);
    whole += (int32_t)(((uint64_t)random + threshold) >> 32);
    float q = at_most((float)whole * spacing, t.max_value);
    return a != a ? v : with_sign(q, v);
}

/* philox/reference.py: the noise of a batch of rows, `blocks` counters a row from block `first` on.
 * Counters are numbered through the batch, so that narrow rows fill the lanes too. */
#define LANES 32
static void philox(const plan_t *p, const uint32_t *rows, int64_t count, uint32_t first,
                   int64_t blocks, uint32_t *restrict out)
{
    for (int64_t n = 0; n < count * blocks; n += LANES) {
        uint32_t c0[LANES], c1[LANES], c2[LANES], c3[LANES], k0 = p->key[0], k1 = p->key[1];
        for (int i = 0; i < LANES; i++) {
            int64_t row = (n + i) / blocks;
            c0[i] = first + (uint32_t)(n + i - row * blocks);
            c1[i] = rows[row < count ? row : 0];
            c2[i] = p->step;
            c3[i] = p->microbatch;
        }
        for (int r = 0; r < 10; r++) {
            for (int i = 0; i < LANES; i++) {
                uint64_t low = (uint64_t)c0[i] * 0xD2511F53u, high = (uint64_t)c2[i] * 0xCD9E8D57u;
                uint32_t next0 = (uint32_t)(high >> 32) ^ c1[i] ^ k0;
                uint32_t next2 = (uint32_t)(low >> 32) ^ c3[i] ^ k1;
                c1[i] = (uint32_t)high;
                c3[i] = (uint32_t)low;
                c0[i] = next0;
                c2[i] = next2;
            }
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        for (int i = 0; i < LANES; i++) {
            out[4 * (n + i)] = c0[i];
            out[4 * (n + i) + 1] = c1[i];
            out[4 * (n + i) + 2] = c2[i];
            out[4 * (n + i) + 3] = c3[i];
        }
    }
}

/* hadamard/reference.py: sums over k from left to right, scaled last */
static void hadamard_rows(const plan_t *p, const float *x, const float *matrix, float *y)
{
    int n = p->hadamard;
    float scale = (float)(1.0 / sqrt((double)n));
    for (int64_t g = 0; g < p->rows * p->columns; g += n) {
        for (int j = 0; j < n; j++) y[g + j] = 0.0f;
        for (int k = 0; k < n; k++) {
            float xk = x[g + k];
            for (int j = 0; j < n; j++) y[g + j] += matrix[k * n + j] * xk;
        }
        for (int j = 0; j < n; j++) y[g + j] *= scale;
    }
}

static void hadamard_columns(const plan_t *p, const float *x, const float *matrix, float *y)
{
    int n = p->hadamard;
    float scale = (float)(1.0 / sqrt((double)n));
    int64_t K = p->columns;
    for (int64_t g = 0; g < p->rows; g += n) {
        for (int j = 0; j < n; j++) {
            float *restrict out = y + (g + j) * K;
            for (int64_t c = 0; c < K; c++) out[c] = 0.0f;
            for (int k = 0; k < n; k++) {
                const float *restrict in = x + (g + k) * K;
                float sign = matrix[k * n + j];
                for (int64_t c = 0; c < K; c++) out[c] += sign * in[c];
            }
            for (int64_t c = 0; c < K; c++) out[c] *= scale;
        }
    }
}

static void block_amax(const plan_t *p, const float *x, int64_t B, float *amax)
{
    int64_t K = p->columns, bc = p->block_columns;
    uint32_t *restrict m = (uint32_t *)amax;
    for (int64_t r = 0; r < p->rows; r++) {
        uint32_t *restrict row = m + (r / p->block_rows) * B;
        const float *restrict in = x + r * K;
        if (r % p->block_rows == 0) memset(row, 0, (size_t)B * 4);
        if (bc == 1) {
            for (int64_t c = 0; c < K; c++) {
                uint32_t u = bits_of(in[c]) & 0x7FFFFFFFu;
                row[c] = u > row[c] ? u : row[c];
            }
            continue;
        }
        for (int64_t b = 0; b < B; b++) {
            int64_t end = (b + 1) * bc < K ? (b + 1) * bc : K;
            uint32_t most = row[b];
            for (int64_t c = b * bc; c < end; c++) {
                uint32_t u = bits_of(in[c]) & 0x7FFFFFFFu;
                most = u > most ? u : most;
            }
            row[b] = most;
        }
    }
}

/* second level: one amax, or one for every row of the operand (a column of the matrix if transposed) */
static void outer_amax(const plan_t *p, const float *block, int64_t A, int64_t B, float *amax)
{
    const uint32_t *in = (const uint32_t *)block;
    uint32_t *out = (uint32_t *)amax;
    int64_t count = p->level == LEVEL_TENSOR ? 1 : p->transposed ? B : A;
    memset(out, 0, (size_t)count * 4);
    for (int64_t a = 0; a < A; a++)
        for (int64_t b = 0; b < B; b++) {
            uint32_t *o = out + (p->level == LEVEL_TENSOR ? 0 : p->transposed ? b : a);
            *o = in[a * B + b] > *o ? in[a * B + b] : *o;
        }
}

/* scales.py */
static float power_of_two(const plan_t *p, float a, float *multiplier)
{
    const element_t t = p->element;
    int divided = p->scale_rule == ROUND_UP || p->scale_rule == NEAREST, exponent;
    float ideal = divided ? a / t.max_value : a;
    float fraction = frexpf(ideal, &exponent);
    int up = p->scale_rule == FLOOR     ? 0
             : p->scale_rule == EVEN    ? fraction >= 1.0f - ldexpf(1.0f, -(t.mantissa_bits + 2))
             : p->scale_rule == NEAREST ? fraction >= 0.75f
                                        : fraction > 0.5f;
    exponent += up - 1 - (divided ? 0 : t.max_exponent);
    if (ideal == 0.0f || exponent < p->scale.min_exponent) exponent = p->scale.min_exponent;
    if (exponent > p->scale.max_exponent) exponent = p->scale.max_exponent;
    if (!isfinite(a)) return *multiplier = NAN;
    *multiplier = ldexpf(1.0f, -exponent);
    return ldexpf(1.0f, exponent);
}

static float encode_first(const plan_t *p, float a, float *multiplier)
{
    float m = at_most(p->element.max_value / a, FLOAT_MAX);
    if (p->scale_rule == ROUND_UP && m == m) m = float_of(bits_of(m) & 0x7F800000u);
    if (p->zero_scale != 0.0f && a == 0.0f) m = 1.0f / p->zero_scale;
    *multiplier = m;
    return 1.0f / m;
}

/* `count` blocks under one second-level amax */
static void two_level(const plan_t *p, float outer, int64_t count, float *restrict decode,
                      float *restrict multiplier)
{
    const element_t t = p->scale;
    const float largest = (float)p->target, reciprocal = (float)(1.0 / p->target);
    float encode = 1.0f;
    if (p->level != LEVEL_NONE) {
        encode = at_most((float)p->amax_factor / outer, FLOAT_MAX);
        if (encode == 0.0f) encode = 1.0f;
    }
    const float folded = encode * reciprocal, inverse = 1.0f / encode;
    const int is_folded = p->block_scale == FOLDED, rounded = t.mantissa_bits < 23;
    for (int64_t i = 0; i < count; i++) {
        float a = decode[i];
        float ideal = is_folded ? at_most(a * folded, FLOAT_MAX) : (a / largest) * encode;
        float s = rounded ? round_nearest(ideal, t) : ideal;
        s = s < p->scale_floor ? p->scale_floor : s;
        s = a == 0.0f && p->zero_scale != 0.0f ? p->zero_scale : s;
        decode[i] = s;
        multiplier[i] = at_most(1.0f / (s * inverse), FLOAT_MAX);
    }
}

/* scales of all blocks, from the amax in `decode`; `amax` is the second level */
static void block_scales(const plan_t *p, int64_t A, int64_t B, const float *amax, float *decode,
                         float *multiplier)
{
    if (p->block_scale == POWER_OF_TWO || p->block_scale == ENCODE) {
        float (*rule)(const plan_t *, float, float *) =
            p->block_scale == ENCODE ? encode_first : power_of_two;
        for (int64_t i = 0; i < A * B; i++) decode[i] = rule(p, decode[i], multiplier + i);
    } else if (p->level != LEVEL_ROW) {
        two_level(p, p->level == LEVEL_TENSOR ? amax[0] : 1.0f, A * B, decode, multiplier);
    } else if (!p->transposed) {
        for (int64_t a = 0; a < A; a++)
            two_level(p, amax[a], B, decode + a * B, multiplier + a * B);
    } else {
        for (int64_t i = 0; i < A * B; i++) two_level(p, amax[i % B], 1, decode + i, multiplier + i);
    }
}

/* what multiplies an element's value, from `decode` */
static void output_factors(const plan_t *p, int64_t A, int64_t B, const float *amax,
                           const float *decode, float *factor)
{
    const float inverse = (float)(1.0 / p->amax_factor);
    for (int64_t a = 0; a < A; a++)
        for (int64_t b = 0; b < B; b++) {
            float s = decode[a * B + b];
            if (p->result == DEQUANTIZED && p->level != LEVEL_NONE) {
                int64_t row = p->level == LEVEL_TENSOR ? 0 : p->transposed ? b : a;
                s = (s * amax[row]) * inverse;
            }
            factor[a * B + b] = p->result == ELEMENTS ? 1.0f : s;
        }
}

/* one run of elements under arrays of multipliers and output factors, or under single ones */
#define RUN(ROUND, MULTIPLIER, FACTOR)                                            \
    for (int64_t c = begin; c < end; c++) {                                       \
        float v = in[c] * (MULTIPLIER);                                           \
        if (!keep) v += 0.0f;                                                     \
        float q = (ROUND) * (FACTOR);                                             \
        out[c] = q == q ? q : THE_NAN;                                            \
    }
#define RUNS(ROUND)                                                               \
    do {                                                                          \
        const element_t t = p->element;                                           \
        const int keep = p->keep_negative_zero;                                   \
        if (p->block_columns == 1) {                                              \
            const int64_t begin = 0, end = K;                                     \
            RUN(ROUND, m[c], f[c])                                                \
        } else if (p->block_columns == 16 && K % 16 == 0) {                       \
            for (int64_t b = 0; b < B; b++) {                                     \
                const int64_t begin = b * 16, end = begin + 16;                   \
                const float mb = m[b], fb = f[b];                                 \
                RUN(ROUND, mb, fb)                                                \
            }                                                                     \
        } else {                                                                  \
            for (int64_t b = 0; b < B; b++) {                                     \
                const int64_t begin = b * p->block_columns;                       \
                const int64_t stop = begin + p->block_columns, end = stop < K ? stop : K; \
                const float mb = m[b], fb = f[b];                                 \
                RUN(ROUND, mb, fb)                                                \
            }                                                                     \
        }                                                                         \
    } while (0)

static void element_row(const plan_t *p, const float *restrict in, int64_t B, const float *restrict m,
                        const float *restrict f, const uint32_t *noise, int64_t skip,
                        float *restrict out)
{
    const int64_t K = p->columns;
    if (p->noise_bits == 0) {
        RUNS(round_nearest(v, t));
    } else if (p->noise_bits == 8) {
        const uint8_t *restrict n = (const uint8_t *)noise + skip;
        RUNS(round_stochastic8(v, t, n[c]));
    } else {
        const uint32_t *restrict n = noise + skip;
        RUNS(round_stochastic32(v, t, n[c]));
    }
}

/* rows whose noise is drawn together */
#define BATCH 64
static void elements(const plan_t *p, const float *x, int64_t B, const float *multiplier,
                     const float *factor, const int64_t *row_ids, uint32_t *noise, float *y)
{
    const int64_t K = p->columns, lanes = p->noise_bits ? 128 / p->noise_bits : 1;
    const int64_t first = p->column_offset / lanes, skip = p->column_offset - first * lanes;
    const int64_t blocks = (p->column_offset + K - 1) / lanes - first + 1;
    for (int64_t start = 0; start < p->rows; start += BATCH) {
        int64_t count = p->rows - start < BATCH ? p->rows - start : BATCH;
        if (p->noise_bits) {
            uint32_t rows[BATCH];
            for (int64_t i = 0; i < count; i++)
                rows[i] = (uint32_t)(row_ids ? row_ids[start + i] : start + i);
            philox(p, rows, count, (uint32_t)first, blocks, noise);
        }
        for (int64_t r = start; r < start + count; r++) {
            const int64_t scales = (r / p->block_rows) * B;
            const uint32_t *words = noise ? noise + (r - start) * blocks * 4 : NULL;
            element_row(p, x + r * K, B, multiplier + scales, factor + scales, words, skip, y + r * K);
        }
    }
}

/* Returns 0, or 1 when memory ran out. `decode` is A x B; `amax` holds the second level (in or out);
 * `y` is M x K: element values, or times block scales, or dequantized. */
int fp4lab_quantize(const plan_t *p, const float *x, const float *matrix, const int64_t *row_ids,
                    float *amax, float *decode, float *y)
{
    int64_t A = (p->rows + p->block_rows - 1) / p->block_rows;
    int64_t B = (p->columns + p->block_columns - 1) / p->block_columns, n = p->rows * p->columns;
    size_t noise_bytes = ((size_t)(p->columns / 4 + 2) * BATCH + LANES) * 16;
    float *transformed = p->hadamard > 1 || p->has_signs ? malloc((size_t)n * 4) : NULL;
    float *multiplier = malloc((size_t)(A * B) * 4), *factor = malloc((size_t)(A * B) * 4);
    uint32_t *noise = p->noise_bits ? malloc(noise_bytes) : NULL;
    int failed = !multiplier || !factor || (p->noise_bits && !noise) ||
                 ((p->hadamard > 1 || p->has_signs) && !transformed);
    if (!failed) {
        if (transformed) {
            (p->transposed ? hadamard_columns : hadamard_rows)(p, x, matrix, transformed);
            x = transformed;
        }
        block_amax(p, x, B, decode);
        if (p->level != LEVEL_NONE && !p->has_amax) outer_amax(p, decode, A, B, amax);
        block_scales(p, A, B, amax, decode, multiplier);
        output_factors(p, A, B, amax, decode, factor);
        elements(p, x, B, multiplier, factor, row_ids, noise, y);
    }
    free(transformed);
    free(multiplier);
    free(factor);
    free(noise);
    return failed;
}
