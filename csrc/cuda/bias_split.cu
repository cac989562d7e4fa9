// A bias shared among the sources, in place, with the residual added: x <- x + residual + omega bias.
// The shares come from x, or from x + residual: then both stay in shared memory.
#include "row_launch.cuh"

struct BiasSplit {
    static constexpr int STAGES = 1;
    static constexpr bool GAIN = false, CENTRED = false, RESIDUAL = true;

    __host__ __device__ static int resident_streams(const DecompxRowArguments& a) { return a.share_after ? 2 : 1; }

    // `residual` is zero where the shares come before it.
    template <typename T>
    DEVICE static float before(int, float x, float residual, float, float, const Parameters<T>&, int) {
        return x + residual;
    }
    template <typename T>
    DEVICE static float after(float x, float residual, float, float share, float, const Parameters<T>& p, int n) {
        return x + residual + share * p.bias[n];
    }
};

extern "C" int decompx_bias_split(const DecompxRowArguments* arguments, void* stream) {
    return launch_rows<BiasSplit>(arguments, stream);
}
