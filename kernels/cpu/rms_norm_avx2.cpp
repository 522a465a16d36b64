// out[t] = weight * h[t] / sqrt(mean(h[t]^2) + eps) with h = x + residual, in one pass over each row and a second one
// while it is still in the first-level cache.
#include <cmath>

#include "lanes_avx2.h"

namespace {

// As in rms_norm.py. Strides are in elements; `residual` and `sum` are null where there is no residual.
struct Norm {
  const void* x;
  int64_t x_stride;
  const void* residual;
  int64_t residual_stride;
  const void* weight;
  void* out;
  void* sum;
  int64_t num_rows;
  int64_t size;
  double eps;
};

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
  const Vector scale = set_lanes(1 / std::sqrt(mean + static_cast<decltype(mean)>(norm.eps)));
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
void norm_rows(const void* context, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) norm_row<T, W>(*static_cast<const Norm*>(context), row);
}

Range rows_of(int32_t element, int32_t weight_element) {
  if (element == FLOAT64) return norm_rows<double, double>;
  if (element == FLOAT32) return norm_rows<float, float>;
  return weight_element == FLOAT32 ? norm_rows<BFloat16, float> : norm_rows<BFloat16, BFloat16>;
}

}  // namespace

EXPORT void switchgear_rms_norm(const void* x, int64_t x_stride, const void* residual, int64_t residual_stride,
                                const void* weight, void* out, void* sum, int64_t num_rows, int64_t size, double eps,
                                int32_t element, int32_t weight_element, int32_t num_threads) {
  const Norm norm{x, x_stride, residual, residual_stride, weight, out, sum, num_rows, size, eps};
  run_ranges(rows_of(element, weight_element), &norm, num_rows, size, num_threads);
}
