// The kernels of rows.h as operators of PyTorch, `decompx_fast_native::<op>`, parallel over positions.
//
// Only PyTorch's stable interface is used, as of version 2.11, and none of Python's: one binary serves every later
// version of both. The operators expect what decompx_fast/ops/native.py passes: constants in float32, vectors of a
// position expanded to `[b, i, d]`, and arguments that the public ops have checked. What would make them read or write
// outside of a tensor is checked again here.

#include <algorithm>
#include <cstdint>
#include <cstring>
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

// The branch becomes the new state, position by position while it is in the cache, and is copied to where the state is.
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
  const int64_t item = x.dtype == Dtype::float32 ? 4 : 2;
  for_each_position(x, [&](const Kernels& kernels, int64_t position, float* scratch) {
    const Vectors from = branch.at(position), to = x.at(position);
    kernels.bias_split(from, &to, branch_bias.at(position), by, share_after_residual, scratch);
    kernels.layernorm(
        from, *scale.at(position), weight.at(position), bias.at(position), centre, by, nullptr, scratch);
    for (int64_t k = 0; k < to.count; ++k) {
      std::memcpy(
          static_cast<char*>(to.data) + k * to.stride * item,
          static_cast<const char*>(from.data) + k * from.stride * item,
          to.width * item);
    }
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

void mixing(
    Tensor out_tensor, Tensor alpha, Tensor p_tensor, bool causal, std::optional<int64_t> window, int64_t offset) {
  const Heads out(out_tensor, "out"), p(p_tensor, "p");
  STD_TORCH_CHECK(alpha.is_cpu() && alpha.dim() == 4, "alpha must be on the CPU and have 4 axes");
  STD_TORCH_CHECK(p.dtype == out.dtype && dtype_of(alpha, "alpha") == out.dtype, "alpha, p and out differ in dtype");
  STD_TORCH_CHECK(!window || *window > 0, "window must be positive");
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
        std::vector<float> scratch(decompx::mixing_scratch(rows, n_j, n_v));
        for (int64_t task = begin; task < end; ++task) mix(task, scratch.data());
      });
}

bool has_level(int64_t level) {
  return level >= 0 && level <= static_cast<int64_t>(Level::avx512) && decompx::available(static_cast<Level>(level));
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
}

// They take no tensors, so no device decides where they run.
STABLE_TORCH_LIBRARY_IMPL(decompx_fast_native, CompositeExplicitAutograd, library) {
  library.impl("has_level", TORCH_BOX(&has_level));
  library.impl("set_level", TORCH_BOX(&set_level));
}
