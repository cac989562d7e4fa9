// What the operators of bindings.cpp and of bindings_matrices.cpp share: checked views of tensors.

#pragma once

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

namespace decompx_fast {

using decompx::Dtype;
using decompx::Kernels;
using decompx::Level;
using decompx::Rule;
using decompx::Vectors;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// A thread gets no fewer numbers than this: waking it costs more.
constexpr int64_t kNumbersPerThread = 16384;

// The instruction set in use.
inline Level level_in_use = Level::portable;

inline void check_rows(const Tensor& t, const char* name, int64_t dims) {
  STD_TORCH_CHECK(t.is_cpu(), name, " must be on the CPU");
  STD_TORCH_CHECK(t.dim() == dims, name, " has ", t.dim(), " axes; it must have ", dims);
  STD_TORCH_CHECK(
      t.size(dims - 1) <= 1 || t.stride(dims - 1) == 1, name, " must be contiguous along its last axis");
}

inline void check_size(const Tensor& t, const char* name, int64_t axis, int64_t size) {
  STD_TORCH_CHECK(t.size(axis) == size, name, " has size ", t.size(axis), " along axis ", axis, "; expected ", size);
}

inline Dtype dtype_of(const Tensor& t, const char* name) {
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

// The operators of bindings_matrices.cpp.
void mixing(Tensor out, Tensor alpha, Tensor p, bool causal, std::optional<int64_t> window, int64_t offset);
void product(Tensor out, Tensor a, Tensor b, Tensor packed);
void network(
    Tensor out,
    Tensor u,
    Tensor w_in,
    Tensor w_out,
    Tensor slope,
    std::optional<Tensor> bias,
    std::optional<Tensor> shares,
    Tensor packed);

}  // namespace decompx_fast
