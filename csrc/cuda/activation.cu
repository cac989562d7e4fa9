// The frozen activation with the split of its biases, in place: v = slope (a + omega bias), then
// a <- v + omega' intercept with the shares omega' taken from v.
#include "row_launch.cuh"

struct Activation {
    static constexpr int STAGES = 2;
    static constexpr bool GAIN = true, CENTRED = false, RESIDUAL = false;

    __host__ __device__ static int resident_streams(const DecompxRowArguments&) { return 1; }

    template <typename T>
    DEVICE static float before(int stage, float a, float, float, float share, const Parameters<T>& p, int n) {
        return stage == 0 ? a : (a + share * p.bias[n]) * p.gain[n];
    }
    template <typename T>
    DEVICE static float after(float a, float, float, float share, float last, const Parameters<T>& p, int n) {
        const float v = (a + share * p.bias[n]) * p.gain[n];
        return v + last * p.intercept[n];
    }
};

extern "C" int decompx_activation(const DecompxRowArguments* arguments, void* stream) {
    return launch_rows<Activation>(arguments, stream);
}
