/* Which of the compiled instruction sets this processor has: 2, 3 or 4 for x86-64-v2 to v4, 1 where
 * there is only the plain version. Also whose sources the library was made from. */
#define VISIBLE __attribute__((visibility("default")))
#ifndef SOURCES
#define SOURCES ""
#endif

VISIBLE const char fp4lab_sources[] = SOURCES;

VISIBLE int fp4lab_level(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("popcnt")) return 1;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("bmi2"))
        return 2;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return 3;
    return 4;
#else
    return 1;
#endif
}
