// The kernels of rows.h as operators of PyTorch, `decompx_fast_native::<op>`, parallel over positions.
//
// Only PyTorch's stable interface is used, as of version 2.11, and none of Python's: one binary serves every later
// version of both. The operators expect what decompx_fast/ops/native.py passes: constants in float32, vectors of a
// position expanded to `[b, i, d]`, and arguments that the public ops have checked. What would make them read or write
// outside of a tensor is checked again here.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include "rows.h"

namespace {

using decompx::Dtype;
using decompx::Kernels;
using decompx::Level;
using decompx::Rule;
using decompx::Vectors;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// A thread gets no fewer numbers than this: waking it costs more.
constexpr int64_t kNumbersPerThread = 16384;

Level level_in_use = Level::portable;

void check_rows(const Tensor& t, const char* name, int64_t dims) {
  STD_TORCH_CHECK(t.is_cpu(), name, " must be on the CPU");
  STD_TORCH_CHECK(t.dim() == dims, name, " has ", t.dim(), " axes; it must have ", dims);
  STD_TORCH_CHECK(
      t.size(dims - 1) <= 1 || t.stride(dims - 1) == 1, name, " must be contiguous along its last axis");
}

void check_size(const Tensor& t, const char* name, int64_t axis, int64_t size) {
  STD_TORCH_CHECK(t.size(axis) == size, name, " has size ", t.size(axis), " along axis ", axis, "; expected ", size);
}

Dtype dtype_of(const Tensor& t, const char* name) {
  if (t.scalar_type() == ScalarType::Float) return Dtype::float32;
  STD_TORCH_CHECK(t.scalar_type() == ScalarType::BFloat16, name, " must be float32 or bfloat16");
  return Dtype::bfloat16;
}

// A decomposed state `[b, i, k, d]`.
struct State {
  State(const Tensor& t, const char* name) : dtype(dtype_of(t, name)) {
    check_rows(t, name, 4);
    data = static_cast<char*>(t.data_ptr());
    for (int axis = 0; axis < 4; ++axis) sizes[axis] = t.size(axis);
    for (int axis = 0; axis < 3; ++axis) strides[axis] = t.stride(axis);
  }

  int64_t positions() const {
    return sizes[0] * sizes[1];
  }

  Vectors at(int64_t position) const {
    const int64_t offset = position / sizes[1] * strides[0] + position % sizes[1] * strides[1];
    return {data + offset * (dtype == Dtype::float32 ? 4 : 2), strides[2], sizes[2], sizes[3], dtype};
  }

  char* data;
  int64_t sizes[4];
  int64_t strides[3];
  Dtype dtype;
};

// Constants of a position, `[b, i, d]` (or `[b, i]` where a position has one number), of float32.
struct Constants {
  Constants(const std::optional<Tensor>& given, const char* name, const State& x, int64_t width) {
    if (!given) return;
    const Tensor& t = *given;
    check_rows(t, name, 3);
    STD_TORCH_CHECK(t.scalar_type() == ScalarType::Float, name, " must be float32");
    check_size(t, name, 0, x.sizes[0]);
    check_size(t, name, 1, x.sizes[1]);
    check_size(t, name, 2, width);
    data = static_cast<const float*>(t.data_ptr());
    positions = x.sizes[1];
    strides[0] = t.stride(0);
    strides[1] = t.stride(1);
  }

  const float* at(int64_t position) const {
    return data ? data + position / positions * strides[0] + position % positions * strides[1] : nullptr;
  }

  const float* data = nullptr;
  int64_t positions = 1;
  int64_t strides[2] = {0, 0};
};

Rule rule_of(int64_t rule) {
  STD_TORCH_CHECK(rule >= 0 && rule <= static_cast<int64_t>(Rule::none), "rule is ", rule, ", which does not exist");
  return static_cast<Rule>(rule);
}

// Calls `compute(kernels, position, scratch)` for every position, in parallel.
template <typename Compute>
void for_each_position(const State& x, const Compute& compute) {
  const Kernels& kernels = decompx::kernels(level_in_use);
  const int64_t numbers = std::max<int64_t>(x.sizes[2] * x.sizes[3], 1);
  torch::stable::parallel_for(
      0, x.positions(), std::max<int64_t>(kNumbersPerThread / numbers, 1), [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(2 * x.sizes[2]);
        for (int64_t position = begin; position < end; ++position) compute(kernels, position, scratch.data());
      });
}

void bias_split_(
    Tensor x_tensor,
    std::optional<Tensor> bias_tensor,
    std::optional<Tensor> residual_tensor,
    int64_t rule,
    bool share_after_residual) {
  const State x(x_tensor, "x");
  const Constants bias(bias_tensor, "bias", x, x.sizes[3]);
  std::optional<State> residual;
  if (residual_tensor) {
    residual.emplace(*residual_tensor, "residual");
    for (int axis = 0; axis < 4; ++axis) check_size(*residual_tensor, "residual", axis, x.sizes[axis]);
    STD_TORCH_CHECK(residual->dtype == x.dtype, "residual must have the dtype of x");
  }
  STD_TORCH_CHECK(residual || !share_after_residual, "share_after_residual needs a residual");
  const Rule by = rule_of(rule);
  for_each_position(x, [&](const Kernels& kernels, int64_t position, float* scratch) {
    const Vectors rest = residual ? residual->at(position) : Vectors{};
    kernels.bias_split(
        x.at(position), residual ? &rest : nullptr, bias.at(position), by, share_after_residual, scratch);
  });
}

void layernorm_(
    Tensor x_tensor,
    Tensor scale_tensor,
    std::optional<Tensor> weight_tensor,
    std::optional<Tensor> bias_tensor,
    std::optional<Tensor> dots_tensor,
    bool centre,
    int64_t rule) {
  const State x(x_tensor, "x");
  const Constants scale(scale_tensor, "scale", x, 1);
  const Constants weight(weight_tensor, "weight", x, x.sizes[3]);
  const Constants bias(bias_tensor, "bias", x, x.sizes[3]);
  const Constants dots(dots_tensor, "dots", x, x.sizes[2]);
  const Rule by = rule_of(rule);
  for_each_position(x, [&](const Kernels& kernels, int64_t position, float* scratch) {
    kernels.layernorm(
        x.at(position),
        *scale.at(position),
        weight.at(position),
        bias.at(position),
        centre,
        by,
        dots.at(position),
        scratch);
  });
}

void add_norm_(
    Tensor x_tensor,
    Tensor branch_tensor,
    std::optional<Tensor> branch_bias_tensor,
    Tensor scale_tensor,
    std::optional<Tensor> weight_tensor,
    std::optional<Tensor> bias_tensor,
    bool share_after_residual,
    bool centre,
    int64_t rule) {
  const State x(x_tensor, "x"), branch(branch_tensor, "branch");
  for (int axis = 0; axis < 4; ++axis) check_size(branch_tensor, "branch", axis, x.sizes[axis]);
  STD_TORCH_CHECK(branch.dtype == x.dtype, "branch must have the dtype of x");
  const Constants branch_bias(branch_bias_tensor, "branch_bias", x, x.sizes[3]);
  const Constants scale(scale_tensor, "scale", x, 1);
  const Constants weight(weight_tensor, "weight", x, x.sizes[3]);
  const Constants bias(bias_tensor, "bias", x, x.sizes[3]);
  const Rule by = rule_of(rule);
  for_each_position(x, [&](const Kernels& kernels, int64_t position, float* scratch) {
    kernels.add_norm(
        x.at(position),
        branch.at(position),
        branch_bias.at(position),
        share_after_residual,
        *scale.at(position),
        weight.at(position),
        bias.at(position),
        centre,
        by,
        scratch);
  });
}

void activation_(
    Tensor a_tensor,
    Tensor slope_tensor,
    std::optional<Tensor> bias_tensor,
    std::optional<Tensor> intercept_tensor,
    int64_t rule) {
  const State a(a_tensor, "a");
  const Constants slope(slope_tensor, "slope", a, a.sizes[3]);
  const Constants bias(bias_tensor, "bias", a, a.sizes[3]);
  const Constants intercept(intercept_tensor, "intercept", a, a.sizes[3]);
  const Rule by = rule_of(rule);
  for_each_position(a, [&](const Kernels& kernels, int64_t position, float* scratch) {
    kernels.activation(
        a.at(position), slope.at(position), bias.at(position), intercept.at(position), by, scratch);
  });
}

void functional_dots(Tensor out_tensor, Tensor x_tensor, Tensor g_tensor) {
  const State x(x_tensor, "x"), g(g_tensor, "g"), out(out_tensor, "out");
  STD_TORCH_CHECK(g.dtype == Dtype::float32 && out.dtype == Dtype::float32, "g and out must be float32");
  for (int axis : {0, 1, 3}) check_size(g_tensor, "g", axis, x.sizes[axis]);
  for (int axis : {0, 1, 2}) check_size(out_tensor, "out", axis, x.sizes[axis]);
  check_size(out_tensor, "out", 3, g.sizes[2]);
  STD_TORCH_CHECK(x.sizes[2] <= 1 || out.strides[2] == g.sizes[2], "out must be contiguous over sources");
  for_each_position(x, [&](const Kernels& kernels, int64_t position, float*) {
    const Vectors functionals = g.at(position);
    kernels.functional_dots(
        x.at(position),
        static_cast<const float*>(functionals.data),
        functionals.stride,
        functionals.count,
        static_cast<float*>(out.at(position).data));
  });
}

// Numbers for a thread's own use, not set, at the start of a cache line.
struct Scratch {
  explicit Scratch(int64_t numbers) : all(new float[numbers + kLine]), aligned(all.get()) {
    while (reinterpret_cast<uintptr_t>(aligned) % (kLine * sizeof(float))) ++aligned;
  }

  static constexpr int64_t kLine = 16;
  std::unique_ptr<float[]> all;
  float* aligned;
};

// A five-dimensional `[b, i, k, h, v]`, as far as it is the same for all tensors of a mixing.
struct Heads {
  Heads(const Tensor& t, const char* name) : data(static_cast<char*>(t.data_ptr())), dtype(dtype_of(t, name)) {
    check_rows(t, name, 5);
    for (int axis = 0; axis < 5; ++axis) sizes[axis] = t.size(axis);
    for (int axis = 0; axis < 4; ++axis) strides[axis] = t.stride(axis);
  }

  char* at(int64_t b, int64_t i, int64_t k, int64_t h) const {
    const int64_t offset = b * strides[0] + i * strides[1] + k * strides[2] + h * strides[3];
    return data + offset * (dtype == Dtype::float32 ? 4 : 2);
  }

  char* data;
  Dtype dtype;
  int64_t sizes[5];
  int64_t strides[4];
};

// Positions and sources that a thread mixes at once: with so many, laying out the weights and values is little beside
// the products, and both stay in the cache of a core up to some thousand positions.
constexpr int64_t kMixedRows = 16 * decompx::kTileRows;
constexpr int64_t kMixedSources = 16;

// Sums of a window, an offset and a position must not overflow. (The public op passes none that is larger than sizes.)
constexpr int64_t kFar = int64_t{1} << 60;

void mixing(
    Tensor out_tensor, Tensor alpha, Tensor p_tensor, bool causal, std::optional<int64_t> window, int64_t offset) {
  const Heads out(out_tensor, "out"), p(p_tensor, "p");
  STD_TORCH_CHECK(alpha.is_cpu() && alpha.dim() == 4, "alpha must be on the CPU and have 4 axes");
  STD_TORCH_CHECK(p.dtype == out.dtype && dtype_of(alpha, "alpha") == out.dtype, "alpha, p and out differ in dtype");
  STD_TORCH_CHECK(!window || (*window > 0 && *window <= kFar), "window must be positive, and not too far");
  STD_TORCH_CHECK(-kFar <= offset && offset <= kFar, "offset must not be too far");
  const int64_t n_b = out.sizes[0], n_i = out.sizes[1], n_k = out.sizes[2], n_h = out.sizes[3], n_v = out.sizes[4];
  const int64_t n_j = p.sizes[1], n_g = p.sizes[3];
  check_size(alpha, "alpha", 0, n_b);
  check_size(alpha, "alpha", 1, n_h);
  check_size(alpha, "alpha", 2, n_i);
  check_size(alpha, "alpha", 3, n_j);
  for (int axis : {0, 2, 4}) check_size(p_tensor, "p", axis, out.sizes[axis]);
  STD_TORCH_CHECK(n_g > 0 && n_h % n_g == 0, "out must have a multiple of the heads of p");
  const int64_t row_blocks = (n_i + kMixedRows - 1) / kMixedRows;
  const int64_t source_blocks = (n_k + kMixedSources - 1) / kMixedSources;
  const int64_t alpha_strides[] = {alpha.stride(0), alpha.stride(1), alpha.stride(2), alpha.stride(3)};
  const char* alpha_data = static_cast<const char*>(alpha.data_ptr());
  const int64_t item = out.dtype == Dtype::float32 ? 4 : 2;
  const Kernels& kernels = decompx::kernels(level_in_use);

  const auto mix = [&](int64_t task, float* scratch) {
    const int64_t h = task % n_h, k = task / n_h % source_blocks * kMixedSources;
    const int64_t i = task / n_h / source_blocks % row_blocks * kMixedRows;
    const int64_t b = task / n_h / source_blocks / row_blocks;
    const int64_t at = b * alpha_strides[0] + h * alpha_strides[1] + i * alpha_strides[2];
    decompx::MixingBlock block{};
    block.alpha = alpha_data + at * item;
    block.alpha_i = alpha_strides[2], block.alpha_j = alpha_strides[3];
    block.p = p.at(b, 0, k, h / (n_h / n_g));
    block.p_j = p.strides[1], block.p_k = p.strides[2];
    block.out = out.at(b, i, k, h);
    block.out_i = out.strides[1], block.out_k = out.strides[2];
    block.n_i = std::min(n_i - i, kMixedRows), block.n_j = n_j;
    block.n_k = std::min(n_k - k, kMixedSources), block.n_v = n_v;
    block.first = i + offset, block.window = window.value_or(0), block.causal = causal;
    block.dtype = out.dtype;
    kernels.mixing(block, scratch);
  };
  const int64_t tasks = n_b * row_blocks * source_blocks * n_h;
  const int64_t rows = std::min(n_i, kMixedRows);
  const int64_t numbers = std::max<int64_t>(rows * std::min(n_k, kMixedSources) * n_j * n_v, 1);
  torch::stable::parallel_for(
      0, tasks, std::max<int64_t>(kNumbersPerThread / numbers, 1), [&](int64_t begin, int64_t end) {
        Scratch scratch(decompx::mixing_scratch(rows, n_j, n_v));
        for (int64_t task = begin; task < end; ++task) mix(task, scratch.aligned);
      });
}

constexpr int64_t kBandColumns = decompx::kWidestPanel;

// Numbers that a matrix takes as `lay_out_matrix` leaves it.
int64_t laid_out_numbers(const decompx::Matrix& matrix) {
  return matrix.rows * decompx::whole_panels(matrix.columns);
}

decompx::Matrix matrix_of(const Tensor& t, const char* name, Dtype dtype) {
  STD_TORCH_CHECK(t.is_cpu() && t.dim() == 2, name, " must be on the CPU and have 2 axes");
  STD_TORCH_CHECK(dtype_of(t, name) == dtype, name, " must have the dtype of what it is multiplied with");
  return {t.data_ptr(), t.size(0), t.size(1), t.stride(0), t.stride(1), dtype};
}

// Room for some matrices, one after the other.
float* room_of(const Tensor& packed, int64_t numbers) {
  check_rows(packed, "packed", 1);
  STD_TORCH_CHECK(packed.scalar_type() == ScalarType::Float, "packed must be float32");
  check_size(packed, "packed", 0, numbers);
  return static_cast<float*>(packed.data_ptr());
}

// Lays out some matrices in parallel, one after the other.
void lay_out(const std::vector<decompx::Matrix>& matrices, float* to) {
  struct Piece {
    const decompx::Matrix& matrix;
    int64_t column;
    float* to;
  };
  std::vector<Piece> pieces;
  for (const decompx::Matrix& matrix : matrices) {
    for (int64_t column = 0; column < matrix.columns; column += kBandColumns) pieces.push_back({matrix, column, to});
    to += laid_out_numbers(matrix);
  }
  const Kernels& kernels = decompx::kernels(level_in_use);
  torch::stable::parallel_for(0, static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const Piece& piece = pieces[n];
      kernels.lay_out_matrix(piece.matrix, piece.column, piece.column + kBandColumns, piece.to);
    }
  });
}

// Rows for each thread's blocks: blocks of the same size, none of more than `most` rows, as many for each thread.
int64_t rows_of_blocks(int64_t rows, int64_t most) {
  const int64_t threads = std::max<int64_t>(torch::stable::get_num_threads(), 1);
  const int64_t count = (rows + threads * most - 1) / (threads * most) * threads;
  return decompx::whole_tiles((rows + count - 1) / count);
}

// What a thread multiplies at once: the sums stay in the second level of its cache, and with fewer rows the matrix, which
// is read for each block of rows, takes longer to come than to be multiplied.
constexpr int64_t kProductRows = 96;
constexpr int64_t kProductColumns = 8 * kBandColumns;
constexpr int64_t kFewRows = 48;

// `packed` is for the right matrix as the kernels want it.
void product(Tensor out, Tensor a, Tensor b, Tensor packed) {
  for (const Tensor* t : {&out, &a}) check_rows(*t, t == &a ? "a" : "out", 2);
  const Dtype dtype = dtype_of(a, "a");
  STD_TORCH_CHECK(dtype_of(out, "out") == dtype, "out must have the dtype of a");
  const decompx::Matrix matrix = matrix_of(b, "b", dtype);
  const int64_t n_rows = a.size(0), n_inner = matrix.rows, n_columns = matrix.columns;
  check_size(a, "a", 1, n_inner);
  check_size(out, "out", 0, n_rows);
  check_size(out, "out", 1, n_columns);
  if (!n_rows || !n_columns) return;
  float* const laid_out = room_of(packed, laid_out_numbers(matrix));
  lay_out({matrix}, laid_out);

  const int64_t threads = std::max<int64_t>(torch::stable::get_num_threads(), 1);
  const bool few = n_rows < threads * kFewRows;  // then the columns are divided
  const int64_t rows = few ? std::min(n_rows, kProductRows) : rows_of_blocks(n_rows, kProductRows);
  const int64_t row_blocks = (n_rows + rows - 1) / rows;
  const int64_t most = few ? std::min(kProductColumns, (n_columns + threads - 1) / threads) : kProductColumns;
  const int64_t columns = decompx::whole_panels(most), column_blocks = (n_columns + columns - 1) / columns;
  const int64_t item = dtype == Dtype::float32 ? 4 : 2;
  const Kernels& kernels = decompx::kernels(level_in_use);
  torch::stable::parallel_for(0, row_blocks * column_blocks, 1, [&](int64_t begin, int64_t end) {
    Scratch scratch(decompx::product_scratch(rows, columns));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / column_blocks * rows, column = task % column_blocks * columns;
      decompx::ProductBlock block{};
      block.from = static_cast<const char*>(a.data_ptr()) + row * a.stride(0) * item;
      block.to = static_cast<char*>(out.data_ptr()) + row * out.stride(0) * item;
      block.matrix = laid_out;
      block.from_stride = a.stride(0), block.to_stride = out.stride(0);
      block.rows = std::min(rows, n_rows - row), block.n_inner = n_inner, block.n_columns = n_columns;
      block.start = column, block.stop = std::min(column + columns, n_columns);
      block.dtype = dtype;
      kernels.product(block, scratch.aligned);
    }
  });
}

// What a thread sends through a network at once, with what becomes of it: about the second level of its cache. With fewer
// rows the weights, which are read for each block of rows, take longer to come than to be multiplied.
constexpr int64_t kNetworkNumbers = 160 * 1024;
constexpr int64_t kMostNetworkRows = 192;

// `packed` is for the weights as the kernels want them.
void network(
    Tensor out_tensor,
    Tensor u_tensor,
    Tensor w_in,
    Tensor w_out,
    Tensor slope_tensor,
    std::optional<Tensor> bias,
    std::optional<Tensor> shares_tensor,
    Tensor packed) {
  const State u(u_tensor, "u"), out(out_tensor, "out");
  STD_TORCH_CHECK(out.dtype == u.dtype, "out must have the dtype of u");
  for (int axis = 0; axis < 4; ++axis) check_size(out_tensor, "out", axis, u.sizes[axis]);
  const decompx::Matrix in = matrix_of(w_in, "w_in", u.dtype), back = matrix_of(w_out, "w_out", u.dtype);
  const int64_t d = u.sizes[3], f = in.columns;
  if (!d || !u.sizes[2] || !u.positions()) return;
  check_size(w_in, "w_in", 0, d);
  check_size(w_out, "w_out", 0, f);
  check_size(w_out, "w_out", 1, d);
  const Constants slope(slope_tensor, "slope", u, f);
  const Constants shares(shares_tensor, "shares", u, u.sizes[2]);
  STD_TORCH_CHECK(bias.has_value() == shares_tensor.has_value(), "bias and shares come together");
  if (bias) {
    check_rows(*bias, "bias", 1);
    check_size(*bias, "bias", 0, f);
    STD_TORCH_CHECK(bias->scalar_type() == ScalarType::Float, "bias must be float32");
  }
  float* const laid_out = room_of(packed, laid_out_numbers(in) + laid_out_numbers(back));
  lay_out({in, back}, laid_out);

  const float* const numbers = bias ? static_cast<const float*>(bias->data_ptr()) : nullptr;
  const decompx::Network net{laid_out, laid_out + laid_out_numbers(in), numbers, d, f};
  const Kernels& kernels = decompx::kernels(level_in_use);
  const int64_t n_k = u.sizes[2], rows = u.positions() * n_k;
  const int64_t fitting = kNetworkNumbers / (2 * d + decompx::kDeepest / 2) / decompx::kTileRows * decompx::kTileRows;
  const int64_t size = rows_of_blocks(rows, std::clamp(fitting, 4 * decompx::kTileRows, kMostNetworkRows));
  const int64_t item = u.dtype == Dtype::float32 ? 4 : 2;
  torch::stable::parallel_for(0, (rows + size - 1) / size, 1, [&](int64_t begin, int64_t end) {
    Scratch scratch(decompx::network_scratch(size, d));
    std::vector<const void*> from(size);
    std::vector<void*> to(size);
    std::vector<const float*> slopes(size);
    std::vector<float> omega(size);
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * size, n = std::min(size, rows - first);
      for (int64_t r = 0; r < n; ++r) {
        const int64_t position = (first + r) / n_k, k = (first + r) % n_k;
        const Vectors source = u.at(position), target = out.at(position);
        from[r] = static_cast<const char*>(source.data) + k * source.stride * item;
        to[r] = static_cast<char*>(target.data) + k * target.stride * item;
        slopes[r] = slope.at(position);
        if (bias) omega[r] = shares.at(position)[k];
      }
      kernels.network({from.data(), to.data(), slopes.data(), omega.data(), n, u.dtype}, net, scratch.aligned);
    }
  });
}

bool has_level(int64_t level) {
  return level >= 0 && level <= static_cast<int64_t>(Level::avx512_bf16) && decompx::available(static_cast<Level>(level));
}

void set_level(int64_t level) {
  STD_TORCH_CHECK(has_level(level), "this processor has not the instructions of level ", level);
  level_in_use = static_cast<Level>(level);
}

}  // namespace

STABLE_TORCH_LIBRARY(decompx_fast_native, library) {
  library.def("bias_split_(Tensor(a!) x, Tensor? bias, Tensor? residual, int rule, bool share_after_residual) -> ()");
  library.def(
      "layernorm_(Tensor(a!) x, Tensor scale, Tensor? weight, Tensor? bias, Tensor? dots, bool centre, int rule) -> ()");
  library.def(
      "add_norm_(Tensor(a!) x, Tensor(b!) branch, Tensor? branch_bias, Tensor scale, Tensor? weight, Tensor? bias, "
      "bool share_after_residual, bool centre, int rule) -> ()");
  library.def("activation_(Tensor(a!) a, Tensor slope, Tensor? bias, Tensor? intercept, int rule) -> ()");
  library.def("functional_dots(Tensor(a!) out, Tensor x, Tensor g) -> ()");
  library.def(
      "mixing(Tensor(a!) out, Tensor alpha, Tensor p, bool causal, int? window, int offset) -> ()");
  library.def(
      "network(Tensor(a!) out, Tensor u, Tensor w_in, Tensor w_out, Tensor slope, Tensor? bias, Tensor? shares, "
      "Tensor(b!) packed) -> ()");
  library.def("product(Tensor(a!) out, Tensor a, Tensor b, Tensor(b!) packed) -> ()");
  library.def("has_level(int level) -> bool");
  library.def("set_level(int level) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(decompx_fast_native, CPU, library) {
  library.impl("bias_split_", TORCH_BOX(&bias_split_));
  library.impl("layernorm_", TORCH_BOX(&layernorm_));
  library.impl("add_norm_", TORCH_BOX(&add_norm_));
  library.impl("activation_", TORCH_BOX(&activation_));
  library.impl("functional_dots", TORCH_BOX(&functional_dots));
  library.impl("mixing", TORCH_BOX(&mixing));
  library.impl("network", TORCH_BOX(&network));
  library.impl("product", TORCH_BOX(&product));
}

// They take no tensors, so no device decides where they run.
STABLE_TORCH_LIBRARY_IMPL(decompx_fast_native, CompositeExplicitAutograd, library) {
  library.impl("has_level", TORCH_BOX(&has_level));
  library.impl("set_level", TORCH_BOX(&set_level));
}
