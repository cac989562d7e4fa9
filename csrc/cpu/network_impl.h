// The feed-forward network of rows.h for one instruction set; rows_impl.h includes it in its namespace.
//
// Some rows go through the whole network at once. As many numbers of the hidden layer at a time as `kDepth` words hold
// are made, shared out and scaled, and multiplied on, so that they never leave the second level of the cache.

template <typename T>
void network(const NetworkRows& rows, const Network& net, float* scratch) {
  constexpr int64_t step = kDepth * kPerWord<T>;
  const int64_t d = net.d, d_words = words<T>(d), count = whole_tiles(rows.count);
  const int64_t u_stride = d_words + kRowGap, hidden_stride = step + kRowGap;
  const int64_t d_width = whole_panels(d), f_width = whole_panels(net.f), sums_stride = d_width + kRowGap;
  float *u = scratch, *hidden = u + count * u_stride, *sums = hidden + count * hidden_stride;
  for (int64_t r = 0; r < rows.count; ++r) put_words(static_cast<const T*>(rows.from[r]), d, u + r * u_stride);
  std::memset(u + rows.count * u_stride, 0, (count - rows.count) * u_stride * sizeof(float));
  if (!net.f) std::memset(sums, 0, count * sums_stride * sizeof(float));
  for (int64_t start = 0; start < net.f; start += step) {
    const int64_t width = least(net.f - start, step), panels = (width + kBand - 1) / kBand;
    for (int64_t first = 0; first < d_words; first += kDepth) {
      const int64_t depth = least(d_words - first, kDepth);
      const float* matrix = net.w_in + first * f_width + start * depth;
      multiply<T>(first > 0, u + first, u_stride, count, matrix, panels, depth, hidden, hidden_stride);
    }
    for (int64_t r = 0; r < rows.count; ++r) {
      float* h = hidden + r * hidden_stride;
      const float* slope = rows.slope[r] + start;
      const float share = net.bias ? rows.shares[r] : 0;
      each(width, [&](int64_t j, int64_t n) {
        Vec v = load(h + j, n);
        if (net.bias) v += load(net.bias + start + j, n) * share;
        v *= load(slope + j, n);
        // Pairs take the place of numbers that were read before.
        kPairs<T> ? store(reinterpret_cast<Bfloat16*>(h) + j, v, n) : store(h + j, v, n);
      });
      if (kPairs<T> && width % 2) std::memset(reinterpret_cast<Bfloat16*>(h) + width, 0, sizeof(Bfloat16));
    }
    const float* matrix = net.w_out + start / kPerWord<T> * d_width;
    multiply<T>(start > 0, hidden, hidden_stride, count, matrix, d_width / kBand, words<T>(width), sums, sums_stride);
  }
  for (int64_t r = 0; r < rows.count; ++r) {
    const float* from = sums + r * sums_stride;
    T* to = static_cast<T*>(rows.to[r]);
    each(d, [&](int64_t j, int64_t n) { store(to + j, load(from + j, n), n); });
  }
}
