// Operations on the vectors that the sources contributed to one position, `[k, d]`: LayerNorm, activation, the sharing of
// a bias, and the feed-forward network; and the mixing of positions by attention weights. No dependency but the C++
// language, so that they can be built and tested on their own.
//
// The same source (rows_impl.h) is compiled for several instruction sets, and `kernels` picks one when it runs.

#pragma once

#include <cstdint>

namespace decompx {

enum class Dtype : int { float32, bfloat16 };

// How a bias is shared among the sources. Weights of `absdot` are `|bias . u[k]|`, of `dot` the signed dots.
enum class Rule : int { absdot, dot, equal, cls, none };

// Instruction sets, each a superset of the one before.
enum class Level : int { portable, avx2, avx512, avx512_bf16, amx };

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

constexpr int64_t whole_tiles(int64_t rows) {
  return (rows + kTileRows - 1) / kTileRows * kTileRows;
}

// Numbers of four of the largest registers: what panels of any level are cut from.
constexpr int64_t kWidestPanel = 4 * 16;

constexpr int64_t whole_panels(int64_t width) {
  return (width + kWidestPanel - 1) / kWidestPanel * kWidestPanel;
}

// Rows that are filled up, where products are made by tiles of the processor's own.
constexpr int64_t kMostFilled = 16;

// Numbers that a mixing needs for its own use, for vectors of up to `n_v` numbers.
constexpr int64_t mixing_scratch(int64_t n_i, int64_t n_j, int64_t n_v) {
  return (n_i + kMostFilled + whole_panels(n_v)) * (n_j + 2 * kMostFilled);
}

struct Matrix {
  const void* data;
  int64_t rows, columns;
  int64_t row_stride, column_stride;  // in elements
  Dtype dtype;
};

// Numbers that a matrix takes as `lay_out_matrix` leaves it: pairs may be filled up to 16 words.
constexpr int64_t laid_out_numbers(int64_t rows, int64_t columns) {
  return (rows < 16 && rows ? 16 : rows) * whole_panels(columns);
}

// Columns `[start, stop)` of some rows of a product: `to = from matrix`, where `start` is a multiple of kWidestPanel.
struct ProductBlock {
  const void* from;  // [rows, n_inner]
  void* to;          // [rows, n_columns]
  const float* matrix;  // [n_inner, n_columns], as `lay_out_matrix` leaves it
  int64_t from_stride, to_stride;  // in elements, between rows
  int64_t rows, n_inner, n_columns;
  int64_t start, stop;
  Dtype dtype;
};

// The weights of a feed-forward network, each as `lay_out_matrix` leaves it.
struct Network {
  const float* w_in;   // [d, f]
  const float* w_out;  // [f, d]
  const float* bias;   // [f], of the hidden layer, or null
  int64_t d, f;
};

// Rows of any positions and sources that go through a network.
struct NetworkRows {
  const void* const* from;  // [d]
  void* const* to;          // [d]
  const float* const* slope;  // [f], of the row's position
  const float* shares;      // of the bias, one for each row
  int64_t count;
  Dtype dtype;
};

// Most numbers of the hidden layer that any level makes at once.
constexpr int64_t kDeepest = 768;

// Between two rows, so that they do not fall on the same lines of a cache.
constexpr int64_t kRowGap = 16;

// Numbers that a product and a network need for their own use.
constexpr int64_t product_scratch(int64_t rows, int64_t columns) {
  return (rows + kMostFilled) * (kDeepest + whole_panels(columns) + 2 * kRowGap);
}

constexpr int64_t network_scratch(int64_t rows, int64_t d) {
  return (rows + kMostFilled) * (d + kDeepest + whole_panels(d) + 3 * kRowGap);
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

  // y[k] = (x[k] - mean(x[k])) / scale * weight; x[k] <- y[k] + omega[k] bias; omega by y.
  void (*layernorm)(
      const Vectors& x,
      float scale,
      const float* weight,
      const float* bias,
      bool centre,
      Rule rule,
      float* scratch);

  // Both: r[k] = x[k] + branch[k] + omega[k] branch_bias, and the norm of r to x; omega by branch, or by x + branch.
  void (*add_norm)(
      const Vectors& x,
      const Vectors& branch,
      const float* branch_bias,
      bool share_after_residual,
      float scale,
      const float* weight,
      const float* bias,
      bool centre,
      Rule rule,
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

  // Columns from `start` to `stop`, multiples of kWidestPanel, into room for `laid_out_numbers`.
  void (*lay_out_matrix)(const Matrix& matrix, int64_t start, int64_t stop, float* to);

  // `scratch` holds `product_scratch` numbers.
  void (*product)(const ProductBlock& block, float* scratch);

  // to = (slope * (from W_in + share bias)) W_out. `scratch` holds `network_scratch` numbers.
  void (*network)(const NetworkRows& rows, const Network& net, float* scratch);
};

// Whether this machine has the instructions of a level, and this build the code.
bool available(Level level);

// The kernels of a level, which must be available.
const Kernels& kernels(Level level);

}  // namespace decompx
