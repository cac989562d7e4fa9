// Operations on the vectors that the sources contributed to one position, `[k, d]`: LayerNorm, activation, and the
// sharing of a bias; and the mixing of positions by attention weights. No dependency but the C++ language, so that they can be built and tested on their own.
//
// The same source (rows_impl.h) is compiled for several instruction sets, and `kernels` picks one when it runs.

#pragma once

#include <cstdint>

namespace decompx {

enum class Dtype : int { float32, bfloat16 };

// How a bias is shared among the sources. Weights of `absdot` are `|bias . u[k]|`, of `dot` the signed dots.
enum class Rule : int { absdot, dot, equal, cls, none };

// Instruction sets, each a superset of the one before.
enum class Level : int { portable, avx2, avx512 };

// The vectors of one position: row `k` starts at element `k * stride` and is contiguous.
struct Vectors {
  void* data;
  int64_t stride;
  int64_t count;  // k
  int64_t width;  // d
  Dtype dtype;
};

// What one head gives to some positions from some sources: `out[i, k] = sum_j alpha[i, j] p[j, k]`, vectors of `n_v`
// contiguous numbers; strides are counted in elements.
struct MixingBlock {
  const void* alpha;
  int64_t alpha_i, alpha_j;
  const void* p;
  int64_t p_j, p_k;
  void* out;
  int64_t out_i, out_k;
  int64_t n_i, n_j, n_k, n_v;
  int64_t first;   // the attended position that row 0 stands at
  int64_t window;  // 0: none
  bool causal;
  Dtype dtype;
};

// Positions that are mixed together in registers.
constexpr int64_t kTileRows = 6;

// Numbers that a mixing needs for its own use, for vectors of up to `n_v` numbers.
constexpr int64_t mixing_scratch(int64_t n_i, int64_t n_j, int64_t n_v) {
  constexpr int64_t widest = 2 * 16;  // numbers of two of the largest registers
  return ((n_i + kTileRows - 1) / kTileRows * kTileRows + (n_v + widest - 1) / widest * widest) * n_j;
}

// All constants are float32, and so are all sums. `scratch` holds `2 * count` numbers. What may be absent is a null
// pointer.
struct Kernels {
  // x[k] <- residual[k] + x[k] + omega[k] bias; omega by x, or by x + residual if `share_after_residual`.
  void (*bias_split)(
      const Vectors& x,
      const Vectors* residual,
      const float* bias,
      Rule rule,
      bool share_after_residual,
      float* scratch);

  // y[k] = (x[k] - mean(x[k])) / scale * weight; x[k] <- y[k] + omega[k] bias; omega by y. `dots[k]` is `y[k] . bias` up
  // to a factor.
  void (*layernorm)(
      const Vectors& x,
      float scale,
      const float* weight,
      const float* bias,
      bool centre,
      Rule rule,
      const float* dots,
      float* scratch);

  // v[k] = slope * (a[k] + omega[k] bias); a[k] <- v[k] + omega'[k] intercept; omega by a, omega' by v.
  void (*activation)(
      const Vectors& a,
      const float* slope,
      const float* bias,
      const float* intercept,
      Rule rule,
      float* scratch);

  // out[k * m + n] = x[k] . g[n], where g[n] starts at element `n * g_stride`.
  void (*functional_dots)(const Vectors& x, const float* g, int64_t g_stride, int64_t m, float* out);

  // `scratch` holds `mixing_scratch` numbers.
  void (*mixing)(const MixingBlock& block, float* scratch);
};

// Whether this machine has the instructions of a level, and this build the code.
bool available(Level level);

// The kernels of a level, which must be available.
const Kernels& kernels(Level level);

}  // namespace decompx
