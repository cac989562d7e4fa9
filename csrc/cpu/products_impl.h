// Products of matrices for one instruction set; rows_impl.h includes it in its namespace.
//
// Sums stay in registers: tiles of `kTileRows` rows by `kAcross` registers of numbers, over panels of the right matrix
// that lie in the order in which they are read. What is read at once is a word of 32 bits: a number of float32 or, where
// the processor multiplies pairs of them (DECOMPX_PAIRS), two of bfloat16. Where it multiplies tiles of such words
// (DECOMPX_TILES), the same panels are taken by tiles_impl.h.

// Sums, a row of a panel and a number of the left matrix fill the 32 registers of AVX-512, or the 16 of what came before.
constexpr int64_t kAcross = kFloats == 16 ? 4 : 2;
constexpr int64_t kBand = kAcross * kFloats;

// Words that are summed in registers before they are put down: a panel of so many rows takes 24 KiB of the first level,
// 32 where that has 48.
constexpr int64_t kDepth = kFloats == 16 ? 128 : kDeepest * 4 / kFloats;

// The same where they are summed in tiles: a panel of so many rows takes 16 KiB, and the other matrix's as much.
constexpr int64_t kTileDepth = 128;

// Whether products of this type are made by pairs.
template <typename T>
constexpr bool kPairs = false;

#if defined(DECOMPX_PAIRS)
template <>
constexpr bool kPairs<Bfloat16> = true;
#endif

// Whether they are made by tiles.
#if defined(DECOMPX_TILES)
template <typename T>
constexpr bool kTiles = kPairs<T>;
#else
template <typename T>
constexpr bool kTiles = false;
#endif

// Words of a row of `n` numbers, of whole tiles where there are some; and numbers of a word.
template <typename T>
constexpr int64_t words(int64_t n) {
  return kTiles<T> ? (n + 31) / 32 * 16 : kPairs<T> ? (n + 1) / 2 : n;
}

template <typename T>
constexpr int64_t kPerWord = kPairs<T> ? 2 : 1;

// Words of a block of rows of a matrix, whose panels lie together.
template <typename T>
constexpr int64_t kBlock = kTiles<T> ? kTileDepth : kDepth;

// Columns of a panel: two tiles of words, or what registers hold.
template <typename T>
constexpr int64_t kColumns = kTiles<T> ? 32 : kBand;

// sums + b a, for one word `a` and a register of words `b`.
template <typename T>
inline Vec add_product(const Vec& sums, const Vec& b, const float* a) {
  if constexpr (!kPairs<T>) {
    return sums + b * *a;
  } else {
#if defined(DECOMPX_PAIRS)
    return add_pairs(sums, b, a);
#endif
  }
}

// A row of numbers as words, where need be with zeros after the last.
template <typename T>
inline void put_words(const T* from, int64_t n, float* to) {
  if constexpr (kPairs<T>) {
    for (int64_t k = n / 2; k < words<T>(n); ++k) to[k] = 0;
    std::memcpy(to, from, n * sizeof(T));
  } else {
    each(n, [&](int64_t j, int64_t some) { store(to + j, load(from + j, some), some); });
  }
}

// Transposes `kFloats` registers: in each round, blocks of `Half` by `Half` numbers change places.
template <int Half, int... Lane>
inline void exchange(Vec* rows, std::integer_sequence<int, Lane...>) {
#pragma GCC unroll 16
  for (int r = 0; r < kFloats; ++r) {
    if (r & Half) continue;
    const Vec a = rows[r], b = rows[r + Half];
    rows[r] = __builtin_shufflevector(a, b, (Lane & Half ? kFloats + Lane - Half : Lane)...);
    rows[r + Half] = __builtin_shufflevector(a, b, (Lane & Half ? kFloats + Lane : Lane + Half)...);
  }
}

inline void transpose(Vec* rows) {
  constexpr std::make_integer_sequence<int, kFloats> lanes;
  exchange<1>(rows, lanes);
  exchange<2>(rows, lanes);
  if constexpr (kFloats > 4) exchange<4>(rows, lanes);
  if constexpr (kFloats > 8) exchange<8>(rows, lanes);
}

// Words `[first, last)` of the columns `[start, stop)` of a matrix that is `left` numbers high, into a panel.
template <typename T>
inline void lay_out_words(
    const T* from,
    const Matrix& matrix,
    int64_t left,
    int64_t first,
    int64_t last,
    int64_t start,
    int64_t stop,
    float* panel) {
  for (int64_t k = first; k < last; ++k) {
    const T* row = from + k * kPerWord<T> * matrix.row_stride;
    if constexpr (!kPairs<T>) {
      if (matrix.column_stride == 1) {
        float* to = panel + k * kColumns<T> + start;
        each(stop - start, [&](int64_t c, int64_t n) { store(to + c, load(row + start + c, n), n); });
        continue;
      }
    }
    for (int64_t c = start; c < stop; ++c) {
      const T* top = row + c * matrix.column_stride;
      float* to = panel + k * kColumns<T> + c;
      if constexpr (kPairs<T>) {
        const T pair[2] = {2 * k < left ? *top : T{}, 2 * k + 1 < left ? top[matrix.row_stride] : T{}};
        std::memcpy(to, pair, sizeof pair);
      } else {
        *to = number(top);
      }
    }
  }
}

// The same, `[0, last)` and `[0, stop)`, whole registers of them, of columns whose numbers lie together.
template <typename T>
inline void lay_out_columns(const T* from, const Matrix& matrix, int64_t last, int64_t stop, float* panel) {
  for (int64_t c = 0; c < stop; c += kFloats) {
    for (int64_t k = 0; k < last; k += kFloats) {
      const T* corner = from + c * matrix.column_stride + k * kPerWord<T>;
      Vec rows[kFloats];
#pragma GCC unroll 16
      for (int r = 0; r < kFloats; ++r) std::memcpy(&rows[r], corner + r * matrix.column_stride, sizeof(Vec));
      transpose(rows);
#pragma GCC unroll 16
      for (int r = 0; r < kFloats; ++r) store(panel + (k + r) * kColumns<T> + c, rows[r], kFloats);
    }
  }
}

// Lays out some columns of a matrix as `[block of kBlock words, panel, word, kColumns]`, filled up with zeros.
template <typename T>
void lay_out_matrix(const Matrix& matrix, int64_t start, int64_t stop, float* to) {
  const int64_t width = whole_panels(matrix.columns), all = words<T>(matrix.rows);
  const bool together = sizeof(T) * kPerWord<T> == sizeof(float) && matrix.row_stride == 1;
  for (int64_t first = 0; first < all; first += kBlock<T>) {
    const int64_t depth = least(all - first, kBlock<T>), left = matrix.rows - first * kPerWord<T>;
    const T* block = static_cast<const T*>(matrix.data) + first * kPerWord<T> * matrix.row_stride;
    for (int64_t j = start; j < stop; j += kColumns<T>) {
      const T* from = block + j * matrix.column_stride;
      float* panel = to + first * width + j * depth;
      const int64_t n = most(0, least(matrix.columns - j, kColumns<T>));
      const int64_t whole = together ? n / kFloats * kFloats : 0;
      const int64_t square = together ? left / kPerWord<T> / kFloats * kFloats : 0;
      lay_out_columns(from, matrix, least(square, depth / kFloats * kFloats), whole, panel);
      lay_out_words(from, matrix, left, least(square, depth / kFloats * kFloats), depth, 0, whole, panel);
      lay_out_words(from, matrix, left, 0, depth, whole, n, panel);
      for (int64_t k = 0; k < depth && n < kColumns<T>; ++k) {
        std::memset(panel + k * kColumns<T> + n, 0, (kColumns<T> - n) * sizeof(float));
      }
    }
  }
}

// c = a panel, or c += a panel, for one tile.
template <typename T, bool Add>
inline void multiply_tile(const float* a, int64_t a_stride, const float* panel, int64_t depth, float* c, int64_t c_stride) {
  Vec sums[kTileRows][kAcross];
#pragma GCC unroll 6
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < kAcross; ++n) sums[r][n] = Vec{};
  }
  const float* last = a + 3 * a_stride;  // two pointers and one stride reach all rows
  for (int64_t k = 0; k < depth; ++k, ++a, ++last, panel += kBand) {
    Vec across[kAcross];
#pragma GCC unroll 4
    for (int n = 0; n < kAcross; ++n) across[n] = load(panel + n * kFloats, kFloats);
#pragma GCC unroll 6
    for (int r = 0; r < kTileRows; ++r) {
      const float* word = r < 3 ? a + r * a_stride : last + (r - 3) * a_stride;
#pragma GCC unroll 4
      for (int n = 0; n < kAcross; ++n) sums[r][n] = add_product<T>(sums[r][n], across[n], word);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kTileRows; ++r, c += c_stride) {
#pragma GCC unroll 4
    for (int n = 0; n < kAcross; ++n) {
      float* to = c + n * kFloats;
      store(to, Add ? load(to, kFloats) + sums[r][n] : sums[r][n], kFloats);
    }
  }
}

// The same for `rows` rows, whole tiles of them, and some panels. The next panel is fetched meanwhile, a part for each
// tile: it comes from the third level or from memory.
template <typename T, bool Add>
inline void multiply_panels(
    const float* a,
    int64_t a_stride,
    int64_t rows,
    const float* panels,
    int64_t n_panels,
    int64_t depth,
    float* c,
    int64_t c_stride) {
  constexpr int64_t line = 16;
  const int64_t size = depth * kBand, part = (size * kTileRows / rows + line) / line * line;
  for (int64_t p = 0; p < n_panels; ++p, panels += size, c += kBand) {
    int64_t fetched = p + 1 < n_panels ? size : 2 * size;
    for (int64_t i = 0; i < rows; i += kTileRows) {
      const int64_t stop = least(fetched + part, 2 * size);
      for (; fetched < stop; fetched += line) __builtin_prefetch(panels + fetched, 0, 2);
      multiply_tile<T, Add>(a + i * a_stride, a_stride, panels, depth, c + i * c_stride, c_stride);
    }
  }
}

// c = a panels, or c += a panels.
template <typename T>
inline void multiply(
    bool add,
    const float* a,
    int64_t a_stride,
    int64_t rows,
    const float* panels,
    int64_t n_panels,
    int64_t depth,
    float* c,
    int64_t c_stride) {
  const auto of = add ? multiply_panels<T, true> : multiply_panels<T, false>;
  of(a, a_stride, rows, panels, n_panels, depth, c, c_stride);
}

template <typename T>
void product(const ProductBlock& block, float* scratch) {
  const int64_t count = whole_tiles(block.rows), all = words<T>(block.n_inner), width = whole_panels(block.n_columns);
  const int64_t a_stride = kDepth + kRowGap, panels = (block.stop - block.start + kBand - 1) / kBand;
  const int64_t sums_stride = panels * kBand + kRowGap;
  float *a = scratch, *sums = a + count * a_stride;
  std::memset(a, 0, count * a_stride * sizeof(float));
  if (!all) std::memset(sums, 0, count * sums_stride * sizeof(float));
  for (int64_t first = 0; first < all; first += kDepth) {
    const int64_t depth = least(all - first, kDepth), done = first * kPerWord<T>;
    const int64_t n = least(block.n_inner - done, kDepth * kPerWord<T>);
    for (int64_t r = 0; r < block.rows; ++r) {
      put_words(static_cast<const T*>(block.from) + r * block.from_stride + done, n, a + r * a_stride);
    }
    const float* matrix = block.matrix + first * width + block.start * depth;
    multiply<T>(first > 0, a, a_stride, count, matrix, panels, depth, sums, sums_stride);
  }
  const int64_t n = least(block.stop, block.n_columns) - block.start;
  for (int64_t r = 0; r < block.rows; ++r) {
    T* to = static_cast<T*>(block.to) + r * block.to_stride + block.start;
    each(n, [&](int64_t j, int64_t some) { store(to + j, load(sums + r * sums_stride + j, some), some); });
  }
}
