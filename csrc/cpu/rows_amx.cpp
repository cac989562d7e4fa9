// The kernels for x86-64 processors with AVX-512, its products of pairs of bfloat16, and AMX's of tiles of such pairs.

#define DECOMPX_LEVEL amx
#define DECOMPX_FEATURES "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16"
#define DECOMPX_PAIRS
#define DECOMPX_TILES
#include "rows_avx512_impl.h"
