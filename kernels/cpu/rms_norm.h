// RMS norm of each row, in one pass that adds the residual and a second one while the row is in the first-level cache.
#pragma once

#include "lanes.h"
#include "rows.h"

namespace {

template <class T, class W>
void norm_row(const Norm& norm, int64_t row) {
  using Vector = Lanes<T>;
  const int64_t size = norm.size;
  const T* h = static_cast<const T*>(norm.x) + row * norm.x_stride;
  Vector squares = {};
  if (norm.residual == nullptr) {
    for_lanes<T>(size, [&](int64_t i, int64_t count) {
      const Vector value = load_lanes(h + i, count);
      squares += value * value;
    });
  } else {
    const T* residual = static_cast<const T*>(norm.residual) + row * norm.residual_stride;
    T* sum = static_cast<T*>(norm.sum) + row * size;
    for_lanes<T>(size, [&](int64_t i, int64_t count) {
      const Vector value = rounded_to<T>(load_lanes(h + i, count) + load_lanes(residual + i, count));
      store_lanes(sum + i, value, count);
      squares += value * value;
    });
    h = sum;
  }
  const auto mean = sum_of(squares) / size;
  const Vector scale = set_lanes(1 / root_of(mean + static_cast<decltype(mean)>(norm.eps)));
  const W* weight = static_cast<const W*>(norm.weight);
  T* out = static_cast<T*>(norm.out) + row * size;
  for_lanes<T>(size, [&](int64_t i, int64_t count) {
    // a weight of the rows' own type multiplies what was rounded to it, a wider one what was not
    const Vector normed = load_lanes(h + i, count) * scale;
    const Vector factor = sizeof(W) == sizeof(T) ? rounded_to<T>(normed) : normed;
    store_lanes(out + i, load_lanes(weight + i, count) * factor, count);
  });
}

template <class T, class W>
void norm_range(const void* context, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) norm_row<T, W>(*static_cast<const Norm*>(context), row);
}

inline Range norm_rows(int32_t element, int32_t weight_element) {
  if (element == FLOAT64) return norm_range<double, double>;
  if (element == FLOAT32) return norm_range<float, float>;
  return weight_element == FLOAT32 ? norm_range<BFloat16, float> : norm_range<BFloat16, BFloat16>;
}

}  // namespace
