// What is done to the vectors of one position, for one instruction set; rows_impl.h includes it in its namespace.

// Turns weights into shares that add up to one: `weight(k)` is read once for each source; where they add up to zero,
// sources for which `nonzero(k)` share equally, and where there are none, all do.
template <typename Weight, typename Nonzero>
inline void normalise(float* shares, int64_t count, Rule rule, const Weight& weight, const Nonzero& nonzero) {
  if (rule == Rule::cls) {
    for (int64_t k = 0; k < count; ++k) shares[k] = k == 0;
    return;
  }
  double total = 0;
  for (int64_t k = 0; k < count && rule != Rule::equal; ++k) {
    const float w = weight(k);
    shares[k] = rule == Rule::absdot && w < 0 ? -w : w;
    total += shares[k];
  }
  if (total != 0) {  // also where it is NaN, which then shows in every share
    for (int64_t k = 0; k < count; ++k) shares[k] = static_cast<float>(shares[k] / total);
    return;
  }
  int64_t sharing = 0;
  for (int64_t k = 0; k < count; ++k) sharing += (shares[k] = nonzero(k)) != 0;
  const float equal = 1.0f / static_cast<float>(sharing ? sharing : count);
  for (int64_t k = 0; k < count; ++k) shares[k] = sharing ? shares[k] * equal : equal;
}

template <typename T>
inline T* row(const Vectors& x, int64_t k) {
  return static_cast<T*>(x.data) + k * x.stride;
}

template <typename T>
void bias_split(
    const Vectors& x, const Vectors* residual, const float* bias, Rule rule, bool share_after_residual, float* shares) {
  if (rule == Rule::none) bias = nullptr;
  const auto value = [&](int64_t k, int64_t j, int64_t n) {
    const Vec v = load(row<T>(x, k) + j, n);
    return share_after_residual ? v + load(row<T>(*residual, k) + j, n) : v;
  };
  if (bias) {
    normalise(
        shares,
        x.count,
        rule,
        [&](int64_t k) { return sum(x.width, [&](int64_t j, int64_t n) { return value(k, j, n) * load(bias + j, n); }); },
        [&](int64_t k) { return any(x.width, [&](int64_t j, int64_t n) { return value(k, j, n); }); });
  }
  for (int64_t k = 0; k < x.count; ++k) {
    T* to = row<T>(x, k);
    each(x.width, [&](int64_t j, int64_t n) {
      Vec v = load(to + j, n);
      if (residual) v += load(row<T>(*residual, k) + j, n);
      if (bias) v += load(bias + j, n) * shares[k];
      store(to + j, v, n);
    });
  }
}

// What is left of a norm when the means are known: its linear part, and the bias by weights `dot(k)`.
template <typename T>
inline void finish_norm(
    const Vectors& x,
    float inverse,
    const float* means,
    const float* weight,
    const float* bias,
    Rule rule,
    float* shares) {
  const auto value = [&](int64_t k, int64_t j, int64_t n) {
    const Vec v = (load(row<T>(x, k) + j, n) - means[k]) * inverse;
    return weight ? v * load(weight + j, n) : v;
  };
  if (bias) {
    normalise(
        shares,
        x.count,
        rule,
        [&](int64_t k) { return shares[k]; },
        [&](int64_t k) { return any(x.width, [&](int64_t j, int64_t n) { return value(k, j, n); }); });
  }
  for (int64_t k = 0; k < x.count; ++k) {
    T* to = row<T>(x, k);
    each(x.width, [&](int64_t j, int64_t n) {
      Vec v = value(k, j, n);
      if (bias) v += load(bias + j, n) * shares[k];
      store(to + j, v, n);
    });
  }
}

template <typename T>
void layernorm(
    const Vectors& x, float scale, const float* weight, const float* bias, bool centre, Rule rule, float* scratch) {
  float *shares = scratch, *means = scratch + x.count;
  const float inverse = 1 / scale;
  if (rule == Rule::none) bias = nullptr;
  for (int64_t k = 0; k < x.count; ++k) {
    const T* from = row<T>(x, k);
    const float total = centre ? sum(x.width, [&](int64_t j, int64_t n) { return load(from + j, n); }) : 0;
    means[k] = total / static_cast<float>(x.width);
    if (!bias || rule == Rule::cls || rule == Rule::equal) continue;
    // While the row is in the cache. The factor `inverse` is common to all sources.
    shares[k] = sum(x.width, [&](int64_t j, int64_t n) {
      const Vec v = (load(from + j, n) - means[k]) * load(bias + j, n);
      return weight ? v * load(weight + j, n) : v;
    });
  }
  finish_norm<T>(x, inverse, means, weight, bias, rule, shares);
}

// bias_split of a branch with the state as its residual, and layernorm, while a row is near; the branch is only read.
template <typename T>
void add_norm(
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
  float *shares = scratch, *means = scratch + x.count;
  const float inverse = 1 / scale;
  if (rule == Rule::none) branch_bias = bias = nullptr;
  const auto given = [&](int64_t k, int64_t j, int64_t n) {
    const Vec v = load(row<T>(branch, k) + j, n);
    return share_after_residual ? v + load(row<T>(x, k) + j, n) : v;
  };
  if (branch_bias) {
    normalise(
        shares,
        x.count,
        rule,
        [&](int64_t k) {
          return sum(x.width, [&](int64_t j, int64_t n) { return given(k, j, n) * load(branch_bias + j, n); });
        },
        [&](int64_t k) { return any(x.width, [&](int64_t j, int64_t n) { return given(k, j, n); }); });
  }
  const bool looks = bias && rule != Rule::cls && rule != Rule::equal;
  for (int64_t k = 0; k < x.count; ++k) {
    T* to = row<T>(x, k);
    const float share = branch_bias ? shares[k] : 0;
    const float total = sum(x.width, [&](int64_t j, int64_t n) {
      Vec v = load(to + j, n) + load(row<T>(branch, k) + j, n);
      if (branch_bias) v += load(branch_bias + j, n) * share;
      store(to + j, v, n);
      return load(to + j, n);  // as it was rounded
    });
    const float mean = means[k] = centre ? total / static_cast<float>(x.width) : 0;
    if (!looks) continue;
    shares[k] = sum(x.width, [&](int64_t j, int64_t n) {
      const Vec v = (load(to + j, n) - mean) * load(bias + j, n);
      return weight ? v * load(weight + j, n) : v;
    });
  }
  finish_norm<T>(x, inverse, means, weight, bias, rule, shares);
}

template <typename T>
void activation(
    const Vectors& a, const float* slope, const float* bias, const float* intercept, Rule rule, float* scratch) {
  float *shares = scratch, *late = scratch + a.count;
  if (rule == Rule::none) bias = intercept = nullptr;
  const auto value = [&](int64_t k, int64_t j, int64_t n) {
    Vec v = load(row<T>(a, k) + j, n);
    if (bias) v += load(bias + j, n) * shares[k];
    return v * load(slope + j, n);
  };
  if (bias) {
    normalise(
        shares,
        a.count,
        rule,
        [&](int64_t k) {
          const T* from = row<T>(a, k);
          return sum(a.width, [&](int64_t j, int64_t n) { return load(from + j, n) * load(bias + j, n); });
        },
        [&](int64_t k) { return any(a.width, [&](int64_t j, int64_t n) { return load(row<T>(a, k) + j, n); }); });
  }
  if (intercept) {
    normalise(
        late,
        a.count,
        rule,
        [&](int64_t k) {
          return sum(a.width, [&](int64_t j, int64_t n) { return value(k, j, n) * load(intercept + j, n); });
        },
        [&](int64_t k) { return any(a.width, [&](int64_t j, int64_t n) { return value(k, j, n); }); });
  }
  for (int64_t k = 0; k < a.count; ++k) {
    T* to = row<T>(a, k);
    each(a.width, [&](int64_t j, int64_t n) {
      Vec v = value(k, j, n);
      if (intercept) v += load(intercept + j, n) * late[k];
      store(to + j, v, n);
    });
  }
}

template <typename T>
void functional_dots(const Vectors& x, const float* g, int64_t g_stride, int64_t m, float* out) {
  for (int64_t k = 0; k < x.count; ++k) {
    const T* from = row<T>(x, k);
    for (int64_t f = 0; f < m; ++f) {
      const float* functional = g + f * g_stride;
      out[k * m + f] = sum(x.width, [&](int64_t j, int64_t n) { return load(from + j, n) * load(functional + j, n); });
    }
  }
}
