// Kernels that are wrong on purpose, each in a way that the emulation has to notice.
#include "../device.cuh"

namespace {

struct BadTask {
    float* x;
    int n;
};

int launch_bad(void (*kernel)(BadTask), float* x, int n) {
    return launch_kernel(kernel, dim3(1), 64, 1024, 1, nullptr, BadTask{x, n});
}

void divergent_barrier(BadTask) {
    if (threadIdx.x < 32) block_barrier();
}
void divergent_shuffle(BadTask task) {
    if (threadIdx.x % 2) task.x[0] = shuffle_xor(1.0f, 2);
}
void different_barriers(BadTask) {
    if (threadIdx.x < 32) {
        block_barrier();
    } else {
        block_barrier();
    }
}
void outside_memory(BadTask task) { task.x[task.n + int(threadIdx.x)] = 1.0f; }
void outside_shared(BadTask task) {
    float* shared = reinterpret_cast<float*>(dynamic_shared());
    task.x[0] = shared[256 + threadIdx.x];
}
void unaligned(BadTask task) {
    if (threadIdx.x == 0) store_packed(task.x, load_packed(task.x + 1));
}
// Thread 0 reads what the last thread writes, without a barrier.
void race(BadTask task) {
    float* shared = reinterpret_cast<float*>(dynamic_shared());
    if (threadIdx.x == 63) shared[0] = 1.0f;
    if (threadIdx.x == 0) task.x[0] = shared[0];
}
// Reads what an asynchronous copy brings without waiting for it.
void early(BadTask task) {
    float* shared = reinterpret_cast<float*>(dynamic_shared());
    if (threadIdx.x != 0) return;
    copy_async(shared, task.x, 16);
    copy_async_commit();
    task.x[0] = shared[0];
}

}  // namespace

#define BAD(name) \
    extern "C" int bad_##name(float* x, int n) { return launch_bad(name, x, n); }
BAD(divergent_barrier)
BAD(divergent_shuffle)
BAD(different_barriers)
BAD(outside_memory)
BAD(outside_shared)
BAD(unaligned)
BAD(race)
BAD(early)
