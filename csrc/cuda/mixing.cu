// Attention weights applied to the decomposed values: out[i, k, h, v] = sum_j alpha[h, i, j] p[j, k, g(h), v].
//
// For one head this is a product of alpha [i, j] with p [j, (k v)], where the columns (k v) are runs of one head's size
// in the natural layout [b, j, k, (g v)]. A tile of columns is found from the flat index, so no head is copied out and
// a tile may span sources. Blocks of the same columns follow each other: a panel of p comes from memory once, and alpha
// from the L2 cache. Numbers of 2 bytes and tf32 are multiplied on the tensor cores by mma.sync, which every
// architecture from 8.0 on has; `ieee` products of float32 are ordinary multiplications.
#include "device.cuh"

// How numbers are multiplied.
enum class Mode { HALF, TF32, TF32X3, IEEE };

// A tile of the result [ROWS, COLUMNS], computed by THREADS threads; one step sums over DEPTH keys. Rows of tiles in
// shared memory are longer by 16 bytes (columns of 4-byte numbers by 32), so that the rows that a warp reads at once
// lie in different banks.
template <typename T, int ROWS_, int WARPS_DOWN_, int WARPS_ACROSS_>
struct Tiles {
    static constexpr int ROWS = ROWS_, COLUMNS = 128, DEPTH = 64 / sizeof(T);
    static constexpr int WARPS_DOWN = WARPS_DOWN_, WARPS_ACROSS = WARPS_ACROSS_;
    static constexpr int THREADS = WARP * WARPS_DOWN * WARPS_ACROSS;
    static constexpr int A_STRIDE = DEPTH + 16 / sizeof(T), B_STRIDE = COLUMNS + 8;
    static constexpr int STAGE = ROWS * A_STRIDE + DEPTH * B_STRIDE;  // numbers of one step
    // Three steps ahead and the one in use take 74 KB for the large tile: two blocks on a multiprocessor of 8.0, 9.0
    // and 10.0, one on 12.0.
    static constexpr int STAGES = 4;
    static constexpr int SHARED_BYTES = STAGES * STAGE * int(sizeof(T));
    static_assert(ROWS * B_STRIDE <= STAGES * STAGE, "the result goes through the memory of the operands");
    static_assert(SHARED_BYTES <= 99 << 10, "12.0 has no more");
};

// 128 rows: each number that is read meets 128 multiplications, enough for the tensor cores of these devices.
template <typename T>
using ManyRows = Tiles<T, 128, 4, 2>;
// The last layer, and short blocks of rows: little is computed for rows that are not there.
template <typename T>
using FewRows = Tiles<T, 32, 1, 4>;
constexpr int FEW_ROWS = 32;

struct MixingTask {
    DecompxMixingArguments a;
    int alpha_aligned, p_aligned, out_aligned;  // whether runs of numbers begin at multiples of 16 bytes
};

template <typename T, class Tile, Mode MODE>
struct MixingWorker {
    static constexpr int ROWS = Tile::ROWS, COLUMNS = Tile::COLUMNS, DEPTH = Tile::DEPTH, THREADS = Tile::THREADS;
    static constexpr int A_STRIDE = Tile::A_STRIDE, B_STRIDE = Tile::B_STRIDE;
    // The part of the tile that one warp computes, and in `IEEE` mode that of one thread.
    static constexpr int WARP_ROWS = ROWS / Tile::WARPS_DOWN, WARP_COLUMNS = COLUMNS / Tile::WARPS_ACROSS;
    static constexpr int ROW_TILES = WARP_ROWS / 16, COLUMN_TILES = WARP_COLUMNS / 8;
    static constexpr int THREADS_ACROSS = 16, THREADS_DOWN = THREADS / THREADS_ACROSS;
    static constexpr int THREAD_ROWS = ROWS / THREADS_DOWN;

    const MixingTask& task;
    const DecompxMixingArguments& a;
    int64_t i_first, column_first, j_first, j_stop;
    const T *alpha, *p;
    T* out;
    T* shared;

    DEVICE explicit MixingWorker(const MixingTask& task_) : task(task_), a(task_.a) {
        const int64_t tiles_down = (a.n_i + ROWS - 1) / ROWS;
        const int64_t tiles = tiles_down * ((a.n_k * a.n_v + COLUMNS - 1) / COLUMNS);
        const int64_t head = blockIdx.x / tiles, tile = blockIdx.x % tiles;
        const int64_t i_b = head / a.n_h, i_h = head % a.n_h;
        i_first = tile % tiles_down * ROWS;
        column_first = tile / tiles_down * COLUMNS;
        alpha = static_cast<const T*>(a.alpha) + i_b * a.alpha_strides[0] + i_h * a.alpha_strides[1];
        p = static_cast<const T*>(a.p) + i_b * a.p_strides[0] + i_h / a.group * a.p_strides[3];
        out = static_cast<T*>(a.out) + i_b * a.out_strides[0] + i_h * a.out_strides[3];
        shared = reinterpret_cast<T*>(dynamic_shared());
        // Keys that no position of the tile attends are skipped.
        const int64_t i_stop = i_first + ROWS < a.n_i ? i_first + ROWS : a.n_i;
        j_first = 0;
        j_stop = a.n_j;
        if (a.causal && i_stop + a.offset < j_stop) j_stop = i_stop + a.offset;
        if (a.window) {
            if (i_stop - 1 + a.offset + a.window < j_stop) j_stop = i_stop - 1 + a.offset + a.window;
            if (i_first + a.offset - a.window + 1 > 0) j_first = (i_first + a.offset - a.window + 1) / DEPTH * DEPTH;
        }
    }

    DEVICE bool attends(int64_t i, int64_t j) const {
        const int64_t distance = i + a.offset - j;
        return (!a.causal || distance >= 0) && (!a.window || (distance < a.window && -distance < a.window));
    }
    // Whether every position of the tile attends all `DEPTH` keys from `j` on, as far as they exist.
    DEVICE bool attends_all(int64_t j) const {
        const int64_t i_last = i_first + ROWS - 1, j_last = j + DEPTH - 1;
        return (!a.causal || i_first + a.offset >= j_last) &&
               (!a.window || (i_last + a.offset - j < a.window && j_last - i_first - a.offset < a.window));
    }

    DEVICE T* a_tile(int stage) const { return shared + stage * Tile::STAGE; }
    DEVICE T* b_tile(int stage) const { return shared + stage * Tile::STAGE + ROWS * A_STRIDE; }

    // Where column c of the tile is in a row of the state, in numbers; -1 outside.
    DEVICE int64_t column_offset(int c, int64_t stride_k) const {
        const int64_t column = column_first + c;
        return column < a.n_k * a.n_v ? column / a.n_v * stride_k + column % a.n_v : -1;
    }

    // Copies are not unrolled: their addresses would take registers from the accumulators, and no copy is waited for.

    // The attention weights [ROWS, DEPTH] from key j on; zero where there are none or they do not count.
    DEVICE void load_alpha(int stage, int64_t j) const {
        T* tile = a_tile(stage);
        if (task.alpha_aligned && attends_all(j)) {
            constexpr int ACROSS = DEPTH / VECTOR<T>;
#pragma unroll 1
            for (int n = threadIdx.x; n < ROWS * ACROSS; n += THREADS) {
                const int row = n / ACROSS, column = n % ACROSS * VECTOR<T>;
                const int64_t i = i_first + row, left = a.n_j - (j + column);
                const int count = i < a.n_i && left > 0 ? int(left < VECTOR<T> ? left : VECTOR<T>) : 0;
                const T* from = count ? alpha + i * a.alpha_strides[2] + j + column : alpha;
                copy_async(tile + row * A_STRIDE + column, from, count * int(sizeof(T)));
            }
        } else {
#pragma unroll 1
            for (int n = threadIdx.x; n < ROWS * DEPTH; n += THREADS) {
                const int row = n / DEPTH, column = n % DEPTH;
                const int64_t i = i_first + row, at = j + column;
                T weight = {};
                if (i < a.n_i && at < a.n_j && attends(i, at)) {
                    weight = load_one(alpha + i * a.alpha_strides[2] + at * a.alpha_strides[3]);
                }
                tile[row * A_STRIDE + column] = weight;
            }
        }
    }

    // The values [DEPTH, COLUMNS] from key j on; zero outside.
    DEVICE void load_values(int stage, int64_t j) const {
        T* tile = b_tile(stage);
        if (task.p_aligned) {
            constexpr int ACROSS = COLUMNS / VECTOR<T>;
            static_assert(THREADS % ACROSS == 0, "a thread loads the same columns of every row");
            const int column = threadIdx.x % ACROSS * VECTOR<T>;
            const int64_t offset = column_offset(column, a.p_strides[2]);
#pragma unroll 1
            for (int row = threadIdx.x / ACROSS; row < DEPTH; row += THREADS / ACROSS) {
                const bool valid = offset >= 0 && j + row < a.n_j;
                const T* from = valid ? p + (j + row) * a.p_strides[1] + offset : p;
                copy_async(tile + row * B_STRIDE + column, from, valid ? int(sizeof(Packed)) : 0);
            }
        } else {
            static_assert(THREADS % COLUMNS == 0, "a thread loads the same column of every row");
            const int column = threadIdx.x % COLUMNS;
            const int64_t offset = column_offset(column, a.p_strides[2]);
#pragma unroll 1
            for (int row = threadIdx.x / COLUMNS; row < DEPTH; row += THREADS / COLUMNS) {
                T value = {};
                if (offset >= 0 && j + row < a.n_j) value = load_one(p + (j + row) * a.p_strides[1] + offset);
                tile[row * B_STRIDE + column] = value;
            }
        }
    }

    // ---- on the tensor cores

    static constexpr bool TENSOR = MODE != Mode::IEEE;
    // Accumulators: of the fragments of the warp, or of the rows of the thread times 8 columns.
    static constexpr int ACCUMULATORS = TENSOR ? ROW_TILES * COLUMN_TILES : THREAD_ROWS * 2;

    DEVICE int warp_row() const { return threadIdx.x / WARP / Tile::WARPS_ACROSS * WARP_ROWS; }
    DEVICE int warp_column() const { return threadIdx.x / WARP % Tile::WARPS_ACROSS * WARP_COLUMNS; }

    DEVICE void multiply_halfs(int stage, float (&acc)[ACCUMULATORS][4]) const {
        const int lane = threadIdx.x % WARP, row = lane % 16, column = lane / 16 * 8;
#pragma unroll
        for (int depth = 0; depth < DEPTH; depth += 16) {
            uint32_t weights[ROW_TILES][4];
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m) {
                load_matrices(weights[m], a_tile(stage) + (warp_row() + 16 * m + row) * A_STRIDE + depth + column);
            }
#pragma unroll
            for (int n = 0; n < COLUMN_TILES; n += 2) {
                uint32_t values[4];  // two tiles of 8 columns, both halves of the 16 keys of each
                load_matrices_transposed(values,
                                         b_tile(stage) + (depth + row) * B_STRIDE + warp_column() + 8 * n + column);
#pragma unroll
                for (int m = 0; m < ROW_TILES; ++m) {
                    multiply_add_16<T>(acc[m * COLUMN_TILES + n], weights[m], values[0], values[1]);
                    multiply_add_16<T>(acc[m * COLUMN_TILES + n + 1], weights[m], values[2], values[3]);
                }
            }
        }
    }

    // The number in tf32 and, for TF32X3, what that leaves.
    DEVICE static void split(float x, uint32_t& large, uint32_t& small) {
        large = to_tf32(x);
        if constexpr (MODE == Mode::TF32X3) small = to_tf32(x - bits_to_float(large));
    }

    DEVICE void multiply_tf32(int stage, float (&acc)[ACCUMULATORS][4]) const {
        const int lane = threadIdx.x % WARP, group = lane / 4, member = lane % 4;
#pragma unroll
        for (int depth = 0; depth < DEPTH; depth += 8) {
            uint32_t weights[ROW_TILES][4], small_weights[ROW_TILES][4];
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m) {
#pragma unroll
                for (int n = 0; n < 4; ++n) {
                    const int row = warp_row() + 16 * m + group + n % 2 * 8, column = depth + member + n / 2 * 4;
                    split(to_float(a_tile(stage)[row * A_STRIDE + column]), weights[m][n], small_weights[m][n]);
                }
            }
#pragma unroll
            for (int n = 0; n < COLUMN_TILES; ++n) {
                uint32_t values[2], small_values[2];
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int row = depth + member + 4 * half, column = warp_column() + 8 * n + group;
                    split(to_float(b_tile(stage)[row * B_STRIDE + column]), values[half], small_values[half]);
                }
#pragma unroll
                for (int m = 0; m < ROW_TILES; ++m) {
                    float(&c)[4] = acc[m * COLUMN_TILES + n];
                    if constexpr (MODE == Mode::TF32X3) {
                        multiply_add_tf32(c, small_weights[m], values[0], values[1]);
                        multiply_add_tf32(c, weights[m], small_values[0], small_values[1]);
                    }
                    multiply_add_tf32(c, weights[m], values[0], values[1]);
                }
            }
        }
    }

    // Fragments to the result's tile in shared memory.
    DEVICE void keep_fragments(const float (&acc)[ACCUMULATORS][4]) const {
        const int lane = threadIdx.x % WARP;
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
#pragma unroll
            for (int n = 0; n < COLUMN_TILES; ++n) {
#pragma unroll
                for (int part = 0; part < 4; ++part) {
                    const int row = warp_row() + 16 * m + lane / 4 + part / 2 * 8;
                    const int column = warp_column() + 8 * n + lane % 4 * 2 + part % 2;
                    shared[row * B_STRIDE + column] = from_float<T>(acc[m * COLUMN_TILES + n][part]);
                }
            }
        }
    }

    // ---- with ordinary multiplications: rows `down` + THREADS_DOWN r, columns 4 `across` + (0, 64) + 0..3

    DEVICE void multiply_ieee(int stage, float (&acc)[ACCUMULATORS][4]) const {
        const int down = threadIdx.x / THREADS_ACROSS, across = threadIdx.x % THREADS_ACROSS;
#pragma unroll 4
        for (int depth = 0; depth < DEPTH; ++depth) {
            float values[2][4];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const T* from = b_tile(stage) + depth * B_STRIDE + 4 * across + 64 * half;
                unpack<float>(*reinterpret_cast<const Packed*>(from), values[half]);
            }
#pragma unroll
            for (int r = 0; r < THREAD_ROWS; ++r) {
                const float weight = to_float(a_tile(stage)[(down + THREADS_DOWN * r) * A_STRIDE + depth]);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
#pragma unroll
                    for (int n = 0; n < 4; ++n) acc[2 * r + half][n] += weight * values[half][n];
                }
            }
        }
    }

    DEVICE void keep_rows(const float (&acc)[ACCUMULATORS][4]) const {
        const int down = threadIdx.x / THREADS_ACROSS, across = threadIdx.x % THREADS_ACROSS;
#pragma unroll
        for (int n = 0; n < ACCUMULATORS; ++n) {
            T* to = shared + (down + THREADS_DOWN * (n / 2)) * B_STRIDE + 4 * across + 64 * (n % 2);
            *reinterpret_cast<Packed*>(to) = pack<float>(acc[n]);
        }
    }

    // ---- the whole

    DEVICE void store_result() const {
        if (task.out_aligned) {
            constexpr int ACROSS = COLUMNS / VECTOR<T>;
            const int column = threadIdx.x % ACROSS * VECTOR<T>;
            const int64_t offset = column_offset(column, a.out_strides[2]);
            for (int row = threadIdx.x / ACROSS; row < ROWS; row += THREADS / ACROSS) {
                if (offset < 0 || i_first + row >= a.n_i) continue;
                store_packed(out + (i_first + row) * a.out_strides[1] + offset,
                             *reinterpret_cast<const Packed*>(shared + row * B_STRIDE + column));
            }
        } else {
            const int column = threadIdx.x % COLUMNS;
            const int64_t offset = column_offset(column, a.out_strides[2]);
            for (int row = threadIdx.x / COLUMNS; row < ROWS; row += THREADS / COLUMNS) {
                if (offset < 0 || i_first + row >= a.n_i) continue;
                store_one(out + (i_first + row) * a.out_strides[1] + offset, shared[row * B_STRIDE + column]);
            }
        }
    }

    DEVICE void load_step(int64_t step) const {
        const int64_t j = j_first + step * DEPTH;
        if (j < j_stop) {
            const int stage = int(step % Tile::STAGES);
            load_alpha(stage, j);
            load_values(stage, j);
        }
        copy_async_commit();  // a group for every step, so that those to wait for can be counted
    }

    DEVICE void run() const {
        float acc[ACCUMULATORS][4] = {};
        const int64_t steps = j_stop > j_first ? (j_stop - j_first + DEPTH - 1) / DEPTH : 0;
        for (int step = 0; step < Tile::STAGES - 1; ++step) load_step(step);
        for (int64_t step = 0; step < steps; ++step) {
            copy_async_wait<Tile::STAGES - 2>();
            block_barrier();  // all have loaded this step, and are done with the one whose place is taken next
            load_step(step + Tile::STAGES - 1);
            const int stage = int(step % Tile::STAGES);
            if constexpr (MODE == Mode::HALF) multiply_halfs(stage, acc);
            if constexpr (MODE == Mode::TF32 || MODE == Mode::TF32X3) multiply_tf32(stage, acc);
            if constexpr (MODE == Mode::IEEE) multiply_ieee(stage, acc);
        }
        copy_async_wait<0>();
        block_barrier();
        if constexpr (TENSOR) {
            keep_fragments(acc);
        } else {
            keep_rows(acc);
        }
        block_barrier();
        store_result();
    }
};

// Two blocks on a multiprocessor, where 128 registers are enough for a thread: not for the large tile with both parts
// of the operands of `TF32X3`, nor with the rows and columns of `IEEE`.
template <class Tile, Mode MODE>
constexpr int BLOCKS = Tile::ROWS == 128 && (MODE == Mode::TF32X3 || MODE == Mode::IEEE) ? 1 : 2;

template <typename T, class Tile, Mode MODE>
__global__ void __launch_bounds__(Tile::THREADS, (BLOCKS<Tile, MODE>))
    mixing_kernel(const __grid_constant__ MixingTask task) {
    MixingWorker<T, Tile, MODE>(task).run();
}

inline bool is_aligned(const void* data, const int64_t* strides, int n, int64_t bytes) {
    bool aligned = reinterpret_cast<uintptr_t>(data) % 16 == 0;
    for (int axis = 0; axis < n; ++axis) aligned = aligned && strides[axis] * bytes % 16 == 0;
    return aligned;
}

template <typename T, class Tile, Mode MODE>
int run_mixing(const DecompxMixingArguments& a, void* stream) {
    MixingTask task = {a, 0, 0, 0};
    const bool whole_runs = a.n_v % VECTOR<T> == 0;
    task.alpha_aligned = a.alpha_strides[3] == 1 && is_aligned(a.alpha, a.alpha_strides, 3, sizeof(T));
    task.p_aligned = whole_runs && is_aligned(a.p, a.p_strides, 4, sizeof(T));
    task.out_aligned = whole_runs && is_aligned(a.out, a.out_strides, 4, sizeof(T));
    const int64_t down = (a.n_i + Tile::ROWS - 1) / Tile::ROWS;
    const int64_t blocks = a.n_b * a.n_h * down * ((a.n_k * a.n_v + Tile::COLUMNS - 1) / Tile::COLUMNS);
    if (blocks > INT32_MAX) return DECOMPX_TOO_LARGE;
    const dim3 grid(static_cast<unsigned>(blocks), 1);
    return launch_kernel(mixing_kernel<T, Tile, MODE>, grid, Tile::THREADS, Tile::SHARED_BYTES, 1, stream, task);
}

template <typename T, Mode MODE>
int launch_mixing(const DecompxMixingArguments& a, void* stream) {
    if (a.n_i <= FEW_ROWS) return run_mixing<T, FewRows<T>, MODE>(a, stream);
    return run_mixing<T, ManyRows<T>, MODE>(a, stream);
}

extern "C" int decompx_mixing(const DecompxMixingArguments* a, void* stream) {
    switch (a->dtype) {
        case DECOMPX_BFLOAT16: return launch_mixing<BFloat16, Mode::HALF>(*a, stream);
        case DECOMPX_FLOAT16: return launch_mixing<Float16, Mode::HALF>(*a, stream);
        case DECOMPX_FLOAT32:
            if (a->precision == DECOMPX_TF32) return launch_mixing<float, Mode::TF32>(*a, stream);
            if (a->precision == DECOMPX_TF32X3) return launch_mixing<float, Mode::TF32X3>(*a, stream);
            return launch_mixing<float, Mode::IEEE>(*a, stream);
        default: return DECOMPX_BAD_DTYPE;
    }
}
