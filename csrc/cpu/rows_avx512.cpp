// The kernels for x86-64 processors with AVX-512 (F, BW, DQ and VL).

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")
#endif

#define DECOMPX_LEVEL avx512
#define DECOMPX_FLOATS 16
#include "rows_impl.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
