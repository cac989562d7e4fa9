// The kernels for the features of AVX-512 that the file that includes this names in DECOMPX_FEATURES. With
// DECOMPX_LOWERED the compiler makes of their registers of 16 numbers two of AVX2, with the same roundings, of products
// of pairs two products one after the other, and of tiles arrays, so that their tests can run on other processors.

#if defined(__x86_64__)

#if defined(DECOMPX_LOWERED)
#define DECOMPX_TARGET "avx2,fma"
#else
#define DECOMPX_TARGET "avx2,fma," DECOMPX_FEATURES
#endif

#define DECOMPX_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define DECOMPX_SELECT(set) DECOMPX_PRAGMA(clang attribute push(__attribute__((target(set))), apply_to = function))
#else
#define DECOMPX_SELECT(set) DECOMPX_PRAGMA(GCC target(set))
#endif
DECOMPX_SELECT(DECOMPX_TARGET)

#define DECOMPX_FLOATS 16
#include "rows_impl.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
