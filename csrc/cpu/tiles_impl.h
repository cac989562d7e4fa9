// Products of bfloat16 by AMX's tiles of 16 rows of 16 words (DECOMPX_TILES); rows_impl.h includes it in its namespace.
//
// Four tiles of sums, of 32 rows by 32 columns, take two tiles of each matrix at a time. The right one lies as for
// products by pairs, in panels of 32 columns.

constexpr int64_t kTile = 16;
constexpr int64_t kSquare = 2 * kTile;

#if defined(DECOMPX_LOWERED)

// The tiles as plain numbers.
class Tiles {
 public:
  template <int T>
  void zero() {
    std::memset(tiles_[T], 0, sizeof tiles_[T]);
  }

  template <int T>
  void load(const float* from, int64_t stride) {
    for (int64_t r = 0; r < kTile; ++r) std::memcpy(tiles_[T][r], from + r * stride, sizeof tiles_[T][r]);
  }

  template <int C, int A, int B>
  void add_product() {
    for (int64_t r = 0; r < kTile; ++r) {
      Vec sums = load_row<C>(r);
      for (int64_t k = 0; k < kTile; ++k) sums = add_pairs(sums, load_row<B>(k), &tiles_[A][r][k]);
      std::memcpy(tiles_[C][r], &sums, sizeof sums);
    }
  }

  template <int T>
  void store(float* to, int64_t stride) const {
    for (int64_t r = 0; r < kTile; ++r) std::memcpy(to + r * stride, tiles_[T][r], sizeof tiles_[T][r]);
  }

 private:
  template <int T>
  Vec load_row(int64_t r) const {
    Vec row;
    std::memcpy(&row, tiles_[T][r], sizeof row);
    return row;
  }

  float tiles_[8][kTile][kTile];
};

#else

// The processor's tiles, all of full size, for as long as this lives. Instructions are spelled out, since compilers do
// not know of them what they read.
class Tiles {
 public:
  Tiles() {
    struct alignas(64) Shapes {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    static_assert(sizeof(Shapes) == 64);
    const Shapes shapes;
    asm volatile("ldtilecfg %0" : : "m"(shapes));
  }

  ~Tiles() {
    asm volatile("tilerelease");
  }

  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  template <int T>
  void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(T));
  }

  template <int T>
  void load(const float* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride * 4), "i"(T) : "memory");
  }

  // C += A B, for tiles of words A and B.
  template <int C, int A, int B>
  void add_product() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }

  template <int T>
  void store(float* to, int64_t stride) const {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride * 4), "i"(T) : "memory");
  }
};

#endif

// Rows of words, whole tiles of them, `stride` apart.
struct WordRows {
  const float* words;
  int64_t stride, count;
};

// Words `[0, depth)` of the columns from `start` on, of the blocks of rows of a matrix that is `width` wide.
struct Panels {
  const float* block;
  int64_t width, start, depth;

  const float* at(int64_t first, int64_t column) const {
    const int64_t depth_there = least(depth - first, kTileDepth), c = start + column;
    return block + first * width + c * depth_there;
  }
};

// Sums of float32 `[rows, columns]`; null for none.
struct Sums {
  float* data;
  int64_t stride;

  float* at(int64_t i, int64_t column) const {
    return data ? data + i * stride + column : nullptr;
  }
};

// The four tiles of sums += 16 rows, or 32, by a panel. For each 16 words so many lines from `next` on are fetched.
template <int Down>
inline void add_products(
    Tiles& tiles,
    const float* a,
    int64_t a_stride,
    const float* panel,
    int64_t depth,
    const float* next = nullptr,
    int64_t lines = 0) {
  for (int64_t k = 0; k < depth; k += kTile, a += kTile, panel += kTile * kSquare) {
    tiles.load<6>(panel, kSquare);
    tiles.load<4>(a, a_stride);
    tiles.add_product<0, 4, 6>();
    tiles.load<7>(panel + kTile, kSquare);
    tiles.add_product<1, 4, 7>();
    if constexpr (Down == 2) {
      tiles.load<5>(a + kTile * a_stride, a_stride);
      tiles.add_product<2, 5, 6>();
      tiles.add_product<3, 5, 7>();
    }
#pragma GCC unroll 1
    for (int64_t line = 0; line < lines; ++line, next += kTile) __builtin_prefetch(next, 0, 2);
  }
}

template <int Down>
inline void begin_square(Tiles& tiles, const float* from, int64_t stride) {
  if (!from) {
    tiles.zero<0>(), tiles.zero<1>(), tiles.zero<2>(), tiles.zero<3>();
    return;
  }
  tiles.load<0>(from, stride), tiles.load<1>(from + kTile, stride);
  if constexpr (Down == 2) {
    tiles.load<2>(from + kTile * stride, stride), tiles.load<3>(from + kTile * stride + kTile, stride);
  }
}

template <int Down>
inline void end_square(const Tiles& tiles, float* to, int64_t stride) {
  tiles.store<0>(to, stride), tiles.store<1>(to + kTile, stride);
  if constexpr (Down == 2) {
    tiles.store<2>(to + kTile * stride, stride), tiles.store<3>(to + kTile * stride + kTile, stride);
  }
}

// `begin + a panels` for so many columns, square after square, to `end`; or where that is null by calls of
// `put(i, column, sums, rows)` with `[rows, kSquare]` of them. Every square fetches a part of the next panel meanwhile:
// it comes from the third level or from memory.
template <typename Put>
inline void multiply_by_tiles(
    Tiles& tiles,
    const WordRows& a,
    const Panels& panels,
    int64_t columns,
    const Sums& begin,
    const Sums& end,
    const Put& put) {
  alignas(64) float square[kSquare * kSquare];
  const int64_t squares = (a.count + kSquare - 1) / kSquare, lines = (kSquare + squares - 1) / squares;
  for (int64_t column = 0; column < columns; column += kSquare) {
    const bool is_last = column + kSquare >= columns;
    const auto multiply_rows = [&](auto down, int64_t i) {
      constexpr int kDown = decltype(down)::value;
      begin_square<kDown>(tiles, begin.at(i, column), begin.stride);
      for (int64_t first = 0; first < panels.depth; first += kTileDepth) {
        const int64_t depth = least(panels.depth - first, kTileDepth);
        const float* panel = panels.at(first, column);
        const float* next = panel + depth * kSquare + i / kSquare * lines * depth;
        add_products<kDown>(tiles, a.words + i * a.stride + first, a.stride, panel, depth, next, is_last ? 0 : lines);
      }
      if (end.data) {
        end_square<kDown>(tiles, end.at(i, column), end.stride);
        return;
      }
      end_square<kDown>(tiles, square, kSquare);
      put(i, column, square, kDown * kTile);
    };
    int64_t i = 0;
    for (; i + kSquare <= a.count; i += kSquare) multiply_rows(std::integral_constant<int, 2>{}, i);
    if (i < a.count) multiply_rows(std::integral_constant<int, 1>{}, i);
  }
}

constexpr int64_t whole_squares(int64_t n) {
  return (n + kSquare - 1) / kSquare * kSquare;
}

// Rows that are filled up to whole tiles.
constexpr int64_t tile_rows(int64_t n) {
  return (n + kTile - 1) / kTile * kTile;
}

// A row of a square as numbers.
inline void store_row(Bfloat16* to, const Vec& low, const Vec& high) {
#if defined(DECOMPX_LOWERED)
  store(to, low, kFloats), store(to + kFloats, high, kFloats);
#else
  const auto both = _mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
  std::memcpy(to, &both, sizeof both);
#endif
}

// Sums as numbers, of whose columns there are `n` at the most.
inline void put_square(const float* sums, int64_t rows, char* to, int64_t stride_bytes, int64_t n) {
  for (int64_t r = 0; r < rows; ++r, sums += kSquare, to += stride_bytes) {
    Bfloat16* row = reinterpret_cast<Bfloat16*>(to);
    if (n >= kSquare) {
      store_row(row, load(sums, kFloats), load(sums + kFloats, kFloats));
    } else {
      each(n, [=](int64_t j, int64_t some) { store(row + j, load(sums + j, kFloats), some); });
    }
  }
}

inline void product_by_tiles(const ProductBlock& block, float* scratch) {
  using T = Bfloat16;
  const int64_t count = tile_rows(block.rows), all = words<T>(block.n_inner), width = whole_panels(block.n_columns);
  const int64_t a_stride = kTileDepth + kRowGap, n = least(block.stop, block.n_columns) - block.start;
  const int64_t sums_stride = whole_squares(n) + kRowGap;
  float *a = scratch, *sums = a + count * a_stride;
  std::memset(a + block.rows * a_stride, 0, (count - block.rows) * a_stride * sizeof(float));
  const auto put = [&](int64_t i, int64_t column, const float* square, int64_t some) {
    T* to = static_cast<T*>(block.to) + i * block.to_stride + block.start + column;
    const int64_t stride = block.to_stride * sizeof(T);
    put_square(square, least(some, block.rows - i), reinterpret_cast<char*>(to), stride, n - column);
  };
  Tiles tiles;
  int64_t first = 0;
  do {
    const int64_t depth = least(all - first, kTileDepth), done = first * kPerWord<T>;
    const int64_t some = least(block.n_inner - done, kTileDepth * kPerWord<T>);
    for (int64_t r = 0; r < block.rows; ++r) {
      put_words(static_cast<const T*>(block.from) + r * block.from_stride + done, some, a + r * a_stride);
    }
    const Panels panels{block.matrix + first * width, width, block.start, depth};
    const Sums begin{first ? sums : nullptr, sums_stride}, end{first + depth < all ? sums : nullptr, sums_stride};
    multiply_by_tiles(tiles, {a, a_stride, count}, panels, n, begin, end, put);
    first += kTileDepth;
  } while (first < all);
}

// The hidden layer of some rows, `slope * (sums + share bias)` for `n` columns at the most, and zeros after them.
inline void put_scaled(
    const float* sums,
    int64_t count,
    const NetworkRows& rows,
    int64_t first,
    const float* bias,
    int64_t start,
    float* to,
    int64_t stride,
    int64_t n) {
  for (int64_t r = 0; r < count; ++r, sums += kSquare, to += stride) {
    const int64_t of = least(first + r, rows.count - 1);  // any for rows that do not exist
    const float* slope = rows.slope[of] + start;
    const float share = bias ? rows.shares[of] : 0;
    Vec both[2] = {};
    const auto scale = [&](int64_t j, int64_t some) {
      Vec v = load(sums + j, kFloats);
      if (bias) v += load(bias + j, some) * share;
      both[j / kFloats] = v * load(slope + j, some);
    };
    if (n >= kSquare) {
      scale(0, kFloats), scale(kFloats, kFloats);
    } else {
      each(n, scale);
    }
    store_row(reinterpret_cast<Bfloat16*>(to), both[0], both[1]);
  }
}

inline void network_by_tiles(const NetworkRows& rows, const Network& net, float* scratch) {
  using T = Bfloat16;
  constexpr int64_t step = kTileDepth * kPerWord<T>;
  const int64_t d = net.d, count = tile_rows(rows.count), u_stride = words<T>(d) + kRowGap;
  const int64_t hidden_stride = kTileDepth + kRowGap, sums_stride = whole_squares(d) + kRowGap;
  float *u = scratch, *hidden = u + count * u_stride, *sums = hidden + count * hidden_stride;
  for (int64_t r = 0; r < rows.count; ++r) put_words(static_cast<const T*>(rows.from[r]), d, u + r * u_stride);
  std::memset(u + rows.count * u_stride, 0, (count - rows.count) * u_stride * sizeof(float));
  const auto put = [&](int64_t i, int64_t column, const float* square, int64_t some) {
    for (int64_t r = 0; r < least(some, rows.count - i); ++r) {
      T* to = static_cast<T*>(rows.to[i + r]) + column;
      put_square(square + r * kSquare, 1, reinterpret_cast<char*>(to), 0, d - column);
    }
  };
  Tiles tiles;
  int64_t start = 0;
  do {
    const int64_t width = least(net.f - start, step);
    const auto put_hidden = [&](int64_t i, int64_t column, const float* square, int64_t some) {
      const float* bias = net.bias ? net.bias + start + column : nullptr;
      float* to = hidden + i * hidden_stride + column / kPerWord<T>;
      put_scaled(square, some, rows, i, bias, start + column, to, hidden_stride, width - column);
    };
    const Panels in{net.w_in, whole_panels(net.f), start, words<T>(d)};
    multiply_by_tiles(tiles, {u, u_stride, count}, in, width, {}, {}, put_hidden);
    const Sums begin{start ? sums : nullptr, sums_stride}, end{start + width < net.f ? sums : nullptr, sums_stride};
    const Panels back{net.w_out + start / kPerWord<T> * whole_panels(d), whole_panels(d), 0, words<T>(width)};
    multiply_by_tiles(tiles, {hidden, hidden_stride, count}, back, d, begin, end, put);
    start += step;
  } while (start < net.f);
}

// The attention weights of a mixing as words `[tile_rows(i), words(j)]`; zero where a position may not attend, and in
// rows that do not exist.
inline void put_weights(const MixingBlock& block, const Keys& all, float* to, int64_t stride) {
  using T = Bfloat16;
  std::memset(to, 0, tile_rows(block.n_i) * stride * sizeof(float));
  for (int64_t i = 0; i < block.n_i; ++i, to += stride) {
    const Keys own = attended(block, i, i + 1);
    const T* from = static_cast<const T*>(block.alpha) + i * block.alpha_i;
    T* row = reinterpret_cast<T*>(to);
    if (block.alpha_j == 1) {
      std::memcpy(row + own.start - all.start, from + own.start, (own.stop - own.start) * sizeof(T));
      continue;
    }
    for (int64_t j = own.start; j < own.stop; ++j) row[j - all.start] = from[j * block.alpha_j];
  }
}

// A register of halves as the lower halves of words; `n` of them, the rest are zero.
inline Words lower_halves(const Bfloat16* from, int64_t n) {
  Halves halves{};
  std::memcpy(&halves, from, n == kFloats ? sizeof halves : n * sizeof(Bfloat16));
  return __builtin_convertvector(halves, Words);
}

// The values of a source as panels `[panel, words(j), kSquare]` of words, filled up with zeros.
inline void put_values(const MixingBlock& block, int64_t k, const Keys& all, float* to) {
  using T = Bfloat16;
  const int64_t n_keys = all.stop - all.start, depth = words<T>(n_keys);
  const T* source = static_cast<const T*>(block.p) + k * block.p_k + all.start * block.p_j;
  const auto panel_of = [&](int64_t v) { return to + v / kSquare * kSquare * depth + v % kSquare; };
  each(block.n_v, [&](int64_t v, int64_t n) {
    float* row = panel_of(v);
    const T* from = source + v;
    for (int64_t j = 0; j + 1 < n_keys; j += 2, from += 2 * block.p_j, row += kSquare) {
      const Words pairs = lower_halves(from, n) | lower_halves(from + block.p_j, n) << 16;
      std::memcpy(row, &pairs, sizeof pairs);
    }
    if (n_keys % 2) {
      const Words last = lower_halves(from, n);
      std::memcpy(row, &last, sizeof last);
      row += kSquare;
    }
    for (; row < panel_of(v) + depth * kSquare; row += kSquare) store(row, Vec{}, kFloats);
  });
  const int64_t v = (block.n_v + kFloats - 1) / kFloats * kFloats;
  if (v == whole_squares(block.n_v)) return;
  for (int64_t row = 0; row < depth; ++row) store(panel_of(v) + row * kSquare, Vec{}, kFloats);
}

inline void mixing_by_tiles(const MixingBlock& block, float* scratch) {
  using T = Bfloat16;
  alignas(64) float square[kSquare * kSquare];
  const Keys all = attended(block, 0, block.n_i);
  const int64_t depth = words<T>(all.stop - all.start), stride = depth + kRowGap, count = tile_rows(block.n_i);
  float *weights = scratch, *values = weights + count * stride;
  put_weights(block, all, weights, stride);
  Tiles tiles;
  for (int64_t k = 0; k < block.n_k; ++k) {
    T* out = static_cast<T*>(block.out) + k * block.out_k;
    prefetch<true>(out, block.n_i, block.out_i * sizeof(T), block.n_v * sizeof(T));
    put_values(block, k, all, values);
    if (k + 1 < block.n_k) {
      const T* next = static_cast<const T*>(block.p) + (k + 1) * block.p_k + all.start * block.p_j;
      prefetch<false>(next, all.stop - all.start, block.p_j * sizeof(T), block.n_v * sizeof(T));
    }
    for (int64_t v = 0; v < block.n_v; v += kSquare) {
      const float* panel = values + v * depth;
      const auto mix_rows = [&](auto down, int64_t i) {
        constexpr int kDown = decltype(down)::value;
        const int64_t rows = least(kDown * kTile, block.n_i - i);
        const Keys keys = attended(block, i, i + rows);
        const int64_t first = (keys.start - all.start) / kSquare * kTile, stop = words<T>(keys.stop - all.start);
        const float* own = weights + i * stride + first;
        begin_square<kDown>(tiles, nullptr, 0);
        add_products<kDown>(tiles, own, stride, panel + first * kSquare, most(stop - first, 0));
        end_square<kDown>(tiles, square, kSquare);
        char* to = reinterpret_cast<char*>(out + i * block.out_i + v);
        put_square(square, rows, to, block.out_i * sizeof(T), block.n_v - v);
      };
      int64_t i = 0;
      for (; i + kSquare <= count; i += kSquare) mix_rows(std::integral_constant<int, 2>{}, i);
      if (i < count) mix_rows(std::integral_constant<int, 1>{}, i);
    }
  }
}
