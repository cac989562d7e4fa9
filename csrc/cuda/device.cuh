// What the kernels need of the device: types, 16-byte accesses, sums over threads, asynchronous copies, matrix units.
//
// The kernels use nothing of CUDA but what is here. So the same source runs on a CPU: with DECOMPX_EMULATED,
// emulation/emulation.h takes the place of the CUDA half of this file.
#pragma once

#include <stdint.h>

#include "arguments.h"

constexpr int WARP = 32;

struct BFloat16 {
    uint16_t bits;
};
struct Float16 {
    uint16_t bits;
};
// 16 bytes as they lie in memory.
struct alignas(16) Packed {
    uint32_t words[4];
};

template <typename T>
constexpr int VECTOR = sizeof(Packed) / sizeof(T);  // numbers in 16 bytes

#ifdef DECOMPX_EMULATED
#include "emulation/emulation.h"
#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define DEVICE __device__ __forceinline__

DEVICE float bits_to_float(uint32_t bits) { return __uint_as_float(bits); }
DEVICE uint32_t float_to_bits(float x) { return __float_as_uint(x); }
DEVICE float to_float(float x) { return x; }
DEVICE float to_float(BFloat16 x) { return __uint_as_float(uint32_t(x.bits) << 16); }
DEVICE float to_float(Float16 x) { return __half2float(__ushort_as_half(x.bits)); }

template <typename T>
DEVICE T from_float(float x);
template <>
DEVICE float from_float<float>(float x) { return x; }
template <>
DEVICE BFloat16 from_float<BFloat16>(float x) { return {__bfloat16_as_ushort(__float2bfloat16_rn(x))}; }
template <>
DEVICE Float16 from_float<Float16>(float x) { return {__half_as_ushort(__float2half_rn(x))}; }

// The state is read past the first-level cache, which is left to what all sources of a position share.
DEVICE Packed load_packed(const void* at) {
    uint4 v = __ldcg(static_cast<const uint4*>(at));
    return {{v.x, v.y, v.z, v.w}};
}
DEVICE Packed load_packed_cached(const void* at) {
    uint4 v = *static_cast<const uint4*>(at);
    return {{v.x, v.y, v.z, v.w}};
}
// Nothing reads the result again soon.
DEVICE void store_packed(void* at, Packed v) {
    __stcs(static_cast<uint4*>(at), make_uint4(v.words[0], v.words[1], v.words[2], v.words[3]));
}
template <typename T>
DEVICE T load_one(const T* at) { return *at; }
template <typename T>
DEVICE void store_one(T* at, T value) { *at = value; }
// What another block may have written.
DEVICE float load_shared_result(const float* at) { return __ldcg(at); }

DEVICE void block_barrier() { __syncthreads(); }
DEVICE void warp_barrier() { __syncwarp(); }
DEVICE float shuffle_xor(float x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }

// All threads of the cluster wait for one another, and see what each wrote to memory before.
DEVICE void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __trap();  // the launcher asks for clusters from 9.0 on only
#endif
}

DEVICE unsigned char* dynamic_shared() {
    extern __shared__ __align__(16) unsigned char shared[];
    return shared;
}
DEVICE uint32_t shared_address(const void* at) { return static_cast<uint32_t>(__cvta_generic_to_shared(at)); }

// Copies `bytes` (at most 16) from memory to shared memory, and fills up to 16 with zeros; does not wait.
DEVICE void copy_async(void* to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
                 : "memory");
}
DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
DEVICE void copy_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

// Four 8 x 8 matrices of 16-bit numbers; lane l names row l % 8 of matrix l / 8.
DEVICE void load_matrices(uint32_t (&out)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
}
DEVICE void load_matrices_transposed(uint32_t (&out)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// c += a b with a 16 x 16, b 16 x 8, c 16 x 8 (PTX ISA, "Matrix Fragments for mma.m16n8k16").
template <typename T>
DEVICE void multiply_add_16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
DEVICE void multiply_add_16<BFloat16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
DEVICE void multiply_add_16<Float16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The nearest number with a mantissa of 10 bits, as the bits of a float.
DEVICE uint32_t to_tf32(float x) {
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}
// c += a b with a 16 x 8, b 8 x 8, c 16 x 8 (PTX ISA, "Matrix Fragments for mma.m16n8k8").
DEVICE void multiply_add_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Launches `kernel` with blocks of `threads`, in clusters of `cluster` blocks along y; returns the runtime's code.
template <typename Arguments>
int launch_kernel(void (*kernel)(Arguments), dim3 grid, int threads, int shared_bytes, int cluster, void* stream,
                  const Arguments& arguments) {
    cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (status != cudaSuccess) return status;
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = 1;
    attribute.val.clusterDim.y = cluster;
    attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &attribute;
    config.numAttrs = cluster > 1 ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, arguments);
}
inline const char* runtime_error_text(int status) { return cudaGetErrorString(static_cast<cudaError_t>(status)); }

#endif  // DECOMPX_EMULATED

// Two numbers of 16 bits in a word, or one of 32.
template <typename T>
DEVICE void unpack(Packed packed, float (&out)[VECTOR<T>]) {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int n = 0; n < VECTOR<T>; ++n) out[n] = bits_to_float(packed.words[n]);
    } else {
#pragma unroll
        for (int n = 0; n < VECTOR<T>; ++n) out[n] = to_float(T{uint16_t(packed.words[n / 2] >> (n % 2 * 16))});
    }
}

template <typename T>
DEVICE Packed pack(const float (&in)[VECTOR<T>]) {
    Packed packed;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        if constexpr (sizeof(T) == 4) {
            packed.words[n] = float_to_bits(in[n]);
        } else {
            packed.words[n] = from_float<T>(in[2 * n]).bits | uint32_t(from_float<T>(in[2 * n + 1]).bits) << 16;
        }
    }
    return packed;
}

DEVICE float warp_sum(float x) {
#pragma unroll
    for (int lanes = WARP / 2; lanes > 0; lanes /= 2) x += shuffle_xor(x, lanes);
    return x;
}
