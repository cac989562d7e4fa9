// The operators that multiply matrices: mixing, products with weights, and the feed-forward network.

#include "bindings.h"

namespace decompx_fast {
namespace {

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

}  // namespace

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

namespace {

constexpr int64_t kBandColumns = decompx::kWidestPanel;

// Numbers that a matrix takes as `lay_out_matrix` leaves it.
int64_t laid_out_numbers(const decompx::Matrix& matrix) {
  return decompx::laid_out_numbers(matrix.rows, matrix.columns);
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

// Whether products of this dtype are made by the processor's own tiles.
bool by_tiles(Dtype dtype) {
  return dtype == Dtype::bfloat16 && level_in_use >= Level::amx;
}

// Rows that are multiplied together.
int64_t rows_at_once(Dtype dtype) {
  return by_tiles(dtype) ? 2 * decompx::kMostFilled : decompx::kTileRows;
}

// Rows for each thread's blocks: blocks of the same size, none of more than `most` rows, as many for each thread.
int64_t rows_of_blocks(int64_t rows, int64_t most, Dtype dtype) {
  const int64_t threads = std::max<int64_t>(torch::stable::get_num_threads(), 1);
  const int64_t count = (rows + threads * most - 1) / (threads * most) * threads, step = rows_at_once(dtype);
  return ((rows + count - 1) / count + step - 1) / step * step;
}

// What a thread multiplies at once: the sums stay in the second level of its cache, and with fewer rows the matrix, which
// is read for each block of rows, takes longer to come than to be multiplied.
constexpr int64_t kProductRows = 96;
constexpr int64_t kProductColumns = 8 * kBandColumns;
constexpr int64_t kFewRows = 48;

}  // namespace

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
  const int64_t rows = few ? std::min(n_rows, kProductRows) : rows_of_blocks(n_rows, kProductRows, dtype);
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

namespace {

// Rows that a thread sends through a network at once, with what becomes of them: about the second level of its cache, a
// mebibyte where there is AVX-512 and half of one elsewhere. With fewer rows the weights, which are read for each block
// of rows, take longer to come than to be multiplied. By tiles, vectors and hidden layer are half as large.
int64_t network_rows(int64_t d, Dtype dtype) {
  if (by_tiles(dtype)) {
    const int64_t step = rows_at_once(dtype), fitting = 240 * 1024 / (3 * d / 2 + decompx::kDeepest / 6) / step * step;
    return std::clamp<int64_t>(fitting, 2 * step, 8 * step);
  }
  const bool wide = level_in_use >= Level::avx512;
  const int64_t numbers = (wide ? 240 : 160) * 1024, hidden = decompx::kDeepest / (wide ? 6 : 2);
  const int64_t fitting = numbers / (2 * d + hidden) / decompx::kTileRows * decompx::kTileRows;
  return std::clamp<int64_t>(fitting, 4 * decompx::kTileRows, 192);
}

}  // namespace

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
  const int64_t size = rows_of_blocks(rows, network_rows(d, u.dtype), u.dtype);
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

}  // namespace decompx_fast
