// LayerNorm or RMSNorm with frozen statistics, and the split of its bias, in place:
// y = (x - mean(x)) weight / scale, then x <- y + omega bias with the shares taken from y.
#include "row_launch.cuh"

struct LayerNorm {
    static constexpr int STAGES = 1;
    static constexpr bool GAIN = true, CENTRED = true, RESIDUAL = false;

    __host__ __device__ static int resident_streams(const DecompxRowArguments&) { return 1; }

    template <typename T>
    DEVICE static float before(int, float x, float, float mean, float, const Parameters<T>& p, int n) {
        return (x - mean) * p.gain[n];
    }
    template <typename T>
    DEVICE static float after(float x, float, float mean, float share, float, const Parameters<T>& p, int n) {
        return (x - mean) * p.gain[n] + share * p.bias[n];
    }
};

extern "C" int decompx_layernorm(const DecompxRowArguments* arguments, void* stream) {
    return launch_rows<LayerNorm>(arguments, stream);
}
