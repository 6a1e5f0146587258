/* What all C operators share: bits of floats, 16-bit types, denormals, names that carry the ISA.
 *
 * library.c includes every operator once per instruction set, compiled for x86-64-v2, v3 and v4 or,
 * elsewhere, once for the machine at hand; an exported name ends in the set it was compiled for.
 * Compile with -ffp-contract=off and never with -ffast-math: every operation rounds as written.
 */
#ifndef FP4LAB_COMMON_H
#define FP4LAB_COMMON_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define JOIN_(name, isa) fp4lab_##name##_##isa
#define JOIN(name, isa) JOIN_(name, isa)
/* an exported function */
#define EXPORT(name) __attribute__((visibility("default"))) JOIN(name, ISA)
#define INLINE static inline __attribute__((always_inline))

#define FLOAT_MAX 3.4028234663852886e38f
#define SIGN 0x80000000u
#define MAGNITUDE 0x7FFFFFFFu
#define INFINITY_BITS 0x7F800000u
/* results hold this NaN and no other: the sign of a computed one depends on the processor */
#define THE_NAN float_of(0x7FC00000u)

enum { FLOAT32, BFLOAT16, FLOAT16 };

INLINE uint32_t bits_of(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
INLINE float float_of(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
INLINE float at_most(float x, float limit) { return x > limit ? limit : x; } /* keeps NaN */
INLINE int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
INLINE int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

/* bytes of a number */
INLINE int64_t size_of(int32_t dtype) { return dtype == FLOAT32 ? 4 : 2; }
/* rows or columns of a block; 0 is the whole extent */
INLINE int64_t side(int64_t block, int64_t extent) { return block ? block : max64(extent, 1); }

INLINE float from_bfloat16(uint16_t b) { return float_of((uint32_t)b << 16); }

/* to the nearest, of what is no NaN but THE_NAN */
INLINE uint16_t number_to_bfloat16(float f)
{
    const uint32_t u = bits_of(f);
    return (uint16_t)((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

INLINE uint16_t to_bfloat16(float f)
{
    return (bits_of(f) & MAGNITUDE) > INFINITY_BITS ? 0x7FC0u : number_to_bfloat16(f);
}

/* IEEE half, by exponent arithmetic in float32 that is exact for subnormals too */
INLINE float from_float16(uint16_t h)
{
    uint32_t magnitude = (uint32_t)(h & 0x7FFFu) << 13;
    float value = float_of(magnitude + (112u << 23));
    float subnormal = float_of(magnitude + (113u << 23)) - float_of(113u << 23);
    float special = float_of(magnitude + (224u << 23));
    value = magnitude < (1u << 23) ? subnormal : value;
    value = magnitude >= (31u << 23) ? special : value;
    return float_of(bits_of(value) | (uint32_t)(h & 0x8000u) << 16);
}

INLINE uint16_t to_float16(float f)
{
    uint32_t u = bits_of(f), a = u & MAGNITUDE, sign = (u >> 16) & 0x8000u;
    uint32_t normal = ((a + 0xFFFu + ((a >> 13) & 1u)) >> 13) - (112u << 10);
    /* adding 2^-1 (spacing 2^-24) rounds what is below the smallest normal number */
    uint32_t subnormal = bits_of(float_of(a) + 0.5f) - bits_of(0.5f);
    uint32_t code = a < (113u << 23) ? subnormal : normal;
    code = a >= 0x477FF000u ? 0x7C00u : code; /* from 65520 on */
    return (uint16_t)(a > INFINITY_BITS ? 0x7E00u : code | sign);
}

/* A caller may have asked for denormals to be flushed (torch.set_flush_denormal); the formats need
 * them. Each thread has a register of its own. */
#if defined(__x86_64__)
typedef uint32_t fp_state_t;
INLINE fp_state_t keep_denormals(void)
{
    fp_state_t state = _mm_getcsr();
    _mm_setcsr(state & ~0x8040u);
    return state;
}
INLINE void restore(fp_state_t state) { _mm_setcsr(state); }
#elif defined(__aarch64__)
typedef uint64_t fp_state_t;
INLINE fp_state_t keep_denormals(void)
{
    fp_state_t state;
    __asm__ volatile("mrs %0, fpcr" : "=r"(state));
    __asm__ volatile("msr fpcr, %0" : : "r"(state & ~(1ull << 24)));
    return state;
}
INLINE void restore(fp_state_t state) { __asm__ volatile("msr fpcr, %0" : : "r"(state)); }
#else
typedef int fp_state_t;
INLINE fp_state_t keep_denormals(void) { return 0; }
INLINE void restore(fp_state_t state) { (void)state; }
#endif

/* Asks for large pages under new memory that is about to be written: the first touch of every small
 * one costs more than what is written to it. */
static void expect_writes(void *memory, int64_t bytes)
{
#if defined(__linux__)
    const uintptr_t page = 1u << 21, begin = ((uintptr_t)memory + page - 1) / page * page;
    const uintptr_t end = ((uintptr_t)memory + (uintptr_t)bytes) / page * page;
    if (memory && bytes >= 4 * (int64_t)page) madvise((void *)begin, end - begin, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}

/* number i of a row, whose dtype is a constant where this is inlined; float16 rows are converted as
 * wholes; the only NaN that is written is THE_NAN, which this rounding leaves as it is */
INLINE float number_at(const void *x, const int dtype, int64_t i)
{
    return dtype == FLOAT32 ? ((const float *)x)[i] : from_bfloat16(((const uint16_t *)x)[i]);
}

INLINE void put_at(void *y, const int dtype, int64_t i, float f)
{
    if (dtype == FLOAT32) ((float *)y)[i] = f;
    else ((uint16_t *)y)[i] = number_to_bfloat16(f);
}

/* rows of 16-bit numbers to float32 and back */
static void widen(const void *x, int32_t dtype, int64_t begin, int64_t count, float *restrict y)
{
    const uint16_t *restrict in = (const uint16_t *)x + begin;
    if (dtype == FLOAT32) memcpy(y, (const float *)x + begin, (size_t)count * 4);
    else if (dtype == BFLOAT16) for (int64_t i = 0; i < count; i++) y[i] = from_bfloat16(in[i]);
    else for (int64_t i = 0; i < count; i++) y[i] = from_float16(in[i]);
}

static void narrow(const float *restrict x, int32_t dtype, int64_t count, uint16_t *restrict y)
{
    if (dtype == BFLOAT16) for (int64_t i = 0; i < count; i++) y[i] = to_bfloat16(x[i]);
    else for (int64_t i = 0; i < count; i++) y[i] = to_float16(x[i]);
}

#endif
