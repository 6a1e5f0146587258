/* Products with packed E2M1 weights whose codes are looked up in registers (AVX-512).
 *
 * Rows of weights are read in four places at a time, which takes three quarters of the time that one
 * place does, and every code is read once for up to four rows of x. bf16 activations (AVX512-BF16):
 * elements are looked up as bf16, multiplied exactly and summed in float32. int8 activations (VNNI):
 * these sums are exact integers, which the scale of the activations multiplies first.
 *
 * Both add 8 products before the scale of a block multiplies them, and VDPBF16PS flushes whatever MXCSR
 * says. Activations outside LEAST .. MOST are left to others, so that these sums
 * - do not overflow: 8 x 6 x MOST = 1.5 x 2^127;
 * - do not flush: bf16 has 8 bits and elements are multiples of 1/2, so products and their sums are
 *   multiples of LEAST 2^-8 = 2^-126;
 * - of int8 activations, whose largest number is 127 scales, are exact: half a scale is at least 2^-126.
 */
#ifndef FP4LAB_LOOKUP_H
#define FP4LAB_LOOKUP_H

#include "product.h"

#if defined(__AVX512F__)
/* both instruction sets for all that follows, so that what both share is inlined; `is_looked_up` asks
 * the processor for the one that a product uses */
#define TARGET __attribute__((target("avx512bf16,avx512vnni")))

enum { PLACES = 4, TOGETHER = 4, SPAN = 256 };
/* bytes of codes that are fetched ahead */
#define AHEAD 1024
#define LEAST 0x1p-118f
#define MOST 0x1p122f
/* what a product returns */
enum { DONE, NO_MEMORY, NOT_TAKEN };

typedef struct {
    const product_t *product;
    int e4m3;          /* whether the scales are E4M3 */
    __m512i table;     /* bf16 numbers of codes, or bytes 2 x number + 12 */
    __m512i lanes[2];  /* the scale of each lane, for 128 columns each */
    int64_t apart;     /* rows of weights between places */
    int64_t padded;    /* columns of x, with zeros up to a multiple of SPAN */
    void *x;           /* B x padded bf16 numbers or int8 codes; beside codes: */
    float *scales;     /* B x padded / 8, half of those of x: numbers are doubled in the table */
    int32_t *sums;     /* B x padded / 8: where sums begin, for numbers are 12 too large in the table */
} lookup_t;

/* whether a number is neither 0 nor within LEAST .. MOST, such as NaN */
INLINE int is_outside(float number)
{
    const float magnitude = float_of(bits_of(number) & MAGNITUDE);
    return number != 0.0f && !(magnitude >= LEAST && magnitude < MOST);
}

/* where column k of x lies, in 128 columns: first those whose codes are looked up first */
INLINE int64_t place(int64_t k, const int64_t codes)
{
    return k / 128 * 128 + k % codes * (128 / codes) + k % 128 / codes;
}

/* whether all but negative numbers and NaN are those of E4M3: halves with a smaller exponent */
static int are_e4m3(const float *values)
{
    int same = 1;
    for (uint32_t code = 0; same && code < 0x7F; code++)
        same = values[code] == from_float16((uint16_t)(code << 7)) * 256.0f;
    return same;
}

/* the scales of SPAN columns; of E4M3, NaN and what a negative code means are in the table only */
INLINE __m512 scales_of(const stored_t *p, const int e4m3, const uint8_t *codes)
{
    const __m128i bytes = p->block_columns == 16 ? _mm_loadu_si128((const __m128i *)codes)
                                                 : _mm_loadl_epi64((const __m128i *)codes);
    if (e4m3 && !_mm_cmpge_epu8_mask(bytes, _mm_set1_epi8(0x7F))) {
        const __m256i halves = _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 7);
        return _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256.0f));
    }
    return _mm512_i32gather_ps(_mm512_cvtepu8_epi32(bytes), p->scale_values, 4);
}

/* SPAN columns of one row of weights with `rows` rows of x, of which `at` is the first number. The low
 * four bits of words are looked up (the fifth does not matter, the table repeats itself), then the next. */
TARGET INLINE void bf16_columns(const lookup_t *t, const uint8_t *codes, __m512 scales, int64_t at,
                                const int rows, __m512 *sums)
{
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
        const __m512i words = _mm512_loadu_si512(codes + 64 * j);
        const __m512 scale = _mm512_permutexvar_ps(t->lanes[j], scales);
        __m512bh numbers[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            numbers[i] = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4 * i), t->table);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            const uint16_t *x = (const uint16_t *)t->x + r * t->padded + at + 128 * j;
            __m512 part = _mm512_setzero_ps();
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++)
                part = _mm512_dpbf16_ps(part, numbers[i], (__m512bh)_mm512_loadu_si512(x + 32 * i));
            sums[r] = _mm512_fmadd_ps(part, scale, sums[r]);
        }
    }
}

TARGET INLINE void int8_columns(const lookup_t *t, const uint8_t *codes, __m512 scales, int64_t at,
                                const int rows, __m512 *sums)
{
    const __m512i nibble = _mm512_set1_epi8(15);
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
        const __m512i bytes = _mm512_loadu_si512(codes + 64 * j);
        const __m512 scale = _mm512_permutexvar_ps(t->lanes[j], scales);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), nibble);
        const __m512i low = _mm512_shuffle_epi8(t->table, _mm512_and_si512(bytes, nibble));
        const __m512i high = _mm512_shuffle_epi8(t->table, odd);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            const int64_t first = r * t->padded + at + 128 * j;
            const int8_t *x = (const int8_t *)t->x + first;
            __m512i whole = _mm512_loadu_si512(t->sums + first / 8);
            whole = _mm512_dpbusd_epi32(whole, low, _mm512_loadu_si512(x));
            whole = _mm512_dpbusd_epi32(whole, high, _mm512_loadu_si512(x + 64));
            const __m512 step = _mm512_loadu_ps(t->scales + first / 8);
            const __m512 part = _mm512_mul_ps(_mm512_cvtepi32_ps(whole), step);
            sums[r] = _mm512_fmadd_ps(part, scale, sums[r]);
        }
    }
}

TARGET INLINE void columns_of(const int int8, const int e4m3, const lookup_t *t, const uint8_t *codes,
                              const uint8_t *scales, int64_t at, const int rows, __m512 *sums)
{
    const __m512 values = scales_of(&t->product->weights, e4m3, scales);
    if (int8) int8_columns(t, codes, values, at, rows, sums);
    else bf16_columns(t, codes, values, at, rows, sums);
}

/* `rows` rows of x, from `first` on, with weights n, n + apart, .., as many as there are */
TARGET INLINE void rows_of(const int int8, const int e4m3, const int rows, const lookup_t *t, int64_t first,
                           int64_t n)
{
    const product_t *q = t->product;
    const stored_t *p = &q->weights;
    const int64_t width = p->columns / 2, blocks = p->columns / p->block_columns, x = first * t->padded;
    const int64_t whole = p->columns / SPAN * SPAN, left = p->columns - whole;
    const uint8_t *codes[PLACES], *scales[PLACES];
    __m512 sums[PLACES][TOGETHER];
#pragma GCC unroll 4
    for (int s = 0; s < PLACES; s++) {
        const int64_t row = min64(n + s * t->apart, p->rows - 1);
        codes[s] = p->codes + row * width;
        scales[s] = (const uint8_t *)p->scales + row / side(p->block_rows, p->rows) * blocks;
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) sums[s][r] = _mm512_setzero_ps();
    }
    for (int64_t at = 0; at < whole; at += SPAN)
#pragma GCC unroll 4
        for (int s = 0; s < PLACES; s++) {
            const uint8_t *c = codes[s] + at / 2, *scale = scales[s] + at / p->block_columns;
            /* beyond the end of a row lies the next one of this place */
            __builtin_prefetch(c + AHEAD);
            __builtin_prefetch(c + AHEAD + 64);
            __builtin_prefetch(scale + AHEAD / 8);
            columns_of(int8, e4m3, t, c, scale, x + at, rows, sums[s]);
        }
    if (left)
#pragma GCC unroll 4
        for (int s = 0; s < PLACES; s++) {
            uint8_t c[SPAN / 2] = {0}, scale[SPAN / 16] = {0};
            memcpy(c, codes[s] + whole / 2, (size_t)left / 2);
            memcpy(scale, scales[s] + whole / p->block_columns, (size_t)(left / p->block_columns));
            columns_of(int8, e4m3, t, c, scale, x + whole, rows, sums[s]);
        }
#pragma GCC unroll 4
    for (int s = 0; s < PLACES; s++) {
        const int64_t row = n + s * t->apart;
        if (row >= p->rows) continue;
        const float alpha = q->alpha[q->alpha_per_row ? row : 0];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            q->y[(first + r) * p->rows + row] = _mm512_reduce_add_ps(sums[s][r]) * alpha;
    }
}

/* what is known when this is compiled stays in registers */
TARGET INLINE void some_rows(const int int8, const lookup_t *t, int64_t first, int64_t n)
{
    switch (min64(TOGETHER, t->product->batch - first)) {
    case 1:
        if (t->e4m3) rows_of(int8, 1, 1, t, first, n);
        else rows_of(int8, 0, 1, t, first, n);
        break;
    case 2: rows_of(int8, t->e4m3, 2, t, first, n); break;
    case 3: rows_of(int8, t->e4m3, 3, t, first, n); break;
    default: rows_of(int8, t->e4m3, 4, t, first, n);
    }
}

/* all rows of x with weights n, n + apart, .. */
TARGET static void product_of(const lookup_t *t, int64_t n)
{
    for (int64_t first = 0; first < t->product->batch; first += TOGETHER)
        if (t->product->int8) some_rows(1, t, first, n);
        else some_rows(0, t, first, n);
}

static int place_bf16(const lookup_t *t)
{
    const int64_t columns = t->product->weights.columns;
    const uint16_t *x = t->product->x;
    uint16_t *placed = t->x;
    int outside = 0;
    for (int64_t b = 0; b < t->product->batch; b++)
        for (int64_t k = 0; k < columns; k++) {
            const uint16_t number = x[b * columns + k];
            outside |= is_outside(from_bfloat16(number));
            placed[b * t->padded + place(k, 4)] = number;
        }
    return outside ? NOT_TAKEN : DONE;
}

static int place_int8(const lookup_t *t)
{
    const product_t *q = t->product;
    const int64_t columns = q->weights.columns, blocks = t->padded / ACTIVATION_BLOCK;
    float *x = malloc((size_t)(t->padded + blocks) * 4 + (size_t)t->padded);
    if (!x) return NO_MEMORY;
    float *scales = x + t->padded;
    int8_t *codes = (int8_t *)(scales + blocks), *placed = t->x;
    int outside = 0;
    for (int64_t b = 0; b < q->batch; b++) {
        widen(q->x, q->weights.dtype, b * columns, columns, x);
        activations_to_int8(x, columns, codes, scales);
        for (int64_t k = 0; k < columns; k++) {
            const int64_t lane = (b * t->padded + k) / 8;
            const float scale = scales[k / ACTIVATION_BLOCK];
            outside |= is_outside(scale * 128.0f);
            placed[b * t->padded + place(k, 2)] = codes[k];
            t->scales[lane] = 0.5f * scale;
            t->sums[lane] -= 12 * codes[k];
        }
    }
    free(x);
    return outside ? NOT_TAKEN : DONE;
}

/* whether this reads such weights and activations */
static int is_looked_up(const product_t *q)
{
    const stored_t *p = &q->weights;
    __builtin_cpu_init();
    return p->packed && p->scale_values && p->columns && p->columns % 32 == 0 &&
           p->element.mantissa_bits == 1 && p->element.min_exponent == 0 && p->element.max_code == 7 &&
           (p->block_columns == 16 || p->block_columns == 32) &&
           (q->int8 ? __builtin_cpu_supports("avx512vnni")
                    : p->dtype == BFLOAT16 && __builtin_cpu_supports("avx512bf16"));
}

/* DONE, NO_MEMORY or NOT_TAKEN */
static int looked_up_product(const product_t *q)
{
    const stored_t *p = &q->weights;
    if (!is_looked_up(q)) return NOT_TAKEN;
    lookup_t t = {.product = q, .e4m3 = are_e4m3(p->scale_values)};
    t.apart = ceil_div(p->rows, PLACES);
    t.padded = round_up(p->columns, SPAN);
    uint16_t words[32];
    uint8_t bytes[64];
    for (uint32_t c = 0; c < 64; c++) {
        const float number = number_of(c & 15, p->element, 0);
        words[c & 31] = to_bfloat16(number);
        bytes[c] = (uint8_t)(int32_t)(2.0f * number + 12.0f);
    }
    t.table = q->int8 ? _mm512_loadu_si512(bytes) : _mm512_loadu_si512(words);
    for (int j = 0; j < 2; j++) {
        int32_t which[16];
        for (int i = 0; i < 16; i++) which[i] = (128 * j + 8 * i) / (int32_t)p->block_columns;
        t.lanes[j] = _mm512_loadu_si512(which);
    }
    /* 64 bytes are read at a time, of one line each */
    const int64_t numbers = q->batch * t.padded;
    t.x = aligned_alloc(64, (size_t)numbers * 2);
    if (!t.x) return NO_MEMORY;
    memset(t.x, 0, (size_t)numbers * 2);
    t.scales = (float *)((int8_t *)t.x + numbers);
    t.sums = (int32_t *)(t.scales + numbers / 8);
    const int status = q->int8 ? place_int8(&t) : place_bf16(&t);
    if (status == DONE)
#pragma omp parallel num_threads(p->threads) if (p->threads > 1)
    {
        const fp_state_t state = keep_denormals();
#pragma omp for schedule(static)
        for (int64_t n = 0; n < t.apart; n++) product_of(&t, n);
        restore(state);
    }
    free(t.x);
    return status;
}

#undef TARGET
#undef AHEAD
#undef LEAST
#undef MOST
#endif

#endif
