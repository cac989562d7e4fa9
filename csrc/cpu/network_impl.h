// The feed-forward network of rows.h for one instruction set; rows_impl.h includes it in its namespace.
//
// Some rows go through the whole network at once. `kDepth` numbers of the hidden layer at a time are made, shared out and
// scaled, and multiplied on, so that they never leave the second level of the cache. Products are summed in registers,
// tiles of `kTileRows` rows by two registers of numbers, over panels of weights that fit in the first level.

// Numbers that are summed in registers before they are put down: a panel of so many rows takes 24 KiB.
constexpr int64_t kDepth = kDeepest * 4 / kFloats;

// Lays out some columns of a matrix as `[block of kDepth rows, panel, row, kPanel]`, filled up with zeros.
template <typename T>
void lay_out_matrix(const Matrix& matrix, int64_t start, int64_t stop, float* to) {
  const int64_t width = whole_panels(matrix.columns);
  for (int64_t first = 0; first < matrix.rows; first += kDepth) {
    const int64_t depth = least(matrix.rows - first, kDepth);
    for (int64_t j = start; j < stop; j += kPanel) {
      const T* from = static_cast<const T*>(matrix.data) + first * matrix.row_stride + j * matrix.column_stride;
      float* panel = to + first * width + j * depth;
      const int64_t n = most(0, least(matrix.columns - j, kPanel));
      for (int64_t k = 0; k < depth; ++k, from += matrix.row_stride, panel += kPanel) {
        for (int64_t c = 0; c < n; ++c) panel[c] = number(from + c * matrix.column_stride);
        for (int64_t c = n; c < kPanel; ++c) panel[c] = 0;
      }
    }
  }
}

// c = a panel, or c += a panel, for one tile.
template <bool Add>
inline void multiply_tile(const float* a, int64_t a_stride, const float* panel, int64_t depth, float* c, int64_t c_stride) {
  Vec sums[kTileRows][2];
#pragma GCC unroll 6
  for (int r = 0; r < kTileRows; ++r) sums[r][0] = sums[r][1] = Vec{};
  const float* last = a + 3 * a_stride;  // two pointers and one stride reach all rows
  for (int64_t k = 0; k < depth; ++k, ++a, ++last, panel += kPanel) {
    const Vec low = load(panel, kFloats), high = load(panel + kFloats, kFloats);
#pragma GCC unroll 3
    for (int r = 0; r < 3; ++r) {
      sums[r][0] += low * a[r * a_stride];
      sums[r][1] += high * a[r * a_stride];
    }
#pragma GCC unroll 3
    for (int r = 0; r < 3; ++r) {
      sums[3 + r][0] += low * last[r * a_stride];
      sums[3 + r][1] += high * last[r * a_stride];
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kTileRows; ++r, c += c_stride) {
    store(c, Add ? load(c, kFloats) + sums[r][0] : sums[r][0], kFloats);
    store(c + kFloats, Add ? load(c + kFloats, kFloats) + sums[r][1] : sums[r][1], kFloats);
  }
}

// The same for `rows` rows, whole tiles of them, and some panels. The next panel is fetched meanwhile, a part for each
// tile: it comes from the third level or from memory.
template <bool Add>
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
  const int64_t size = depth * kPanel, part = (size * kTileRows / rows + line) / line * line;
  for (int64_t p = 0; p < n_panels; ++p, panels += size, c += kPanel) {
    int64_t fetched = p + 1 < n_panels ? size : 2 * size;
    for (int64_t i = 0; i < rows; i += kTileRows) {
      const int64_t stop = least(fetched + part, 2 * size);
      for (; fetched < stop; fetched += line) __builtin_prefetch(panels + fetched, 0, 2);
      multiply_tile<Add>(a + i * a_stride, a_stride, panels, depth, c + i * c_stride, c_stride);
    }
  }
}

template <typename T>
void network(const NetworkRows& rows, const Network& net, float* scratch) {
  const int64_t d = net.d, count = whole_tiles(rows.count);
  const int64_t u_stride = d + kNetworkGap, hidden_stride = kDepth + kNetworkGap;
  const int64_t d_width = whole_panels(d), f_width = whole_panels(net.f), sums_stride = d_width + kNetworkGap;
  float *u = scratch, *hidden = u + count * u_stride, *sums = hidden + count * hidden_stride;
  for (int64_t r = 0; r < count; ++r) {
    float* to = u + r * u_stride;
    if (r < rows.count) {
      const T* from = static_cast<const T*>(rows.from[r]);
      each(d, [&](int64_t j, int64_t n) { store(to + j, load(from + j, n), n); });
    } else {
      std::memset(to, 0, d * sizeof(float));
    }
  }
  if (!net.f) std::memset(sums, 0, count * sums_stride * sizeof(float));
  for (int64_t start = 0; start < net.f; start += kDepth) {
    const int64_t width = least(net.f - start, kDepth), panels = (width + kPanel - 1) / kPanel;
    for (int64_t first = 0; first < d; first += kDepth) {
      const int64_t depth = least(d - first, kDepth);
      const auto multiply = first ? multiply_panels<true> : multiply_panels<false>;
      multiply(
          u + first, u_stride, count, net.w_in + first * f_width + start * depth, panels, depth, hidden, hidden_stride);
    }
    for (int64_t r = 0; r < rows.count; ++r) {
      float* h = hidden + r * hidden_stride;
      const float* slope = rows.slope[r] + start;
      const float share = net.bias ? rows.shares[r] : 0;
      each(width, [&](int64_t j, int64_t n) {
        Vec v = load(h + j, n);
        if (net.bias) v += load(net.bias + start + j, n) * share;
        store(h + j, v * load(slope + j, n), n);
      });
    }
    const auto multiply = start ? multiply_panels<true> : multiply_panels<false>;
    multiply(hidden, hidden_stride, count, net.w_out + start * d_width, d_width / kPanel, width, sums, sums_stride);
  }
  for (int64_t r = 0; r < rows.count; ++r) {
    const float* from = sums + r * sums_stride;
    T* to = static_cast<T*>(rows.to[r]);
    each(d, [&](int64_t j, int64_t n) { store(to + j, load(from + j, n), n); });
  }
}
