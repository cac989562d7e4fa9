// The kernels of rows.h as operators of PyTorch, `decompx_fast_native::<op>`, parallel over positions.
//
// Only PyTorch's stable interface is used, as of version 2.11, and none of Python's: one binary serves every later
// version of both. The operators expect what decompx_fast/ops/native.py passes: constants in float32, vectors of a
// position expanded to `[b, i, d]`, and arguments that the public ops have checked. What would make them read or write
// outside of a tensor is checked again here.

#include "bindings.h"

namespace decompx_fast {
namespace {

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
    bool centre,
    int64_t rule) {
  const State x(x_tensor, "x");
  const Constants scale(scale_tensor, "scale", x, 1);
  const Constants weight(weight_tensor, "weight", x, x.sizes[3]);
  const Constants bias(bias_tensor, "bias", x, x.sizes[3]);
  const Rule by = rule_of(rule);
  for_each_position(x, [&](const Kernels& kernels, int64_t position, float* scratch) {
    kernels.layernorm(
        x.at(position), *scale.at(position), weight.at(position), bias.at(position), centre, by, scratch);
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

bool has_level(int64_t level) {
  return level >= 0 && level <= static_cast<int64_t>(Level::amx) && decompx::available(static_cast<Level>(level));
}

void set_level(int64_t level) {
  STD_TORCH_CHECK(has_level(level), "this processor has not the instructions of level ", level);
  level_in_use = static_cast<Level>(level);
}

}  // namespace
}  // namespace decompx_fast

using namespace decompx_fast;

STABLE_TORCH_LIBRARY(decompx_fast_native, library) {
  library.def("bias_split_(Tensor(a!) x, Tensor? bias, Tensor? residual, int rule, bool share_after_residual) -> ()");
  library.def(
      "layernorm_(Tensor(a!) x, Tensor scale, Tensor? weight, Tensor? bias, bool centre, int rule) -> ()");
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
