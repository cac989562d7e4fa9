// The kernels of rows.h, each level that the processor has, against loops in double; without PyTorch, so that a
// sanitizer sees nothing but them. Rows lie in allocations that end where they end. Threads share constants, and
// work on positions of their own, as they do under PyTorch.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "../rows.h"

using namespace decompx;

namespace {

std::mt19937 generator(0);
int failures = 0;

std::vector<float> random_numbers(int64_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> numbers(n);
  for (float& number : numbers) number = normal(generator);
  return numbers;
}

// Positions `[p, k, d]` with rows `d + gap` apart, but none after the last number.
struct State {
  State(int64_t p, int64_t k, int64_t d, Dtype dtype, const std::vector<float>& numbers)
      : p(p), k(k), d(d), stride(d + 3), dtype(dtype), bytes(std::max<int64_t>((p * k - 1) * stride + d, 0) * size()) {
    data.reset(static_cast<char*>(std::malloc(bytes)));
    std::memset(data.get(), 0x7f, bytes);
    for (int64_t r = 0; r < p * k; ++r) {
      for (int64_t j = 0; j < d; ++j) put(r, j, numbers[r * d + j]);
    }
  }

  int64_t size() const {
    return dtype == Dtype::float32 ? 4 : 2;
  }
  Vectors at(int64_t position) const {
    return {data.get() + position * k * stride * size(), stride, k, d, dtype};
  }
  void put(int64_t r, int64_t j, float value) {
    char* to = data.get() + (r * stride + j) * size();
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (dtype == Dtype::bfloat16) {
      const uint16_t half = static_cast<uint16_t>(bits >> 16);
      std::memcpy(to, &half, 2);
    } else {
      std::memcpy(to, &bits, 4);
    }
  }
  double get(int64_t r, int64_t j) const {
    const char* from = data.get() + (r * stride + j) * size();
    uint32_t bits = 0;
    std::memcpy(reinterpret_cast<char*>(&bits) + (4 - size()), from, size());
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }

  struct Free {
    void operator()(char* p) const {
      std::free(p);
    }
  };
  int64_t p, k, d, stride;
  Dtype dtype;
  int64_t bytes;
  std::unique_ptr<char, Free> data;
};

template <typename Work>
void in_threads(int64_t positions, const Work& work) {
  std::vector<std::thread> threads;
  for (int64_t n = 0; n < positions; ++n) threads.emplace_back([&work, n] { work(n); });
  for (std::thread& thread : threads) thread.join();
}

std::vector<double> shares(const std::vector<double>& dots) {
  double total = 0;
  for (double dot : dots) total += std::fabs(dot);
  std::vector<double> result;
  for (double dot : dots) result.push_back(total ? std::fabs(dot) / total : 1.0 / dots.size());
  return result;
}

void compare(const char* what, double got, double expected, Dtype dtype) {
  const double tolerance = (dtype == Dtype::float32 ? 1e-4 : 2e-2) * (1 + std::fabs(expected));
  if (!(std::fabs(got - expected) <= tolerance) && ++failures < 10) {
    std::printf("%s: %g, expected %g\n", what, got, expected);
  }
}

void test(const Kernels& kernels, int64_t k, int64_t d, Dtype dtype) {
  const int64_t p = 3;
  const auto numbers = random_numbers(p * k * d), rest_numbers = random_numbers(p * k * d);
  const auto weight = random_numbers(d), bias = random_numbers(d), late = random_numbers(d);
  const State rest(p, k, d, dtype, rest_numbers);
  State split(p, k, d, dtype, numbers), normed(p, k, d, dtype, numbers), active(p, k, d, dtype, numbers);
  State joined(p, k, d, dtype, rest_numbers);
  const State before(p, k, d, dtype, numbers);
  std::vector<float> dots(p * k * 2);
  std::vector<float> functionals(bias);
  functionals.insert(functionals.end(), late.begin(), late.end());
  in_threads(p, [&](int64_t n) {
    std::vector<float> scratch(2 * k);
    const Vectors residual = rest.at(n);
    kernels.bias_split(split.at(n), &residual, bias.data(), Rule::absdot, false, scratch.data());
    kernels.layernorm(normed.at(n), 1.5f, weight.data(), bias.data(), true, Rule::absdot, scratch.data());
    kernels.add_norm(
        joined.at(n),
        before.at(n),
        bias.data(),
        false,
        1.5f,
        weight.data(),
        late.data(),
        true,
        Rule::absdot,
        scratch.data());
    kernels.activation(active.at(n), weight.data(), bias.data(), late.data(), Rule::absdot, scratch.data());
    kernels.functional_dots(before.at(n), functionals.data(), d, 2, dots.data() + n * k * 2);
  });
  for (int64_t n = 0; n < p; ++n) {
    std::vector<double> x(k * d), y(k * d), v(k * d), x_dots(k), y_dots(k), v_dots(k), late_dots(k);
    for (int64_t s = 0; s < k; ++s) {
      double mean = 0;
      for (int64_t j = 0; j < d; ++j) mean += (x[s * d + j] = before.get(n * k + s, j)) / d;
      for (int64_t j = 0; j < d; ++j) {
        y[s * d + j] = (x[s * d + j] - mean) / 1.5 * weight[j];
        x_dots[s] += x[s * d + j] * bias[j];
        y_dots[s] += y[s * d + j] * bias[j];
        late_dots[s] += x[s * d + j] * late[j];
      }
    }
    const auto x_shares = shares(x_dots), y_shares = shares(y_dots);
    for (int64_t s = 0; s < k; ++s) {
      for (int64_t j = 0; j < d; ++j) {
        v[s * d + j] = (x[s * d + j] + x_shares[s] * bias[j]) * weight[j];
        v_dots[s] += v[s * d + j] * late[j];
      }
    }
    const auto v_shares = shares(v_dots);
    std::vector<double> r(k * d), r_dots(k);
    for (int64_t s = 0; s < k; ++s) {
      double mean = 0;
      for (int64_t j = 0; j < d; ++j) {
        mean += (r[s * d + j] = rest.get(n * k + s, j) + x[s * d + j] + x_shares[s] * bias[j]) / d;
      }
      for (int64_t j = 0; j < d; ++j) r_dots[s] += (r[s * d + j] = (r[s * d + j] - mean) / 1.5 * weight[j]) * late[j];
    }
    const auto r_shares = shares(r_dots);
    for (int64_t s = 0; s < k; ++s) {
      compare("dots", dots[(n * k + s) * 2], x_dots[s], Dtype::float32);
      compare("late dots", dots[(n * k + s) * 2 + 1], late_dots[s], Dtype::float32);
      for (int64_t j = 0; j < d; ++j) {
        const int64_t at = n * k + s;
        compare("bias_split", split.get(at, j), rest.get(at, j) + x[s * d + j] + x_shares[s] * bias[j], dtype);
        if (d > 1) compare("layernorm", normed.get(at, j), y[s * d + j] + y_shares[s] * bias[j], dtype);
        if (d > 1) compare("add_norm", joined.get(at, j), r[s * d + j] + r_shares[s] * late[j], dtype);
        compare("activation", active.get(at, j), v[s * d + j] + v_shares[s] * late[j], dtype);
      }
    }
  }
}

// One head on a block of positions and sources; `p` and `out` are `[position, source, v]` with gaps between the rows.
void test_mixing(const Kernels& kernels, int64_t n_i, int64_t n_j, int64_t n_k, int64_t n_v, bool masked, Dtype dtype) {
  const State p(n_j, n_k, n_v, dtype, random_numbers(n_j * n_k * n_v));
  const State alpha(1, n_i, n_j, dtype, random_numbers(n_i * n_j));
  State out(n_i, n_k, n_v, dtype, std::vector<float>(n_i * n_k * n_v, NAN));
  const int64_t first = n_j - n_i, window = masked ? 4 : 0;
  in_threads(2, [&](int64_t half) {  // each has some of the sources
    const int64_t from = half ? n_k / 2 : 0, to = half ? n_k : n_k / 2;
    if (from == to) return;
    std::vector<float> scratch(mixing_scratch(n_i, n_j, n_v));
    const int64_t skip = from * p.stride * p.size();
    MixingBlock block{};
    block.alpha = alpha.data.get(), block.alpha_i = alpha.stride, block.alpha_j = 1;
    block.p = p.data.get() + skip, block.p_j = n_k * p.stride, block.p_k = p.stride;
    block.out = out.data.get() + skip, block.out_i = n_k * out.stride, block.out_k = out.stride;
    block.n_i = n_i, block.n_j = n_j, block.n_k = to - from, block.n_v = n_v;
    block.first = first, block.window = window, block.causal = masked, block.dtype = dtype;
    kernels.mixing(block, scratch.data());
  });
  for (int64_t i = 0; i < n_i; ++i) {
    for (int64_t k = 0; k < n_k; ++k) {
      for (int64_t v = 0; v < n_v; ++v) {
        double expected = 0;
        for (int64_t j = 0; j < n_j; ++j) {
          const int64_t distance = i + first - j;
          const bool attends = !masked || (distance >= 0 && distance < window);
          if (attends) expected += alpha.get(i, j) * p.get(j * n_k + k, v);
        }
        compare("mixing", out.get(i * n_k + k, v), expected, dtype);
      }
    }
  }
}

// Rows times a matrix, some columns by each of two threads.
void test_product(const Kernels& kernels, int64_t rows, int64_t inner, int64_t columns, bool transposed, Dtype dtype) {
  const State a(1, rows, inner, dtype, random_numbers(rows * inner));
  const auto numbers = random_numbers(inner * columns);
  const State b(1, transposed ? columns : inner, transposed ? inner : columns, dtype, numbers);
  State out(1, rows, columns, dtype, std::vector<float>(rows * columns, NAN));
  const Matrix matrix{b.data.get(), inner, columns, transposed ? 1 : b.stride, transposed ? b.stride : 1, dtype};
  std::vector<float> packed(laid_out_numbers(inner, columns), NAN);
  for (int64_t j = 0; j < columns; j += kWidestPanel) {
    kernels.lay_out_matrix(matrix, j, j + kWidestPanel, packed.data());
  }
  in_threads(2, [&](int64_t half) {
    ProductBlock block{};
    block.from = a.data.get(), block.to = out.data.get(), block.matrix = packed.data();
    block.from_stride = a.stride, block.to_stride = out.stride;
    block.rows = rows, block.n_inner = inner, block.n_columns = columns, block.dtype = dtype;
    block.start = half ? kWidestPanel : 0, block.stop = half ? columns : std::min(columns, kWidestPanel);
    std::vector<float> scratch(product_scratch(rows, columns), NAN);
    if (block.start < block.stop) kernels.product(block, scratch.data());
  });
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      double expected = 0;
      for (int64_t j = 0; j < inner; ++j) expected += a.get(r, j) * (transposed ? b.get(c, j) : b.get(j, c));
      compare("product", out.get(r, c) / (1 + inner), expected / (1 + inner), dtype);
    }
  }
}

// A network on rows of two halves, each a thread's.
void test_network(const Kernels& kernels, int64_t rows, int64_t d, int64_t f, bool biased, bool transposed, Dtype dtype) {
  const State u(1, rows, d, dtype, random_numbers(rows * d));
  const State in(1, transposed ? f : d, transposed ? d : f, dtype, random_numbers(d * f));
  const State back(1, transposed ? d : f, transposed ? f : d, dtype, random_numbers(d * f));
  const auto slope = random_numbers(rows * f), bias = random_numbers(f), shares = random_numbers(rows);
  State out(1, rows, d, dtype, std::vector<float>(rows * d, NAN));
  const auto lay_out = [&](const State& w, int64_t n, int64_t m, std::vector<float>& to) {
    const Matrix matrix{w.data.get(), n, m, transposed ? 1 : w.stride, transposed ? w.stride : 1, dtype};
    for (int64_t j = 0; j < whole_panels(m); j += kWidestPanel) {
      kernels.lay_out_matrix(matrix, j, j + kWidestPanel, to.data());
    }
  };
  std::vector<float> w_in(laid_out_numbers(d, f), NAN), w_out(laid_out_numbers(f, d), NAN);
  lay_out(in, d, f, w_in);
  lay_out(back, f, d, w_out);
  const Network net{w_in.data(), w_out.data(), biased ? bias.data() : nullptr, d, f};
  in_threads(2, [&](int64_t half) {
    const int64_t start = half ? rows / 2 : 0, count = half ? rows - rows / 2 : rows / 2;
    std::vector<const void*> from;
    std::vector<void*> to;
    std::vector<const float*> slopes;
    for (int64_t r = start; r < start + count; ++r) {
      from.push_back(u.data.get() + r * u.stride * u.size());
      to.push_back(out.data.get() + r * out.stride * out.size());
      slopes.push_back(slope.data() + r * f);
    }
    std::vector<float> scratch(network_scratch(count, d));
    if (count) {
      kernels.network(
          {from.data(), to.data(), slopes.data(), shares.data() + start, count, dtype}, net, scratch.data());
    }
  });
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<double> hidden(f);
    for (int64_t j = 0; j < f; ++j) {
      for (int64_t c = 0; c < d; ++c) hidden[j] += u.get(r, c) * (transposed ? in.get(j, c) : in.get(c, j));
      if (biased) hidden[j] += static_cast<double>(shares[r]) * bias[j];
      hidden[j] *= slope[r * f + j];
    }
    for (int64_t c = 0; c < d; ++c) {
      double expected = 0, size = 0;
      for (int64_t j = 0; j < f; ++j) {
        const double part = hidden[j] * (transposed ? back.get(c, j) : back.get(j, c));
        expected += part, size += std::fabs(part);
      }
      compare("network", out.get(r, c) / (1 + size), expected / (1 + size), dtype);
    }
  }
}

}  // namespace

#if defined(DECOMPX_LOWERED)
#define LOWERED " (lowered)"
#else
#define LOWERED ""
#endif

const char* name_of(Level level) {
  switch (level) {
    case Level::portable:
      return "portable";
    case Level::avx2:
      return "avx2";
    case Level::avx512:
      return "avx512" LOWERED;
    case Level::avx512_bf16:
      return "avx512_bf16" LOWERED;
    default:
      return "amx" LOWERED;
  }
}

int main() {
  for (Level level : {Level::portable, Level::avx2, Level::avx512, Level::avx512_bf16, Level::amx}) {
    if (!available(level)) {
      std::printf("%s: not on this processor\n", name_of(level));
      continue;
    }
    for (Dtype dtype : {Dtype::float32, Dtype::bfloat16}) {
      for (int64_t k : {1, 7, 33}) {
        for (int64_t d : {1, 3, 16, 31, 64, 65, 130}) test(kernels(level), k, d, dtype);
        for (int64_t n : {1, 6, 20}) {
          for (int64_t v : {1, 8, 20, 32, 33}) {
            for (bool masked : {false, true}) test_mixing(kernels(level), n, n + 3, k, v, masked, dtype);
          }
        }
      }
      for (int64_t rows : {1, 7, 12}) {
        for (bool flag : {false, true}) {
          for (int64_t inner : {0, 1, 17, 385, 800}) {
            for (int64_t columns : {1, 16, 70, 128}) test_product(kernels(level), rows, inner, columns, flag, dtype);
          }
        }
      }
      for (int64_t rows : {1, 2, 13, 26}) {
        for (bool flag : {false, true}) {
          for (int64_t d : {1, 16, 33}) test_network(kernels(level), rows, d, 70 - d, flag, !flag, dtype);
          test_network(kernels(level), rows, 200, 400, flag, flag, dtype);
          test_network(kernels(level), rows, 800, 9, true, flag, dtype);
        }
      }
    }
    std::printf("%s: %d failures\n", name_of(level), failures);
  }
  return failures ? 1 : 0;
}
