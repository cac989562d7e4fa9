// Takes the place of the CUDA half of device.cuh, so that the kernels run on a CPU and are tested there.
//
// Every thread of a cluster is a fiber; a fiber runs until it waits for others. What a GPU leaves to luck is an error
// here, or shows in the numbers:
// - threads that wait at different places, or end while others of their warp or block wait, are an error;
// - an access that is not aligned to its size is an error, an asynchronous copy outside shared memory too;
// - shared memory begins as NaN, ends at a page that may not be touched, and so do the buffers of the tests;
// - an asynchronous copy happens at the last moment allowed, when it is waited for, and leaves NaN until then;
// - fibers run in the order asked for, forwards or backwards: what depends on it lacks a barrier.
//
// Matrix products follow the fragment layouts of the PTX ISA, with sums in float32 one after the other, where the
// hardware rounds differently. Time, registers and the order of memory accesses between blocks are not emulated.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define DEVICE inline
#define __global__
#define __host__
#define __device__
#define __grid_constant__
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

namespace emulation {

extern dim3 thread_index, block_index, grid_size;
// Of states, in accesses of 16 bytes.
extern int64_t bytes_read, bytes_written;

[[noreturn]] void fail(const char* why);
const char* what_failed();

// Runs `body` once for every thread of the grid.
int run(void (*body)(const void*), const void* arguments, dim3 grid, int threads, int shared_bytes, int cluster);

unsigned char* shared_memory();
void check_shared(const void* at, size_t bytes);
void wait_for_block(int line);
void wait_for_cluster(int line);
// Waits until all lanes of the warp are here; then `compute` sees what each has brought.
void with_warp(int line, void* brought, void (*compute)(void* (&)[32]));
void copy_later(void* to, const void* from, int bytes);
void close_copy_group();
void finish_copies(int pending_groups);

float half_to_float(uint16_t bits);
uint16_t float_to_half(float x);

template <typename T>
void check_aligned(const T* at) {
    if (reinterpret_cast<uintptr_t>(at) % sizeof(T)) fail("an access is not aligned to its size");
}

}  // namespace emulation

#define threadIdx emulation::thread_index
#define blockIdx emulation::block_index
#define gridDim emulation::grid_size

inline float bits_to_float(uint32_t bits) {
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
}
inline uint32_t float_to_bits(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    return bits;
}

inline float to_float(float x) { return x; }
inline float to_float(BFloat16 x) { return bits_to_float(uint32_t(x.bits) << 16); }
inline float to_float(Float16 x) { return emulation::half_to_float(x.bits); }

template <typename T>
T from_float(float x);
template <>
inline float from_float<float>(float x) { return x; }
template <>
inline BFloat16 from_float<BFloat16>(float x) {
    const uint32_t bits = float_to_bits(x);
    if (x != x) return {0x7fff};
    return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};  // to nearest, ties to even
}
template <>
inline Float16 from_float<Float16>(float x) { return {emulation::float_to_half(x)}; }

inline Packed load_packed_cached(const void* at) {
    emulation::check_aligned(static_cast<const Packed*>(at));
    return *static_cast<const Packed*>(at);
}
inline Packed load_packed(const void* at) {
    emulation::bytes_read += sizeof(Packed);
    return load_packed_cached(at);
}
inline void store_packed(void* at, Packed v) {
    emulation::check_aligned(static_cast<const Packed*>(at));
    emulation::bytes_written += sizeof(Packed);
    *static_cast<Packed*>(at) = v;
}
template <typename T>
T load_one(const T* at) {
    emulation::check_aligned(at);
    return *at;
}
template <typename T>
void store_one(T* at, T value) {
    emulation::check_aligned(at);
    *at = value;
}
inline float load_shared_result(const float* at) { return load_one(at); }

inline void block_barrier(int line = __builtin_LINE()) { emulation::wait_for_block(line); }
inline void cluster_barrier(int line = __builtin_LINE()) { emulation::wait_for_cluster(line); }
inline void warp_barrier(int line = __builtin_LINE()) {
    emulation::with_warp(line, nullptr, [](void* (&)[32]) {});
}

inline float shuffle_xor(float x, int lanes, int line = __builtin_LINE()) {
    struct Brought {
        float x, result;
        int lanes;
    } mine = {x, 0.0f, lanes};
    emulation::with_warp(line, &mine, [](void* (&all)[32]) {
        for (int lane = 0; lane < 32; ++lane) {
            Brought* brought = static_cast<Brought*>(all[lane]);
            brought->result = static_cast<Brought*>(all[lane ^ brought->lanes])->x;
        }
    });
    return mine.result;
}

inline unsigned char* dynamic_shared() { return emulation::shared_memory(); }

inline void copy_async(void* to, const void* from, int bytes) { emulation::copy_later(to, from, bytes); }
inline void copy_async_commit() { emulation::close_copy_group(); }
template <int PENDING>
void copy_async_wait() {
    emulation::finish_copies(PENDING);
}

// Lane l gets two neighbours of row l / 4 of every matrix, or of column l / 4 if transposed.
struct MatrixLoad {
    const void* row;
    uint32_t* out;
};
template <bool TRANSPOSED>
void load_matrices_of_warp(void* (&all)[32]) {
    for (int matrix = 0; matrix < 4; ++matrix) {
        const uint16_t* rows[8];
        for (int n = 0; n < 8; ++n) {
            const void* row = static_cast<MatrixLoad*>(all[8 * matrix + n])->row;
            emulation::check_shared(row, 16);
            emulation::check_aligned(static_cast<const Packed*>(row));
            rows[n] = static_cast<const uint16_t*>(row);
        }
        for (int lane = 0; lane < 32; ++lane) {
            const int outer = lane / 4, inner = lane % 4 * 2;
            const uint16_t low = TRANSPOSED ? rows[inner][outer] : rows[outer][inner];
            const uint16_t high = TRANSPOSED ? rows[inner + 1][outer] : rows[outer][inner + 1];
            static_cast<MatrixLoad*>(all[lane])->out[matrix] = low | uint32_t(high) << 16;
        }
    }
}
inline void load_matrices(uint32_t (&out)[4], const void* row, int line = __builtin_LINE()) {
    MatrixLoad mine = {row, out};
    emulation::with_warp(line, &mine, load_matrices_of_warp<false>);
}
inline void load_matrices_transposed(uint32_t (&out)[4], const void* row, int line = __builtin_LINE()) {
    MatrixLoad mine = {row, out};
    emulation::with_warp(line, &mine, load_matrices_of_warp<true>);
}

struct MatrixProduct {
    float* c;
    const uint32_t* a;
    uint32_t b[2];
};

// c += a b from what the lanes brought: a [16, depth], b [depth, 8]; `a_at` and `b_at` read a number of a fragment.
template <int DEPTH, class ReadA, class ReadB>
void multiply_of_warp(void* (&all)[32], ReadA read_a, ReadB read_b) {
    float a[16][DEPTH], b[DEPTH][8];
    for (int row = 0; row < 16; ++row) {
        for (int k = 0; k < DEPTH; ++k) a[row][k] = read_a(all, row, k);
    }
    for (int k = 0; k < DEPTH; ++k) {
        for (int column = 0; column < 8; ++column) b[k][column] = read_b(all, k, column);
    }
    for (int lane = 0; lane < 32; ++lane) {
        for (int n = 0; n < 4; ++n) {
            // c0, c1: row lane / 4, columns 2 (lane % 4) and the next; c2, c3: eight rows below.
            const int row = lane / 4 + n / 2 * 8, column = lane % 4 * 2 + n % 2;
            float& c = static_cast<MatrixProduct*>(all[lane])->c[n];
            for (int k = 0; k < DEPTH; ++k) c += a[row][k] * b[k][column];
        }
    }
}

template <typename T>
void multiply_add_16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, int line = __builtin_LINE()) {
    MatrixProduct mine = {c, a, {b0, b1}};
    emulation::with_warp(line, &mine, [](void* (&all)[32]) {
        // Register n of a holds rows lane / 4 + 8 (n % 2), columns 2 (lane % 4) + 8 (n / 2) and the next.
        auto read_a = [](void* (&lanes)[32], int row, int k) {
            const MatrixProduct* of = static_cast<MatrixProduct*>(lanes[row % 8 * 4 + k % 8 / 2]);
            return to_float(T{uint16_t(of->a[row / 8 + k / 8 * 2] >> (k % 2 * 16))});
        };
        // Register n of b holds rows 2 (lane % 4) + 8 n and the next, column lane / 4.
        auto read_b = [](void* (&lanes)[32], int k, int column) {
            const MatrixProduct* of = static_cast<MatrixProduct*>(lanes[column * 4 + k % 8 / 2]);
            return to_float(T{uint16_t(of->b[k / 8] >> (k % 2 * 16))});
        };
        multiply_of_warp<16>(all, read_a, read_b);
    });
}

// To nearest, ties away from zero.
inline uint32_t to_tf32(float x) {
    const uint32_t bits = float_to_bits(x);
    return (bits & 0x7f800000) == 0x7f800000 ? bits : (bits + 0x1000) & 0xffffe000;
}
inline void multiply_add_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                              int line = __builtin_LINE()) {
    MatrixProduct mine = {c, a, {b0, b1}};
    emulation::with_warp(line, &mine, [](void* (&all)[32]) {
        // Register n of a holds row lane / 4 + 8 (n % 2), column lane % 4 + 4 (n / 2).
        auto read_a = [](void* (&lanes)[32], int row, int k) {
            const MatrixProduct* of = static_cast<MatrixProduct*>(lanes[row % 8 * 4 + k % 4]);
            return bits_to_float(of->a[row / 8 + k / 4 * 2] & 0xffffe000);
        };
        auto read_b = [](void* (&lanes)[32], int k, int column) {
            const MatrixProduct* of = static_cast<MatrixProduct*>(lanes[column * 4 + k % 4]);
            return bits_to_float(of->b[k / 4] & 0xffffe000);
        };
        multiply_of_warp<8>(all, read_a, read_b);
    });
}

template <typename Arguments>
struct Launch {
    void (*kernel)(Arguments);
    const Arguments* arguments;
};

template <typename Arguments>
int launch_kernel(void (*kernel)(Arguments), dim3 grid, int threads, int shared_bytes, int cluster, void*,
                  const Arguments& arguments) {
    Launch<Arguments> launch = {kernel, &arguments};
    auto body = [](const void* of) {
        const auto* it = static_cast<const Launch<Arguments>*>(of);
        it->kernel(*it->arguments);
    };
    return emulation::run(body, &launch, grid, threads, shared_bytes, cluster);
}
inline const char* runtime_error_text(int) { return emulation::what_failed(); }
