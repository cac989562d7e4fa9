// The kernels of rows.h for one instruction set. Included once by each rows_<level>.cpp, which defines
//
//   DECOMPX_LEVEL   name of the namespace
//   DECOMPX_FLOATS  float32 numbers of a vector register
//   DECOMPX_PAIRS   if the processor multiplies pairs of bfloat16, and adds both products to a float32
//   DECOMPX_TILES   if it does so for whole tiles of such pairs
//
// and selects the instruction set. Nothing with external linkage but `table` may come from here, not even an inline
// function of the standard library: the linker would keep one copy for all levels.

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(DECOMPX_PAIRS) && !defined(DECOMPX_LOWERED)
#include <immintrin.h>
#endif

#include "rows.h"

namespace decompx {
namespace DECOMPX_LEVEL {

extern const Kernels table;

namespace {

constexpr int64_t kFloats = DECOMPX_FLOATS;

typedef float Vec __attribute__((vector_size(DECOMPX_FLOATS * 4)));
typedef uint32_t Words __attribute__((vector_size(DECOMPX_FLOATS * 4)));
typedef uint16_t Halves __attribute__((vector_size(DECOMPX_FLOATS * 2)));

// The upper half of a float32.
struct Bfloat16 {
  uint16_t bits;
};

inline Vec broadcast(float value) {
  return Vec{} + value;
}

inline Vec widen(const Halves& halves) {
  const Words words = __builtin_convertvector(halves, Words) << 16;
  Vec v;
  std::memcpy(&v, &words, sizeof v);
  return v;
}

// Rounds to nearest, ties to even; NaN stays NaN.
inline Halves narrow(const Vec& v) {
#if defined(DECOMPX_TILES) && !defined(DECOMPX_LOWERED)
  return (Halves)_mm512_cvtneps_pbh((__m512)v);
#endif
  Words words;
  std::memcpy(&words, &v, sizeof words);
  const Words rounded = (words + 0x7fffu + ((words >> 16) & 1u)) >> 16;
  const Words is_nan = (Words)(v != v);
  return __builtin_convertvector((rounded & ~is_nan) | (is_nan & 0x7fc0u), Halves);
}

#if defined(DECOMPX_PAIRS)
// sums + the two products of each pair of `b` with the pair `a`. What is smaller than a normal number counts as zero.
inline Vec add_pairs(const Vec& sums, const Vec& b, const float* a) {
  uint32_t pair;
  std::memcpy(&pair, a, sizeof pair);
  const Words left = Words{} + pair;
#if defined(DECOMPX_LOWERED)
  Words right;
  std::memcpy(&right, &b, sizeof right);
  const Words first[] = {left << 16, right << 16}, second[] = {left & 0xffff0000u, right & 0xffff0000u};
  Vec v[4];
  std::memcpy(v, second, sizeof second);
  std::memcpy(v + 2, first, sizeof first);
  return sums + v[0] * v[1] + v[2] * v[3];
#else
  return (Vec)_mm512_dpbf16_ps((__m512)sums, (__m512bh)b, (__m512bh)left);
#endif
}
#endif

// `n` numbers, all of a register or fewer; the rest of it is zero.
inline Vec load(const float* from, int64_t n) {
  Vec v{};
  std::memcpy(&v, from, n == kFloats ? sizeof v : n * sizeof(float));
  return v;
}

inline Vec load(const Bfloat16* from, int64_t n) {
  Halves halves{};
  std::memcpy(&halves, from, n == kFloats ? sizeof halves : n * sizeof(Bfloat16));
  return widen(halves);
}

inline void store(float* to, const Vec& v, int64_t n) {
  std::memcpy(to, &v, n == kFloats ? sizeof v : n * sizeof(float));
}

inline void store(Bfloat16* to, const Vec& v, int64_t n) {
  const Halves halves = narrow(v);
  std::memcpy(to, &halves, n == kFloats ? sizeof halves : n * sizeof(Bfloat16));
}

// Calls `body(j, n)` for the registers that a row is made of: `n` numbers from `j` on.
template <typename Body>
inline void each(int64_t width, const Body& body) {
  int64_t j = 0;
  for (; j + kFloats <= width; j += kFloats) body(j, kFloats);
  if (j < width) body(j, width - j);
}

template <int Half, int... Lane>
inline Vec add_halves(const Vec& v, std::integer_sequence<int, Lane...>) {
  return v + __builtin_shufflevector(v, v, (Lane ^ Half)...);
}

// The sum of a register, by halves: one after another, 16 numbers would round four times as often.
inline float sum_of(Vec v) {
  constexpr std::make_integer_sequence<int, kFloats> lanes;
  if constexpr (kFloats > 8) v = add_halves<8>(v, lanes);
  if constexpr (kFloats > 4) v = add_halves<4>(v, lanes);
  return add_halves<1>(add_halves<2>(v, lanes), lanes)[0];
}

// The sum over a row of `term(j, n)`. Four partial sums, since one would wait for itself.
template <typename Term>
inline float sum(int64_t width, const Term& term) {
  Vec a{}, b{}, c{}, d{};
  int64_t j = 0;
  for (; j + 4 * kFloats <= width; j += 4 * kFloats) {
    a += term(j, kFloats);
    b += term(j + kFloats, kFloats);
    c += term(j + 2 * kFloats, kFloats);
    d += term(j + 3 * kFloats, kFloats);
  }
  for (; j + kFloats <= width; j += kFloats) a += term(j, kFloats);
  if (j < width) b += term(j, width - j);
  return sum_of((a + b) + (c + d));
}

// Whether any `value(j, n)` of a row is not zero.
template <typename Value>
inline bool any(int64_t width, const Value& value) {
  Words found{};
  each(width, [&](int64_t j, int64_t n) {
    // What lies beyond a row may come out as anything but zero: only its own numbers count.
    const Vec v = value(j, n);
    float lanes[kFloats] = {};
    std::memcpy(lanes, &v, n * sizeof(float));
    found |= (Words)(load(lanes, kFloats) != broadcast(0));
  });
  for (int64_t lane = 0; lane < kFloats; ++lane) {
    if (found[lane]) return true;
  }
  return false;
}

#include "vectors_impl.h"
#include "mixing_impl.h"
#include "products_impl.h"
#include "network_impl.h"
#if defined(DECOMPX_TILES)
#include "tiles_impl.h"
#endif

// `function` for the element type of the vectors, with the same arguments.
#define DECOMPX_BY_DTYPE(function, vectors, ...)      \
  if (vectors.dtype == Dtype::bfloat16) {             \
    function<Bfloat16>(vectors, __VA_ARGS__);         \
  } else {                                            \
    function<float>(vectors, __VA_ARGS__);            \
  }

// The same where matrices are multiplied, which has a way of its own by tiles.
#if defined(DECOMPX_TILES)
#define DECOMPX_MATRICES(function, vectors, ...)      \
  if (vectors.dtype == Dtype::bfloat16) {             \
    function##_by_tiles(vectors, __VA_ARGS__);        \
  } else {                                            \
    function<float>(vectors, __VA_ARGS__);            \
  }
#else
#define DECOMPX_MATRICES DECOMPX_BY_DTYPE
#endif

void bias_split_of(const Vectors& x, const Vectors* residual, const float* bias, Rule rule, bool after, float* scratch) {
  DECOMPX_BY_DTYPE(bias_split, x, residual, bias, rule, after, scratch)
}

void layernorm_of(
    const Vectors& x, float scale, const float* weight, const float* bias, bool centre, Rule rule, float* scratch) {
  DECOMPX_BY_DTYPE(layernorm, x, scale, weight, bias, centre, rule, scratch)
}

void add_norm_of(
    const Vectors& x,
    const Vectors& branch,
    const float* branch_bias,
    bool share_after_residual,
    float scale,
    const float* weight,
    const float* bias,
    bool centre,
    Rule rule,
    float* scratch) {
  DECOMPX_BY_DTYPE(add_norm, x, branch, branch_bias, share_after_residual, scale, weight, bias, centre, rule, scratch)
}

void activation_of(
    const Vectors& a, const float* slope, const float* bias, const float* intercept, Rule rule, float* scratch) {
  DECOMPX_BY_DTYPE(activation, a, slope, bias, intercept, rule, scratch)
}

void functional_dots_of(const Vectors& x, const float* g, int64_t g_stride, int64_t m, float* out) {
  DECOMPX_BY_DTYPE(functional_dots, x, g, g_stride, m, out)
}

void mixing_of(const MixingBlock& block, float* scratch) {
  DECOMPX_MATRICES(mixing, block, scratch)
}

void lay_out_matrix_of(const Matrix& matrix, int64_t start, int64_t stop, float* to) {
  DECOMPX_BY_DTYPE(lay_out_matrix, matrix, start, stop, to)
}

void product_of(const ProductBlock& block, float* scratch) {
  DECOMPX_MATRICES(product, block, scratch)
}

void network_of(const NetworkRows& rows, const Network& net, float* scratch) {
  DECOMPX_MATRICES(network, rows, net, scratch)
}

#undef DECOMPX_MATRICES
#undef DECOMPX_BY_DTYPE

}  // namespace

const Kernels table = {
    bias_split_of,
    layernorm_of,
    add_norm_of,
    activation_of,
    functional_dots_of,
    mixing_of,
    lay_out_matrix_of,
    product_of,
    network_of};

}  // namespace DECOMPX_LEVEL
}  // namespace decompx
