// The kernels for x86-64 processors with AVX-512 (F, BW, DQ and VL).

#define DECOMPX_LEVEL avx512
#define DECOMPX_FEATURES "avx512f,avx512bw,avx512dq,avx512vl"
#include "rows_avx512_impl.h"
