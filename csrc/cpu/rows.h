// Operations on the vectors that the sources contributed to one position, `[k, d]`: LayerNorm, activation, and the
// sharing of a bias. No dependency but the C++ language, so that they can be built and tested on their own.
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
};

// Whether this machine has the instructions of a level, and this build the code.
bool available(Level level);

// The kernels of a level, which must be available.
const Kernels& kernels(Level level);

}  // namespace decompx
