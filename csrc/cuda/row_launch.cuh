// Launch choices of the kernels over rows, and the launch itself.
#pragma once

#include "rows.cuh"

inline int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

inline bool is_aligned(const void* data, int64_t bytes, int64_t stride_b, int64_t stride_i, int64_t stride_k) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride_b * bytes % 16 == 0 && stride_i * bytes % 16 == 0 &&
           stride_k * bytes % 16 == 0;
}
inline bool is_aligned(const DecompxState& x, int64_t bytes) {
    return !x.data || is_aligned(x.data, bytes, x.stride_b, x.stride_i, x.stride_k);
}
inline bool is_aligned(const DecompxVector& x) {
    return !x.data || is_aligned(x.data, x.dtype == DECOMPX_FLOAT32 ? 4 : 2, x.stride_b, x.stride_i, 0);
}
// Whether every vector begins and ends at a multiple of 16 bytes.
template <typename T>
bool rows_are_aligned(const DecompxRowArguments& a) {
    return a.n_d % VECTOR<T> == 0 && is_aligned(a.x, sizeof(T)) && is_aligned(a.residual, sizeof(T)) &&
           is_aligned(a.gain) && is_aligned(a.bias) && is_aligned(a.intercept);
}

// Which passes the rule needs.
template <class Op>
int needed_phases(const DecompxRowArguments& a) {
    int phases = APPLY;
    if (a.rule == DECOMPX_NONE || a.rule == DECOMPX_CLS) return phases;
    if (a.bias.data) phases |= GATHER;
    if (Op::STAGES > 1 && a.intercept.data) phases |= GATHER_LAST;
    return phases;
}

template <class Op, typename T>
RowLaunch row_launch(const DecompxRowArguments& a) {
    const int64_t rows = a.n_b * a.n_i;
    const int64_t slot = Op::resident_streams(a) * divide_up(a.n_d, VECTOR<T>) * int64_t(sizeof(Packed));
    // 1 KB of a multiprocessor's shared memory is the system's, for every block.
    const int64_t room = a.device.shared_bytes / BLOCKS_PER_MULTIPROCESSOR - 512 - SCRATCH_BYTES;
    RowLaunch launch = {1, a.n_k, 0, needed_phases<Op>(a), 0};
    const bool gathers = launch.phases != APPLY;
    int64_t wanted = divide_up(a.n_k * slot, room);
    if (gathers && a.device.clusters && wanted > 1 && rows * LARGEST_CLUSTER >= a.device.multiprocessors) {
        // A power of two, however the device groups its multiprocessors.
        while (launch.parts < wanted && launch.parts < LARGEST_CLUSTER && launch.parts < a.n_k) launch.parts *= 2;
        launch.clustered = 1;
    } else if (rows < a.device.multiprocessors) {
        // Two blocks for each multiprocessor, and vectors for each warp of a block.
        wanted = divide_up(BLOCKS_PER_MULTIPROCESSOR * a.device.multiprocessors, rows);
        const int64_t most = divide_up(a.n_k, THREADS / WARP);
        launch.parts = wanted < most ? wanted : most;
    }
    launch.k_per_block = divide_up(a.n_k, launch.parts);
    if (!launch.clustered) launch.parts = divide_up(a.n_k, launch.k_per_block);
    if (gathers && (launch.clustered || launch.parts == 1)) {
        const int64_t fit = room / slot;
        launch.resident = int(fit < launch.k_per_block ? fit : launch.k_per_block);
    }
    return launch;
}

template <class Op, typename T, int TEAM, int VECTORS, int SOURCES, bool ALIGNED>
int run_rows(const DecompxRowArguments& a, void* stream) {
    RowTask task = {a, row_launch<Op, T>(a)};
    const int64_t slot = Op::resident_streams(a) * divide_up(a.n_d, VECTOR<T>) * int64_t(sizeof(Packed));
    const int shared_bytes = int(SCRATCH_BYTES + task.launch.resident * slot);
    const dim3 grid(unsigned(a.n_b * a.n_i), unsigned(task.launch.parts));
    const auto kernel = row_kernel<Op, T, TEAM, VECTORS, SOURCES, ALIGNED>;
    const int phases = task.launch.phases;
    if (task.launch.parts == 1 || task.launch.clustered) {
        const int cluster = task.launch.clustered ? int(task.launch.parts) : 1;
        return launch_kernel(kernel, grid, THREADS, shared_bytes, cluster, stream, task);
    }
    for (int phase = GATHER; phase <= APPLY; phase *= 2) {
        if (!(phases & phase)) continue;
        task.launch.phases = phase;
        const int status = launch_kernel(kernel, grid, THREADS, shared_bytes, 1, stream, task);
        if (status != DECOMPX_OK) return status;
    }
    return DECOMPX_OK;
}

// The tiles: threads of a team, vectors of 16 bytes per thread, sources at a time, and up to how many vectors of
// 16 bytes a source has. Eight vectors per thread are in flight: with two blocks of 256 threads that is 64 KB a
// multiprocessor, and 25 to 40 KB keep the memory of an H100 busy at a latency of 1 us.
template <class Op, typename T>
int launch_rows_of(const DecompxRowArguments& a, void* stream) {
    constexpr int STREAMS = Op::RESIDUAL ? 2 : 1;  // in flight together, so each has half of the registers
    const int64_t vectors = divide_up(a.n_d, VECTOR<T>);
    // Numbers are loaded one by one, and each has an address of its own in registers: few of them.
    if (!rows_are_aligned<T>(a)) return run_rows<Op, T, WARP, 2, 1, false>(a, stream);
    // A warp sums a vector without waiting for others: 768 numbers of 2 bytes are three vectors per thread.
    if (vectors <= WARP * 4) return run_rows<Op, T, WARP, 4, 2 / STREAMS, true>(a, stream);
    // 768 numbers of 4 bytes are six.
    if (vectors <= WARP * 8) return run_rows<Op, T, WARP, 8 / STREAMS, 1, true>(a, stream);
    // The hidden of a feed-forward network: all threads take one vector. Longer ones are gone over in chunks.
    return run_rows<Op, T, THREADS, 4, 2 / STREAMS, true>(a, stream);
}

template <class Op>
int launch_rows(const DecompxRowArguments* a, void* stream) {
    switch (a->dtype) {
        case DECOMPX_FLOAT32: return launch_rows_of<Op, float>(*a, stream);
        case DECOMPX_BFLOAT16: return launch_rows_of<Op, BFloat16>(*a, stream);
        case DECOMPX_FLOAT16: return launch_rows_of<Op, Float16>(*a, stream);
        default: return DECOMPX_BAD_DTYPE;
    }
}
