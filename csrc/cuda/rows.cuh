// What the kernels that share a bias among sources have in common; each gives its formula as an `Op`.
//
// A *row* is one position (b, i) with all its sources. It is gone over in passes: GATHER writes the dot of every
// source's vector with the bias, and whether the vector is zero, to a workspace; where an activation has an intercept,
// GATHER_LAST does the same after the slope; APPLY writes the result, with every share computed from the row's dots.
// A pass needs of the other sources only what the pass before wrote to the workspace.
//
// Bytes, for a state of S bytes. The floor is one read and one write, 2 S. What GATHER reads stays in shared memory as
// far as it fits, and APPLY takes it from there. Two blocks of 113 KB are resident on a multiprocessor of compute
// capability 9.0 or 10.0, and up to eight blocks can wait for one another as a cluster: together 900 KB, so a row of
// 512 sources of 768 numbers of 2 bytes (786 KB) is read once and written once, 2 S. Eight blocks of 49 KB on 12.0 hold
// half of it. Without clusters (8.0: one block of 81 KB) 90 % of such a row is read again. It is read backwards, so
// that what was read last comes first, from the L2 cache; but 216 rows are in flight, 170 MB beside 40 MB of cache, so
// little of it: up to 2.9 S there, the floor of 2 S for rows up to 81 KB. Rules without dots leave APPLY alone: 2 S for
// every row. The tests count these bytes on the emulated device.
//
// With too few rows to occupy the device, each pass is a launch of its own, in which a row is divided among many
// blocks: 3 S, of a state that is small.
#pragma once

#include "device.cuh"

constexpr int THREADS = 256;
// Two blocks on a multiprocessor, so that one reads while the other writes.
constexpr int BLOCKS_PER_MULTIPROCESSOR = 2;
// Portable to every device that has clusters.
constexpr int LARGEST_CLUSTER = 8;
// Sums of the warps, at the beginning of shared memory.
constexpr int SCRATCH_BYTES = 512;

enum Phase { GATHER = 1, GATHER_LAST = 2, APPLY = 4 };

// How a row is divided. `team` threads take `sources` vectors at a time, of each `vectors` times 16 bytes per thread.
struct RowLaunch {
    int64_t parts, k_per_block;
    int resident;  // sources whose vectors stay in shared memory
    int phases, clustered;
};

struct RowTask {
    DecompxRowArguments a;
    RowLaunch launch;
};

// What the share of a source is computed from: its weight over the divisor, plus the addend.
struct Shares {
    const float* weights;
    float divisor, addend;
};

// The numbers of one position that stand for 16 bytes of the state.
template <typename T>
struct Parameters {
    float bias[VECTOR<T>], gain[VECTOR<T>], intercept[VECTOR<T>];
};

template <class Op, typename T, int TEAM, int VECTORS, int SOURCES, bool ALIGNED>
struct RowWorker {
    static constexpr int TEAMS = THREADS / TEAM;
    static constexpr int STREAMS = Op::RESIDUAL ? 2 : 1;

    // Vectors as they came from memory: all loads of a step are issued before the first is used.
    struct Tile {
        Packed data[STREAMS][SOURCES][VECTORS];
    };

    const DecompxRowArguments& a;
    const RowLaunch& launch;
    int64_t row, i_b, i_i, k_first, n_local;  // sources of this block are k_first + [0, n_local)
    int team, lane;
    T* streams[2];
    int64_t strides[2];
    const unsigned char *bias, *gain, *intercept;
    float inverse_scale;
    float* scratch;
    Packed* slots;
    int resident_streams = 0;  // how many streams of the resident sources are in shared memory

    DEVICE explicit RowWorker(const RowTask& task) : a(task.a), launch(task.launch) {
        row = blockIdx.x;
        i_b = row / a.n_i;
        i_i = row % a.n_i;
        k_first = int64_t(blockIdx.y) * launch.k_per_block;
        n_local = a.n_k - k_first < launch.k_per_block ? a.n_k - k_first : launch.k_per_block;
        team = threadIdx.x / TEAM;
        lane = threadIdx.x % TEAM;
        streams[0] = at_position(a.x);
        strides[0] = a.x.stride_k;
        streams[1] = at_position(a.residual);
        strides[1] = a.residual.stride_k;
        bias = at_position(a.bias);
        gain = at_position(a.gain);
        intercept = at_position(a.intercept);
        inverse_scale = 1.0f;
        if (a.scale.data) {
            const unsigned char* at = at_position(a.scale);
            inverse_scale = a.scale.dtype == DECOMPX_FLOAT64 ? float(1.0 / *reinterpret_cast<const double*>(at))
                                                             : 1.0f / *reinterpret_cast<const float*>(at);
        }
        scratch = reinterpret_cast<float*>(dynamic_shared());
        slots = reinterpret_cast<Packed*>(dynamic_shared() + SCRATCH_BYTES);
    }

    DEVICE T* at_position(const DecompxState& state) const {
        return state.data ? static_cast<T*>(state.data) + i_b * state.stride_b + i_i * state.stride_i : nullptr;
    }
    DEVICE const unsigned char* at_position(const DecompxVector& vector) const {
        const int64_t bytes = vector.dtype == DECOMPX_FLOAT64 ? 8 : vector.dtype == DECOMPX_FLOAT32 ? 4 : 2;
        const int64_t offset = i_b * vector.stride_b + i_i * vector.stride_i;
        return vector.data ? static_cast<const unsigned char*>(vector.data) + offset * bytes : nullptr;
    }

    // ---- what is read and written

    DEVICE static Packed load_vector(const T* vector, int64_t at, int64_t n_d) {
        Packed packed = {};
        if constexpr (ALIGNED) {
            if (at < n_d) packed = load_packed(vector + at);
        } else {
            float numbers[VECTOR<T>];
#pragma unroll
            for (int n = 0; n < VECTOR<T>; ++n) numbers[n] = at + n < n_d ? to_float(load_one(vector + at + n)) : 0.0f;
            packed = pack<T>(numbers);
        }
        return packed;
    }

    DEVICE static void store_vector(T* vector, int64_t at, int64_t n_d, const float (&numbers)[VECTOR<T>]) {
        if constexpr (ALIGNED) {
            if (at < n_d) store_packed(vector + at, pack<T>(numbers));
        } else {
#pragma unroll
            for (int n = 0; n < VECTOR<T>; ++n) {
                if (at + n < n_d) store_one(vector + at + n, from_float<T>(numbers[n]));
            }
        }
    }

    // Numbers of one position, in the dtype of the state or float32; zeros outside.
    template <typename U>
    DEVICE static void load_as(const U* vector, int64_t at, int64_t n_d, float (&out)[VECTOR<T>]) {
        if constexpr (ALIGNED) {
#pragma unroll
            for (int first = 0; first < VECTOR<T>; first += VECTOR<U>) {
                float numbers[VECTOR<U>] = {};
                if (at < n_d) unpack<U>(load_packed_cached(vector + at + first), numbers);
#pragma unroll
                for (int n = 0; n < VECTOR<U>; ++n) out[first + n] = numbers[n];
            }
        } else {
#pragma unroll
            for (int n = 0; n < VECTOR<T>; ++n) out[n] = at + n < n_d ? to_float(load_one(vector + at + n)) : 0.0f;
        }
    }
    DEVICE void load_parameter(const unsigned char* vector, int dtype, int64_t at, float (&out)[VECTOR<T>],
                               float absent) const {
        if (!vector) {
#pragma unroll
            for (int n = 0; n < VECTOR<T>; ++n) out[n] = absent;
        } else if (sizeof(T) == 4 || dtype == DECOMPX_FLOAT32) {
            load_as(reinterpret_cast<const float*>(vector), at, a.n_d, out);
        } else {
            load_as(reinterpret_cast<const T*>(vector), at, a.n_d, out);
        }
    }
    DEVICE void load_parameters(int64_t at, bool last, Parameters<T>& p) const {
        load_parameter(bias, a.bias.dtype, at, p.bias, 0.0f);
        if constexpr (Op::GAIN) {
            load_parameter(gain, a.gain.dtype, at, p.gain, 1.0f);
#pragma unroll
            for (int n = 0; n < VECTOR<T>; ++n) p.gain[n] *= inverse_scale;
        }
        if constexpr (Op::STAGES > 1) {
            if (last) load_parameter(intercept, a.intercept.dtype, at, p.intercept, 0.0f);
        }
    }

    // Where this thread's numbers of a chunk of the vectors begin.
    DEVICE int64_t number(int64_t chunk, int vector) const {
        return ((chunk * VECTORS + vector) * TEAM + lane) * VECTOR<T>;
    }
    DEVICE int64_t n_chunks() const {
        constexpr int64_t chunk = int64_t(VECTORS) * TEAM * VECTOR<T>;
        return (a.n_d + chunk - 1) / chunk;
    }
    DEVICE Packed* slot(int64_t local, int stream, int64_t at) const {
        const int64_t vectors = (a.n_d + VECTOR<T> - 1) / VECTOR<T>;
        return slots + (local * Op::resident_streams(a) + stream) * vectors + at / VECTOR<T>;
    }

    // The vectors of `SOURCES` sources; with `keep` they come from memory and are kept as far as there is room.
    DEVICE void fetch(Tile& tile, int64_t local, int64_t chunk, int n_streams, bool keep) const {
#pragma unroll
        for (int stream = 0; stream < STREAMS; ++stream) {
#pragma unroll
            for (int s = 0; s < SOURCES; ++s) {
                const bool valid = stream < n_streams && local + s < n_local;
                const bool is_resident = !keep && stream < resident_streams && local + s < launch.resident;
                const T* vector = streams[stream] + (k_first + local + s) * strides[stream];
#pragma unroll
                for (int v = 0; v < VECTORS; ++v) {
                    const int64_t at = number(chunk, v);
                    tile.data[stream][s][v] = {};
                    if (!valid || at >= a.n_d) continue;
                    tile.data[stream][s][v] =
                        is_resident ? *slot(local + s, stream, at) : load_vector(vector, at, a.n_d);
                }
            }
        }
        if (!keep) return;
#pragma unroll
        for (int stream = 0; stream < STREAMS; ++stream) {
#pragma unroll
            for (int s = 0; s < SOURCES; ++s) {
                if (stream >= n_streams || local + s >= n_local || local + s >= launch.resident) continue;
#pragma unroll
                for (int v = 0; v < VECTORS; ++v) {
                    if (number(chunk, v) < a.n_d) *slot(local + s, stream, number(chunk, v)) = tile.data[stream][s][v];
                }
            }
        }
    }

    // ---- sums over threads

    template <int N>
    DEVICE void team_sums(float (&sums)[N]) const {
#pragma unroll
        for (int n = 0; n < N; ++n) sums[n] = warp_sum(sums[n]);
        if constexpr (TEAM > WARP) block_sums(sums);
    }
    // From the sums of the warps.
    template <int N>
    DEVICE void block_sums(float (&sums)[N]) const {
        if (threadIdx.x % WARP == 0) {
#pragma unroll
            for (int n = 0; n < N; ++n) scratch[threadIdx.x / WARP * N + n] = sums[n];
        }
        block_barrier();
#pragma unroll
        for (int n = 0; n < N; ++n) {
            sums[n] = 0.0f;
            for (int warp = 0; warp < THREADS / WARP; ++warp) sums[n] += scratch[warp * N + n];
        }
        block_barrier();
    }

    // ---- shares

    DEVICE bool stage_has_bias(int stage) const {
        return a.rule != DECOMPX_NONE && (stage == 0 ? bias : intercept) != nullptr;
    }
    DEVICE float* flags_row(int stage) const {
        return a.workspace + ((2 * stage + 1) * int64_t(gridDim.x) + row) * a.n_k;
    }
    DEVICE float* dots_row(int stage) const {
        return a.workspace + 2 * stage * int64_t(gridDim.x) * a.n_k + row * a.n_k;
    }
    DEVICE float weight(float dot) const { return a.rule == DECOMPX_DOT ? dot : dot < 0.0f ? -dot : dot; }

    DEVICE float row_sum(const float* weights) const {
        float sums[1] = {0.0f};
        for (int64_t k = threadIdx.x; k < a.n_k; k += THREADS) sums[0] += weight(load_shared_result(weights + k));
        sums[0] = warp_sum(sums[0]);
        block_sums(sums);
        return sums[0];
    }
    // The weights are the dots; if their sum is zero, the flags; if none is set, every source gets the same.
    DEVICE Shares row_shares(int stage) const {
        if (a.rule != DECOMPX_EQUAL) {
            const float total = row_sum(dots_row(stage));
            if (total != 0.0f) return {dots_row(stage), total, 0.0f};
        }
        const float count = row_sum(flags_row(stage));
        if (count != 0.0f) return {flags_row(stage), count, 0.0f};
        return {flags_row(stage), 1.0f, 1.0f / float(a.n_k)};
    }
    DEVICE float share(int stage, const Shares& shares, int64_t local) const {
        if (!stage_has_bias(stage) || local >= n_local) return 0.0f;
        if (a.rule == DECOMPX_CLS) return k_first + local == 0 ? 1.0f : 0.0f;
        return weight(load_shared_result(shares.weights + k_first + local)) / shares.divisor + shares.addend;
    }

    // ---- passes

    // The means of the vectors, where they are subtracted; the vectors that are then in the tile.
    DEVICE int64_t fetch_and_centre(Tile& tile, int64_t local, int n_streams, bool keep,
                                    float (&means)[SOURCES]) const {
#pragma unroll
        for (int s = 0; s < SOURCES; ++s) means[s] = 0.0f;
        if (!Op::CENTRED || !a.centre) return -1;
        for (int64_t chunk = 0; chunk < n_chunks(); ++chunk) {
            fetch(tile, local, chunk, n_streams, keep);
#pragma unroll
            for (int s = 0; s < SOURCES; ++s) {
#pragma unroll
                for (int v = 0; v < VECTORS; ++v) {
                    float x[VECTOR<T>];
                    unpack<T>(tile.data[0][s][v], x);
#pragma unroll
                    for (int n = 0; n < VECTOR<T>; ++n) means[s] += x[n];
                }
            }
        }
        team_sums(means);
#pragma unroll
        for (int s = 0; s < SOURCES; ++s) means[s] /= float(a.n_d);
        return n_chunks() - 1;
    }

    // Dots and flags of this block's vectors, as they are before the bias of `stage` is added.
    DEVICE void gather(int stage, const Shares& shares) const {
        const int n_streams = Op::resident_streams(a);
        const bool fresh = resident_streams == 0;
        for (int64_t local = int64_t(team) * SOURCES; local < n_local; local += TEAMS * SOURCES) {
            Tile tile;
            float means[SOURCES], sums[2 * SOURCES] = {}, portions[SOURCES];
#pragma unroll
            for (int s = 0; s < SOURCES; ++s) portions[s] = stage > 0 ? share(0, shares, local + s) : 0.0f;
            const int64_t held = fetch_and_centre(tile, local, n_streams, fresh, means);
            for (int64_t chunk = 0; chunk < n_chunks(); ++chunk) {
                if (chunk != held || n_chunks() > 1) fetch(tile, local, chunk, n_streams, fresh && held < 0);
#pragma unroll
                for (int v = 0; v < VECTORS; ++v) {
                    const int64_t left = a.n_d - number(chunk, v);
                    if (left <= 0) continue;
                    Parameters<T> p;
                    load_parameters(number(chunk, v), stage > 0, p);
#pragma unroll
                    for (int s = 0; s < SOURCES; ++s) {
                        float x[VECTOR<T>], residual[VECTOR<T>] = {};
                        unpack<T>(tile.data[0][s][v], x);
                        if constexpr (Op::RESIDUAL) unpack<T>(tile.data[1][s][v], residual);
#pragma unroll
                        for (int n = 0; n < VECTOR<T>; ++n) {
                            if (!ALIGNED && n >= left) continue;
                            const float u = Op::before(stage, x[n], residual[n], means[s], portions[s], p, n);
                            sums[2 * s] += u * (stage == 0 ? p.bias[n] : p.intercept[n]);
                            sums[2 * s + 1] += u != 0.0f ? 1.0f : 0.0f;
                        }
                    }
                }
            }
            team_sums(sums);
            if (lane != 0) continue;
#pragma unroll
            for (int s = 0; s < SOURCES; ++s) {
                if (local + s >= n_local) continue;
                dots_row(stage)[k_first + local + s] = sums[2 * s];
                flags_row(stage)[k_first + local + s] = sums[2 * s + 1] > 0.0f ? 1.0f : 0.0f;
            }
        }
    }

    // Backwards: what was read last and is not resident is still in the L2 cache.
    DEVICE void apply(const Shares& first, const Shares& last) const {
        const int n_streams = Op::RESIDUAL && streams[1] ? 2 : 1;
        const int64_t steps = (n_local + TEAMS * SOURCES - 1) / (TEAMS * SOURCES);
        for (int64_t step = steps - 1; step >= 0; --step) {
            const int64_t local = (step * TEAMS + team) * SOURCES;
            if (local >= n_local) continue;
            Tile tile;
            float means[SOURCES], portions[SOURCES], last_portions[SOURCES];
#pragma unroll
            for (int s = 0; s < SOURCES; ++s) {
                portions[s] = share(0, first, local + s);
                last_portions[s] = Op::STAGES > 1 ? share(1, last, local + s) : 0.0f;
            }
            const int64_t held = fetch_and_centre(tile, local, n_streams, false, means);
            for (int64_t chunk = 0; chunk < n_chunks(); ++chunk) {
                if (chunk != held || n_chunks() > 1) fetch(tile, local, chunk, n_streams, false);
#pragma unroll
                for (int v = 0; v < VECTORS; ++v) {
                    if (number(chunk, v) >= a.n_d) continue;
                    Parameters<T> p;
                    load_parameters(number(chunk, v), true, p);
#pragma unroll
                    for (int s = 0; s < SOURCES; ++s) {
                        float x[VECTOR<T>], residual[VECTOR<T>] = {}, y[VECTOR<T>];
                        unpack<T>(tile.data[0][s][v], x);
                        if constexpr (Op::RESIDUAL) unpack<T>(tile.data[1][s][v], residual);
#pragma unroll
                        for (int n = 0; n < VECTOR<T>; ++n) {
                            y[n] = Op::after(x[n], residual[n], means[s], portions[s], last_portions[s], p, n);
                        }
                        if (local + s >= n_local) continue;
                        store_vector(streams[0] + (k_first + local + s) * strides[0], number(chunk, v), a.n_d, y);
                    }
                }
            }
        }
    }

    // All threads of the row see what was gathered.
    DEVICE void wait_for_row() const {
        if (launch.clustered) {
            cluster_barrier();
        } else {
            block_barrier();
        }
    }

    DEVICE void run() {
        Shares shares[2] = {{nullptr, 1.0f, 0.0f}, {nullptr, 1.0f, 0.0f}};
#pragma unroll
        for (int stage = 0; stage < Op::STAGES; ++stage) {
            const int later = launch.phases >> (stage + 1);
            if (!stage_has_bias(stage) || a.rule == DECOMPX_CLS) continue;
            if (launch.phases >> stage & 1) {
                gather(stage, shares[0]);
                resident_streams = Op::resident_streams(a);
                wait_for_row();
            }
            if (later) shares[stage] = row_shares(stage);
        }
        if (launch.phases & APPLY) apply(shares[0], shares[Op::STAGES - 1]);
    }
};

template <class Op, typename T, int TEAM, int VECTORS, int SOURCES, bool ALIGNED>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_MULTIPROCESSOR)
    row_kernel(const __grid_constant__ RowTask task) {
    RowWorker<Op, T, TEAM, VECTORS, SOURCES, ALIGNED>(task).run();
}
