// The kernels for x86-64 processors with AVX-512 (F, BW, DQ and VL). With DECOMPX_LOWERED the compiler makes of their
// registers of 16 numbers what the processor has, so that their tests can run on any.

#if defined(__x86_64__)

#if defined(DECOMPX_LOWERED)
#elif defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")
#endif

#define DECOMPX_LEVEL avx512
#define DECOMPX_FLOATS 16
#include "rows_impl.h"

#if defined(__clang__) && !defined(DECOMPX_LOWERED)
#pragma clang attribute pop
#endif

#endif
