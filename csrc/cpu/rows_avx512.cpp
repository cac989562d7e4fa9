// The kernels for x86-64 processors with AVX-512 (F, BW, DQ and VL). With DECOMPX_LOWERED the compiler makes of their
// registers of 16 numbers two of AVX2, with the same roundings, so that their tests can run on other processors.

#if defined(__x86_64__)

#if defined(DECOMPX_LOWERED)
#define DECOMPX_TARGET "avx2,fma"
#else
#define DECOMPX_TARGET "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl"
#endif

#define DECOMPX_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define DECOMPX_SELECT(set) DECOMPX_PRAGMA(clang attribute push(__attribute__((target(set))), apply_to = function))
#else
#define DECOMPX_SELECT(set) DECOMPX_PRAGMA(GCC target(set))
#endif
DECOMPX_SELECT(DECOMPX_TARGET)

#define DECOMPX_LEVEL avx512
#define DECOMPX_FLOATS 16
#include "rows_impl.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
