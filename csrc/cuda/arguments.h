// What the launchers take: plain data, so that C, ctypes and the PyTorch binding can all fill it in.
//
// Strides are in numbers, not bytes. A tensor that is not there has `data == nullptr`.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum DecompxDtype { DECOMPX_FLOAT32 = 0, DECOMPX_BFLOAT16 = 1, DECOMPX_FLOAT16 = 2, DECOMPX_FLOAT64 = 3 };
enum DecompxRule { DECOMPX_ABSDOT = 0, DECOMPX_DOT = 1, DECOMPX_EQUAL = 2, DECOMPX_CLS = 3, DECOMPX_NONE = 4 };
enum DecompxPrecision { DECOMPX_IEEE = 0, DECOMPX_TF32 = 1, DECOMPX_TF32X3 = 2 };
// What a launcher returns besides the codes of the CUDA runtime, which are not negative.
enum DecompxStatus { DECOMPX_OK = 0, DECOMPX_BAD_DTYPE = -1, DECOMPX_TOO_LARGE = -2 };

// What a launch may use. `clusters`: whether blocks can wait for one another (compute capability 9.0 and later).
typedef struct {
    int32_t multiprocessors;
    int32_t shared_bytes;
    int32_t clusters;
} DecompxDevice;

// One vector [d] per position (b, i), or one for all (both strides 0).
typedef struct {
    const void* data;
    int64_t stride_b, stride_i;
    int32_t dtype;
} DecompxVector;

// A state [b, i, k, d] whose last axis is contiguous.
typedef struct {
    void* data;
    int64_t stride_b, stride_i, stride_k;
} DecompxState;

// layernorm:  x <- (x - mean) gain / scale + omega bias                (`gain` is the weight)
// bias_split: x <- x + residual + omega bias
// activation: x <- gain (x + omega bias) + omega' intercept            (`gain` is the slope)
typedef struct {
    DecompxState x, residual;
    DecompxVector scale;  // [b, i]: one number per position
    DecompxVector gain, bias, intercept;
    float* workspace;  // 4 b i k numbers
    int64_t n_b, n_i, n_k, n_d;
    int32_t dtype, rule, centre, share_after;
    DecompxDevice device;
} DecompxRowArguments;

// out[b, i, k, h, v] = sum_j alpha[b, h, i, j] p[b, j, k, h / group, v]
typedef struct {
    void* out;
    const void* alpha;
    const void* p;
    int64_t out_strides[4];    // b, i, k, h
    int64_t alpha_strides[4];  // b, h, i, j
    int64_t p_strides[4];      // b, j, k, g
    int64_t n_b, n_h, n_i, n_j, n_k, n_v, group;
    int64_t offset, window;  // window 0: none
    int32_t causal, dtype, precision;
    DecompxDevice device;
} DecompxMixingArguments;

// `stream` is a cudaStream_t.
int decompx_layernorm(const DecompxRowArguments* arguments, void* stream);
int decompx_bias_split(const DecompxRowArguments* arguments, void* stream);
int decompx_activation(const DecompxRowArguments* arguments, void* stream);
int decompx_mixing(const DecompxMixingArguments* arguments, void* stream);
// What a code that is not DECOMPX_OK means.
const char* decompx_status_text(int status);

#ifdef __cplusplus
}
#endif
