/* Products of a few rows of activations with weights that stay packed in memory.
 *
 *     y_BN = (x_BK @ w_NK^T) alpha_N,   w = element x block scale
 *
 * Reading the weights is most of the work, so every code is read once for up to four rows of x. With
 * AVX512-BF16 elements are looked up as bf16, multiplied exactly and summed in float32, and a block's
 * scale multiplies its partial sum; bf16 numbers below 2^-126 count as zeros there. Elsewhere rows are
 * decoded to float32 first. With int8 activations (VNNI) each block of x has a scale of its own, and
 * sums within a block are exact integers.
 */
#include "../quantize/stored.h"

typedef struct {
    stored_t weights;      /* rows N, columns K; without amax and y */
    int64_t batch;         /* B */
    const void *x;         /* B x K, contiguous, of weights.dtype */
    const float *alpha;    /* one number, or one for each of N rows */
    int32_t alpha_per_row, int8;
    float *y;              /* B x N */
} product_t;

#define TOGETHER 4
/* columns whose int8 activations share a scale */
#define ACTIVATION_BLOCK 16

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

#if defined(__AVX512F__)
/* whether the table of the numbers of scale codes is that of E4M3 */
INLINE int are_e4m3(const float *values)
{
    return values[0x01] == 0x1p-9f && values[0x08] == 0x1p-6f && values[0x7E] == 448.0f &&
           values[0x7F] != values[0x7F];
}

/* the scales of 256 columns: codes of E4M3 as halves with a smaller exponent, others by table */
INLINE __m512 scales_of(const stored_t *p, const int e4m3, const uint8_t *codes)
{
    if (e4m3) {
        const __m128i bytes = p->block_columns == 16 ? _mm_loadu_si128((const __m128i *)codes)
                                                     : _mm_loadl_epi64((const __m128i *)codes);
        const __m128i all = _mm_set1_epi8(0x7F);
        const __mmask16 nan = _mm_cmpeq_epi8_mask(_mm_and_si128(bytes, all), all);
        const __m256i halves = _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 7);
        const __m512 value = _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256.0f));
        return _mm512_mask_mov_ps(value, nan, _mm512_set1_ps(NAN));
    }
    float scales[16] = {0};
    for (int i = 0; i < 256 / p->block_columns; i++) scales[i] = p->scale_values[codes[i]];
    return _mm512_loadu_ps(scales);
}

#define TARGET_BF16 __attribute__((target("avx512bf16,avx512vl,avx512bw,avx512dq")))
#define TARGET_INT8 __attribute__((target("avx512vnni,avx512vl,avx512bw,avx512dq")))

/* 256 columns of one row of weights against `rows` rows of x. Bytes become words, whose low five bits
 * are looked up: the table repeats itself, so the fifth does not matter, and shifted by four they give
 * the odd columns. Activations lie likewise: of 64 columns first the even ones. */
TARGET_BF16 INLINE void sixteen_blocks(const uint8_t *codes, __m512 scales, __m512i table,
                                       const __m512i *lanes, const uint16_t *x, int64_t ld,
                                       const int rows, __m512 *sums)
{
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const __m512i words = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(codes + 32 * j)));
        const __m512bh even = (__m512bh)_mm512_permutexvar_epi16(words, table);
        const __m512bh odd = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), table);
        const __m512 scale = _mm512_permutexvar_ps(lanes[j], scales);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            const uint16_t *in = x + r * ld + 64 * j;
            __m512 part = _mm512_dpbf16_ps(_mm512_setzero_ps(), even, (__m512bh)_mm512_loadu_si512(in));
            part = _mm512_dpbf16_ps(part, odd, (__m512bh)_mm512_loadu_si512(in + 32));
            sums[r] = _mm512_fmadd_ps(part, scale, sums[r]);
        }
    }
}

/* one row of weights; its last columns are padded with zeros to 256, as x is */
TARGET_BF16 INLINE void bf16_row(const int rows, const int e4m3, const stored_t *p, const uint8_t *codes,
                                 const uint8_t *scales, const __m512i *lanes, __m512i table,
                                 const uint16_t *x, int64_t ld, float *y, int64_t ldy, float alpha)
{
    __m512 sums[TOGETHER];
    for (int r = 0; r < TOGETHER; r++) sums[r] = _mm512_setzero_ps();
    const int64_t step = 256 / p->block_columns, whole = p->columns / 256;
    const int64_t left = p->columns % 256;
    for (int64_t b = 0; b < whole; b++) {
        const uint8_t *c = codes + 128 * b;
        __builtin_prefetch(c + 4096);
        __builtin_prefetch(c + 4160);
        sixteen_blocks(c, scales_of(p, e4m3, scales + b * step), table, lanes, x + 256 * b, ld, rows, sums);
    }
    if (left) {
        uint8_t last_codes[128] = {0}, last_scales[16] = {0};
        memcpy(last_codes, codes + 128 * whole, (size_t)left / 2);
        memcpy(last_scales, scales + step * whole, (size_t)(left / p->block_columns));
        sixteen_blocks(last_codes, scales_of(p, e4m3, last_scales), table, lanes, x + 256 * whole, ld,
                       rows, sums);
    }
    for (int r = 0; r < rows; r++) y[r * ldy] = _mm512_reduce_add_ps(sums[r]) * alpha;
}

/* 128 columns: bytes hold even columns in their low nibbles, and so do the activations: 64 even ones,
 * then 64 odd ones. Weights are doubled and shifted by 12, `correction` takes that back. */
TARGET_INT8 static float int8_row(const stored_t *p, const uint8_t *codes, const uint8_t *scales,
                                  int64_t groups, const __m512i *lanes, __m512i table, const int8_t *x,
                                  const float *x_scales, const int32_t *correction)
{
    const __m512i nibble = _mm512_set1_epi8(15);
    __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    const int64_t step = 256 / p->block_columns;
    const int e4m3 = are_e4m3(p->scale_values);
    for (int64_t g = 0; g < groups; g += 2) {
        const __m512 s = scales_of(p, e4m3, scales + g / 2 * step);
        __builtin_prefetch(codes + 64 * g + 2048);
        __builtin_prefetch(codes + 64 * g + 2112);
        for (int j = 0; j < 2; j++) {
            const __m512i bytes = _mm512_loadu_si512(codes + 64 * (g + j));
            const __m512i low = _mm512_shuffle_epi8(table, _mm512_and_si512(bytes, nibble));
            const __m512i high = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(bytes, 4), nibble));
            const int8_t *in = x + 128 * (g + j);
            __m512i whole = _mm512_loadu_si512(correction + 16 * (g + j));
            whole = _mm512_dpbusd_epi32(whole, low, _mm512_loadu_si512(in));
            whole = _mm512_dpbusd_epi32(whole, high, _mm512_loadu_si512(in + 64));
            const __m512 part = _mm512_mul_ps(_mm512_cvtepi32_ps(whole), _mm512_loadu_ps(x_scales + 16 * (g + j)));
            sums[j] = _mm512_fmadd_ps(part, _mm512_permutexvar_ps(lanes[j], s), sums[j]);
        }
    }
    return _mm512_reduce_add_ps(_mm512_add_ps(sums[0], sums[1]));
}

/* whether weights are what the looked-up versions read */
static int is_looked_up(const product_t *q)
{
    const stored_t *p = &q->weights;
    return p->packed && p->scale_values && p->columns % 32 == 0 && p->element.mantissa_bits == 1 &&
           p->element.min_exponent == 0 && p->element.max_code == 7 &&
           (p->block_columns == 16 || p->block_columns == 32);
}

TARGET_BF16 static void bf16_rows(const int rows, const stored_t *p, const uint8_t *codes,
                                  const uint8_t *scales, const __m512i *lanes, __m512i table,
                                  const uint16_t *x, int64_t ld, float *y, int64_t ldy, float alpha)
{
    const int e4m3 = are_e4m3(p->scale_values);
#define ROWS(n, e) bf16_row(n, e, p, codes, scales, lanes, table, x, ld, y, ldy, alpha)
    if (rows == 1 && e4m3) ROWS(1, 1);
    else if (rows == 1) ROWS(1, 0);
    else if (rows == 2) ROWS(2, e4m3);
    else if (rows == 3) ROWS(3, e4m3);
    else ROWS(4, e4m3);
#undef ROWS
}

static int bf16_product(const product_t *q)
{
    const stored_t *p = &q->weights;
    const int64_t K = p->columns, N = p->rows, blocks = K / p->block_columns, ld = round_up(K, 256);
    const int64_t br = side(p->block_rows, N);
    uint16_t numbers[32], *x = calloc((size_t)(q->batch * ld), 2);
    if (!x) return 1;
    for (int64_t b = 0; b < q->batch; b++)
        for (int64_t k = 0; k < K; k++)
            x[b * ld + k / 64 * 64 + k % 2 * 32 + k % 64 / 2] = ((const uint16_t *)q->x)[b * K + k];
    for (uint32_t c = 0; c < 32; c++) numbers[c] = to_bfloat16(number_of(c & 15, p->element, 0));
    const __m512i table = _mm512_loadu_si512(numbers);
    __m512i lanes[4];
    for (int j = 0; j < 4; j++) {
        int32_t which[16];
        for (int i = 0; i < 16; i++) which[i] = (64 * j + 4 * i) / (int32_t)p->block_columns;
        lanes[j] = _mm512_loadu_si512(which);
    }
    const uint8_t *scales = p->scales;
#pragma omp parallel num_threads(p->threads) if (p->threads > 1)
    {
        const fp_state_t state = keep_denormals();
#pragma omp for schedule(static)
        for (int64_t n = 0; n < N; n++)
            for (int64_t b = 0; b < q->batch; b += TOGETHER)
                bf16_rows((int)min64(TOGETHER, q->batch - b), p, p->codes + n * (K / 2),
                          scales + n / br * blocks, lanes, table, x + b * ld, ld, q->y + b * N + n, N,
                          q->alpha[q->alpha_per_row ? n : 0]);
        restore(state);
    }
    free(x);
    return 0;
}

/* int8 activations as `int8_row` reads them, from codes and scales in the order of the columns */
static void turn_activations(const int8_t *restrict codes, const float *restrict scale, int64_t columns,
                             int64_t groups, int8_t *restrict turned, float *restrict lane_scale,
                             int32_t *restrict correction)
{
    for (int64_t lane = 0; lane < groups * 16; lane++) {
        int32_t sum = 0;
        for (int64_t i = 0; i < 8; i++) {
            const int8_t code = codes[lane * 8 + i];
            turned[lane / 16 * 128 + i % 2 * 64 + lane % 16 * 4 + i / 2] = code;
            sum += code;
        }
        correction[lane] = -12 * sum;
        lane_scale[lane] = lane * 8 < columns ? scale[lane * 8 / ACTIVATION_BLOCK] : 0.0f;
    }
}

static int int8_product(const product_t *q)
{
    const stored_t *p = &q->weights;
    const int64_t K = p->columns, N = p->rows, groups = round_up(ceil_div(K, 128), 2);
    const int64_t blocks = K / p->block_columns, br = side(p->block_rows, N);
    uint8_t numbers[64];
    for (uint32_t c = 0; c < 64; c++)
        numbers[c] = (uint8_t)(int32_t)(2.0f * number_of(c & 15, p->element, 0) + 12.0f);
    const __m512i table = _mm512_loadu_si512(numbers);
    __m512i lanes[2];
    for (int j = 0; j < 2; j++) {
        int32_t which[16];
        for (int i = 0; i < 16; i++) which[i] = (128 * j + 8 * i) / (int32_t)p->block_columns;
        lanes[j] = _mm512_loadu_si512(which);
    }
    const int64_t padded = groups * 128;
    int8_t *codes = calloc((size_t)padded, 1), *turned = calloc((size_t)padded, 1);
    float *wide = malloc((size_t)(K + 2 * padded) * 4), *lane_scale = wide + K, *scale = lane_scale + padded;
    int32_t *correction = calloc((size_t)padded, 4);
    const int failed = !codes || !turned || !wide || !correction;
    for (int64_t b = 0; b < q->batch && !failed; b++) {
        widen(q->x, p->dtype, b * K, K, wide);
        activations_to_int8(wide, K, codes, scale);
        turn_activations(codes, scale, K, groups, turned, lane_scale, correction);
#pragma omp parallel num_threads(p->threads) if (p->threads > 1)
        {
            const fp_state_t state = keep_denormals();
#pragma omp for schedule(static)
            for (int64_t n = 0; n < N; n++) {
                const uint8_t *row = p->codes + n * (K / 2);
                const uint8_t *scales = (const uint8_t *)p->scales + n / br * blocks;
                const int64_t whole = K / 256 * 2;
                float sum = int8_row(p, row, scales, whole, lanes, table, turned, lane_scale, correction);
                if (whole < groups) {
                    /* a row that ends within 256 columns is padded with zeros */
                    uint8_t last[128] = {0}, last_scales[16] = {0};
                    const int64_t at = whole * 128, left = K - at;
                    memcpy(last, row + at / 2, (size_t)left / 2);
                    memcpy(last_scales, scales + at / p->block_columns, (size_t)(left / p->block_columns));
                    sum += int8_row(p, last, last_scales, 2, lanes, table, turned + at,
                                    lane_scale + at / 8, correction + at / 8);
                }
                q->y[b * N + n] = sum * (0.5f * q->alpha[q->alpha_per_row ? n : 0]);
            }
            restore(state);
        }
    }
    free(codes);
    free(turned);
    free(wide);
    free(correction);
    return failed;
}
#endif

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
    int failed;
#if defined(__AVX512F__)
    __builtin_cpu_init();
    if (is_looked_up(q) && q->int8 && __builtin_cpu_supports("avx512vnni"))
        failed = int8_product(q);
    else if (is_looked_up(q) && !q->int8 && q->weights.dtype == BFLOAT16 &&
             __builtin_cpu_supports("avx512bf16"))
        failed = bf16_product(q);
    else
#endif
        failed = decoded_product(q);
    restore(state);
    return failed;
}
