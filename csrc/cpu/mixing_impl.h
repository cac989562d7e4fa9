// The mixing of rows.h for one instruction set; rows_impl.h includes it in its namespace.
//
// Tiles of `kTileRows` positions by two registers of numbers are summed over the attended positions in registers. What
// they read is laid out beforehand, in float32: the attention weights tile by tile, used for every source of the block,
// and the values of one source, which lie far apart.

constexpr int64_t kPanel = 2 * kFloats;

inline float number(const float* from) {
  return *from;
}

inline float number(const Bfloat16* from) {
  const uint32_t word = static_cast<uint32_t>(from->bits) << 16;
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

inline int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

inline int64_t most(int64_t a, int64_t b) {
  return a < b ? b : a;
}

// The attended positions `[start, stop)`.
struct Keys {
  int64_t start, stop;
};

// Those that some of the rows `[start, stop)` of a block attend.
inline Keys attended(const MixingBlock& block, int64_t start, int64_t stop) {
  Keys keys{0, block.n_j};
  if (block.causal) keys.stop = least(keys.stop, block.first + stop);
  if (block.window) {
    keys.start = most(keys.start, block.first + start - block.window + 1);
    keys.stop = least(keys.stop, block.first + stop - 1 + block.window);
  }
  keys.start = least(keys.start, block.n_j);
  keys.stop = most(keys.start, keys.stop);
  return keys;
}

// The weights of a tile as `[j, kTileRows]`; zero where a position may not attend, and in rows that do not exist.
template <typename T>
inline void lay_out_weights(const MixingBlock& block, int64_t start, int64_t rows, const Keys& keys, float* to) {
  for (int64_t r = 0; r < kTileRows; ++r) {
    const Keys own = r < rows ? attended(block, start + r, start + r + 1) : Keys{0, 0};
    const T* from = static_cast<const T*>(block.alpha) + (start + r) * block.alpha_i;
    for (int64_t j = keys.start; j < keys.stop; ++j) {
      const bool attends = own.start <= j && j < own.stop;
      to[(j - keys.start) * kTileRows + r] = attends ? number(from + j * block.alpha_j) : 0;
    }
  }
}

// The values of a source as panels `[panel, j, kPanel]`, filled up with zeros.
template <typename T>
inline void lay_out_values(const MixingBlock& block, int64_t k, const Keys& keys, float* to) {
  const T* source = static_cast<const T*>(block.p) + k * block.p_k;
  for (int64_t v = 0; v < block.n_v; v += kPanel, to += (keys.stop - keys.start) * kPanel) {
    const int64_t n = least(block.n_v - v, kPanel), low = least(n, kFloats);
    for (int64_t j = keys.start; j < keys.stop; ++j) {
      const T* from = source + j * block.p_j + v;
      float* row = to + (j - keys.start) * kPanel;
      store(row, load(from, low), kFloats);
      store(row + kFloats, n > kFloats ? load(from + kFloats, n - kFloats) : Vec{}, kFloats);
    }
  }
}

template <typename T, int Rows>
inline void mix_tile(const float* weights, const float* panel, int64_t n_j, T* out, int64_t out_i, int64_t n) {
  Vec sums[Rows][2];
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) sums[r][0] = sums[r][1] = Vec{};
  for (int64_t j = 0; j < n_j; ++j, weights += kTileRows, panel += kPanel) {
    const Vec low = load(panel, kFloats), high = load(panel + kFloats, kFloats);
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) {
      sums[r][0] += low * weights[r];
      sums[r][1] += high * weights[r];
    }
  }
  const int64_t n_low = least(n, kFloats), n_high = n - n_low;
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r, out += out_i) {
    if (n == kPanel) {
      store(out, sums[r][0], kFloats);
      store(out + kFloats, sums[r][1], kFloats);
    } else {
      store(out, sums[r][0], n_low);
      store(out + n_low, sums[r][1], n_high);
    }
  }
}

// Asks for the vectors of a source at all positions, which lie too far apart for the processor to foresee them: what
// waits for them otherwise, stores above all, takes longer than the products of a short input.
template <bool Write>
inline void prefetch(const void* vectors, int64_t count, int64_t stride_bytes, int64_t bytes) {
  const char* from = static_cast<const char*>(vectors);
  for (int64_t n = 0; n < count; ++n, from += stride_bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at, Write);
  }
}

template <typename T>
void mixing(const MixingBlock& block, float* scratch) {
  constexpr decltype(&mix_tile<T, 1>) tiles[kTileRows] = {
      mix_tile<T, 1>, mix_tile<T, 2>, mix_tile<T, 3>, mix_tile<T, 4>, mix_tile<T, 5>, mix_tile<T, 6>};
  constexpr int64_t item = sizeof(T);
  const Keys all = attended(block, 0, block.n_i);
  const int64_t n_keys = all.stop - all.start;
  float *weights = scratch, *panels = scratch + whole_tiles(block.n_i) * n_keys;
  for (int64_t i = 0; i < block.n_i; i += kTileRows) {
    lay_out_weights<T>(block, i, least(block.n_i - i, kTileRows), all, weights + i * n_keys);
  }
  for (int64_t k = 0; k < block.n_k; ++k) {
    T* out = static_cast<T*>(block.out) + k * block.out_k;
    prefetch<true>(out, block.n_i, block.out_i * item, block.n_v * item);
    lay_out_values<T>(block, k, all, panels);
    if (k + 1 < block.n_k) {
      const T* next = static_cast<const T*>(block.p) + (k + 1) * block.p_k + all.start * block.p_j;
      prefetch<false>(next, n_keys, block.p_j * item, block.n_v * item);
    }
    for (int64_t v = 0; v < block.n_v; v += kPanel) {
      const float* panel = panels + v * n_keys;
      for (int64_t i = 0; i < block.n_i; i += kTileRows) {
        const int64_t rows = least(block.n_i - i, kTileRows);
        const Keys keys = attended(block, i, i + rows);
        const int64_t skipped = keys.start - all.start;
        tiles[rows - 1](
            weights + i * n_keys + skipped * kTileRows,
            panel + skipped * kPanel,
            keys.stop - keys.start,
            out + i * block.out_i + v,
            block.out_i,
            least(block.n_v - v, kPanel));
      }
    }
  }
}
