// The kernels for x86-64 processors with AVX-512 and its products of pairs of bfloat16.

#define DECOMPX_LEVEL avx512_bf16
#define DECOMPX_FEATURES "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16"
#define DECOMPX_PAIRS
#include "rows_avx512_impl.h"
