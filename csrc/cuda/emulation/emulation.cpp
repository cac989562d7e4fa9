// The fibers of emulation.h, and all kernels in one library.
#define DECOMPX_EMULATED

#include "../device.cuh"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace emulation {

dim3 thread_index, block_index, grid_size;
int64_t bytes_read = 0, bytes_written = 0;

namespace {

constexpr size_t STACK_BYTES = 64 << 10;

enum class Waits { NOT, WARP, BLOCK, CLUSTER, ENDED };

struct Copy {
    void* to;
    const void* from;
    int bytes;
};

struct Fiber {
    ucontext_t context;
    jmp_buf resume;
    bool started = false;
    int block = 0, thread = 0;
    Waits waits = Waits::NOT;
    int line = 0;
    void* brought = nullptr;
    void (*compute)(void* (&)[32]) = nullptr;
    std::vector<std::vector<Copy>> groups = {{}};  // the last one is open
};

// Memory that ends at a page that may not be touched.
struct Guarded {
    unsigned char* pages = nullptr;
    size_t page_bytes = 0, bytes = 0;

    explicit Guarded(size_t n) : bytes((n + 15) / 16 * 16) {
        const size_t page = size_t(sysconf(_SC_PAGESIZE));
        page_bytes = (bytes + page - 1) / page * page + page;
        pages = static_cast<unsigned char*>(
            mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        mprotect(pages + page_bytes - page, page, PROT_NONE);
        memset(begin(), 0xff, bytes);
    }
    Guarded(const Guarded&) = delete;
    ~Guarded() { munmap(pages, page_bytes); }
    unsigned char* begin() const {
        return pages + page_bytes - size_t(sysconf(_SC_PAGESIZE)) - bytes;
    }
};

struct Cluster {
    void (*body)(const void*);
    const void* arguments;
    int threads;
    dim3 first;  // index of its first block
    std::vector<Fiber> fibers;
    std::vector<Guarded*> shared;
};

Cluster* cluster_now = nullptr;
Fiber* fiber_now = nullptr;
jmp_buf scheduler;
std::string error;
bool backwards = false;

void enter() {
    cluster_now->body(cluster_now->arguments);
    fiber_now->waits = Waits::ENDED;
    _longjmp(scheduler, 1);
}

__attribute__((noinline)) void pause() {
    Fiber* fiber = fiber_now;
    if (_setjmp(fiber->resume) == 0) _longjmp(scheduler, 1);
}

void wait(Waits what, int line) {
    fiber_now->waits = what;
    fiber_now->line = line;
    pause();
}

// A function of its own: variables of whoever calls `_setjmp` may be lost by the jump back.
__attribute__((noinline)) void resume(Fiber& fiber) {
    fiber_now = &fiber;
    thread_index = dim3(unsigned(fiber.thread), 0, 0);
    block_index = dim3(cluster_now->first.x, cluster_now->first.y + unsigned(fiber.block), 0);
    if (_setjmp(scheduler) != 0) return;
    if (fiber.started) _longjmp(fiber.resume, 1);
    fiber.started = true;
    setcontext(&fiber.context);
}

// Lets fibers `first` to `first + n - 1` go on if all of them wait for one another; true if they do.
bool release(std::vector<Fiber>& fibers, size_t first, size_t n, Waits what) {
    for (size_t f = first; f < first + n; ++f) {
        if (fibers[f].waits != what || fibers[f].line != fibers[first].line) return false;
    }
    if (what == Waits::WARP) {
        void* brought[32];
        for (size_t f = 0; f < n; ++f) brought[f] = fibers[first + f].brought;
        fibers[first].compute(brought);
    }
    for (size_t f = first; f < first + n; ++f) fibers[f].waits = Waits::NOT;
    return true;
}

const char* complaint(const std::vector<Fiber>& fibers) {
    static char text[200];
    for (const Fiber& fiber : fibers) {
        if (fiber.waits == Waits::ENDED) continue;
        const char* what = fiber.waits == Waits::WARP ? "warp" : fiber.waits == Waits::BLOCK ? "block" : "cluster";
        const char* form = "thread %d of block (%u, %u) waits in line %d for threads of its %s that never come";
        const unsigned x = cluster_now->first.x, y = cluster_now->first.y + unsigned(fiber.block);
        snprintf(text, sizeof text, form, fiber.thread, x, y, fiber.line, what);
        return text;
    }
    return "";
}

// A page that is not there was touched: the thread that did ends, and with it the launch.
void on_bad_access(int) { fail("memory outside of a buffer was read or written"); }

struct CatchBadAccess {
    struct sigaction before_segv, before_bus;
    CatchBadAccess() {
        struct sigaction action = {};
        action.sa_handler = on_bad_access;
        action.sa_flags = SA_NODEFER;  // the handler is left by a jump
        sigaction(SIGSEGV, &action, &before_segv);
        sigaction(SIGBUS, &action, &before_bus);
    }
    CatchBadAccess(const CatchBadAccess&) = delete;
    ~CatchBadAccess() {
        sigaction(SIGSEGV, &before_segv, nullptr);
        sigaction(SIGBUS, &before_bus, nullptr);
    }
};

// Runs the fibers until all have ended.
void schedule(Cluster& cluster) {
    std::vector<Fiber>& fibers = cluster.fibers;
    const size_t n = fibers.size(), threads = size_t(cluster.threads);
    while (true) {
        bool ran = false, all_ended = true;
        for (size_t f = 0; f < n; ++f) {
            Fiber& fiber = fibers[backwards ? n - 1 - f : f];
            if (fiber.waits == Waits::NOT) {
                resume(fiber);
                ran = true;
                if (!error.empty()) return;
            }
            all_ended = all_ended && fiber.waits == Waits::ENDED;
        }
        if (all_ended) return;
        for (size_t f = 0; f < n; f += 32) ran |= release(fibers, f, 32, Waits::WARP);
        for (size_t f = 0; f < n; f += threads) ran |= release(fibers, f, threads, Waits::BLOCK);
        ran |= release(fibers, 0, n, Waits::CLUSTER);
        if (!error.empty()) return;
        if (!ran) {
            error = complaint(fibers);
            return;
        }
    }
}

}  // namespace

void fail(const char* why) {
    error = why;
    _longjmp(scheduler, 1);
}

const char* what_failed() { return error.c_str(); }

unsigned char* shared_memory() { return cluster_now->shared[size_t(fiber_now->block)]->begin(); }

void check_shared(const void* at, size_t bytes) {
    const Guarded* shared = cluster_now->shared[size_t(fiber_now->block)];
    const unsigned char* byte = static_cast<const unsigned char*>(at);
    if (byte < shared->begin() || byte + bytes > shared->begin() + shared->bytes) {
        fail("an access to shared memory is outside of it");
    }
}

void wait_for_block(int line) { wait(Waits::BLOCK, line); }
void wait_for_cluster(int line) { wait(Waits::CLUSTER, line); }

void with_warp(int line, void* brought, void (*compute)(void* (&)[32])) {
    fiber_now->brought = brought;
    fiber_now->compute = compute;
    wait(Waits::WARP, line);
}

void copy_later(void* to, const void* from, int bytes) {
    check_shared(to, 16);
    check_aligned(static_cast<const Packed*>(to));
    if (bytes > 0) check_aligned(static_cast<const Packed*>(from));
    memset(to, 0xff, 16);
    fiber_now->groups.back().push_back({to, from, bytes});
}
void close_copy_group() { fiber_now->groups.emplace_back(); }
void finish_copies(int pending_groups) {
    auto& groups = fiber_now->groups;
    while (groups.size() > size_t(pending_groups) + 1) {
        for (const Copy& copy : groups.front()) {
            memset(copy.to, 0, 16);
            if (copy.bytes > 0) memcpy(copy.to, copy.from, size_t(copy.bytes));
        }
        groups.erase(groups.begin());
    }
}

int run(void (*body)(const void*), const void* arguments, dim3 grid, int threads, int shared_bytes, int cluster) {
    error.clear();
    grid_size = grid;
    const CatchBadAccess caught;
    const size_t n = size_t(threads) * size_t(cluster);
    static std::vector<unsigned char*> stacks;
    while (stacks.size() < n) {
        stacks.push_back(static_cast<unsigned char*>(
            mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)));
    }
    for (unsigned y = 0; y < grid.y; y += unsigned(cluster)) {
        for (unsigned x = 0; x < grid.x; ++x) {
            Cluster now = {body, arguments, threads, dim3(x, y), std::vector<Fiber>(n), {}};
            cluster_now = &now;
            for (int block = 0; block < cluster; ++block) now.shared.push_back(new Guarded(size_t(shared_bytes)));
            for (size_t f = 0; f < n; ++f) {
                Fiber& fiber = now.fibers[f];
                fiber.block = int(f) / threads;
                fiber.thread = int(f) % threads;
                getcontext(&fiber.context);
                fiber.context.uc_stack.ss_sp = stacks[f];
                fiber.context.uc_stack.ss_size = STACK_BYTES;
                fiber.context.uc_link = nullptr;
                makecontext(&fiber.context, enter, 0);
            }
            schedule(now);
            for (Guarded* shared : now.shared) delete shared;
            if (!error.empty()) return -100;
        }
    }
    return 0;
}

float half_to_float(uint16_t bits) {
    const int exponent = bits >> 10 & 31;
    const float mantissa = float(bits & 1023);
    float x;
    if (exponent == 31) {
        x = mantissa == 0.0f ? INFINITY : NAN;
    } else {
        x = exponent == 0 ? ldexpf(mantissa, -24) : ldexpf(1024.0f + mantissa, exponent - 25);
    }
    return bits >> 15 ? -x : x;
}

// To nearest, ties to even.
uint16_t float_to_half(float x) {
    const uint16_t sign = uint16_t(float_to_bits(x) >> 16 & 0x8000);
    const float magnitude = fabsf(x);
    if (x != x) return 0x7fff;
    if (magnitude >= 65520.0f) return sign | 0x7c00;
    int exponent = magnitude < ldexpf(1.0f, -14) ? -14 : ilogbf(magnitude);
    // Mantissas count from 1024; one that is rounded up to 2048 carries into the exponent by itself.
    const float mantissa = rintf(ldexpf(magnitude, 10 - exponent));
    if (mantissa < 1024.0f) return sign | uint16_t(mantissa);
    return sign | uint16_t(((exponent + 14) << 10) + uint16_t(mantissa));
}

}  // namespace emulation

extern "C" {
void decompx_emulation_order(int backwards) { emulation::backwards = backwards != 0; }
// Bytes of states read and written since it was asked last.
void decompx_emulation_bytes(int64_t* read_and_written) {
    read_and_written[0] = emulation::bytes_read;
    read_and_written[1] = emulation::bytes_written;
    emulation::bytes_read = emulation::bytes_written = 0;
}
}

#include "../activation.cu"
#include "../bias_split.cu"
#include "../layernorm.cu"
#include "../mixing.cu"
#include "../status.cu"
#include "bad_kernels.cpp"
