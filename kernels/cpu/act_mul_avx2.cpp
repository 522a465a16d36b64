// out[t] = activation(gate[t]) * up[t] with one rounding at the end; gate and up are the halves of each row.
#include <cmath>

#include "lanes_avx2.h"

namespace {

// As in act_mul.py.
enum Activation : int32_t { SILU = 0, GELU = 1, GELU_TANH = 2, RELU = 3 };

struct ActMul {
  const void* gate_up;
  int64_t stride;
  void* out;
  int64_t size;
};

// Coefficients from the highest power down.
template <int N>
inline __m256 polynomial(__m256 x, const float (&coefficients)[N]) {
  __m256 value = set_lanes(coefficients[0]);
  for (int i = 1; i < N; ++i) value = value * x + coefficients[i];
  return value;
}

// e^x for float32 to 2 units in the last place: 2^n * e^r with |r| <= ln(2) / 2. What would leave the normal numbers is
// held at their ends.
inline __m256 exp_of(__m256 x) {
  constexpr float LOG2_E = 1.44269504f, LN2_HIGH = 0.693359375f, LN2_LOW = -2.12194440e-4f;
  x = _mm256_min_ps(_mm256_max_ps(x, set_lanes(-87.0f)), set_lanes(88.0f));
  const __m256 n = _mm256_round_ps(x * LOG2_E, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256 r = (x - n * LN2_HIGH) - n * LN2_LOW;
  constexpr float TAYLOR[] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 1.0f / 2, 1.0f, 1.0f};
  const __m256 power = polynomial(r, TAYLOR);
  const __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return power * _mm256_castsi256_ps(exponent);
}

// erfc(x) for x >= 0 to a relative 1.2e-7: Chebyshev fit of Numerical Recipes (Press et al.), section 6.2.
inline __m256 erfc_of(__m256 x) {
  const __m256 t = 1.0f / (1.0f + 0.5f * x);
  constexpr float FIT[] = {0.17087277f, -0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f,
                           -0.18628806f, 0.09678418f, 0.37409196f, 1.00002368f, -1.26551223f};
  return t * exp_of(polynomial(t, FIT) - x * x);
}

inline __m256 absolute(__m256 x) { return _mm256_andnot_ps(set_lanes(-0.0f), x); }

inline __m256 sigmoid(__m256 x) { return 1.0f / (1.0f + exp_of(-x)); }

template <int32_t ACTIVATION>
inline __m256 activate(__m256 x) {
  if constexpr (ACTIVATION == SILU) return x * sigmoid(x);
  if constexpr (ACTIVATION == RELU) return _mm256_max_ps(set_lanes(0.0f), x);
  if constexpr (ACTIVATION == GELU_TANH) {
    // 0.5 (1 + tanh(y)) is the sigmoid of 2 y
    constexpr float TWO_SQRT_2_OVER_PI = 1.59576912f;
    return x * sigmoid(TWO_SQRT_2_OVER_PI * (x + 0.044715f * x * x * x));
  }
  constexpr float SQRT_HALF = 0.707106781f;
  const __m256 tail = 0.5f * erfc_of(absolute(x) * SQRT_HALF);
  return x * _mm256_blendv_ps(1.0f - tail, tail, x);
}

template <int32_t ACTIVATION>
inline double activate(double x) {
  if constexpr (ACTIVATION == SILU) return x / (1 + std::exp(-x));
  if constexpr (ACTIVATION == RELU) return x < 0 ? 0 : x;
  if constexpr (ACTIVATION == GELU_TANH) {
    constexpr double SQRT_2_OVER_PI = 0.79788456080286535588;
    return 0.5 * x * (1 + std::tanh(SQRT_2_OVER_PI * (x + 0.044715 * x * x * x)));
  }
  constexpr double SQRT_HALF = 0.70710678118654752440;
  return 0.5 * x * std::erfc(-x * SQRT_HALF);
}

// float64 is what results are checked in, so it takes the time of the exact functions.
template <int32_t ACTIVATION>
inline __m256d activate(__m256d x) {
  for (int lane = 0; lane < 4; ++lane) x[lane] = activate<ACTIVATION>(x[lane]);
  return x;
}

template <class T, int32_t ACTIVATION>
void multiply_rows(const void* context, int64_t first, int64_t last) {
  const ActMul& call = *static_cast<const ActMul*>(context);
  for (int64_t row = first; row < last; ++row) {
    const T* gate = static_cast<const T*>(call.gate_up) + row * call.stride;
    const T* up = gate + call.size;
    T* out = static_cast<T*>(call.out) + row * call.size;
    for_lanes<T>(call.size, [&](int64_t i, int64_t count) {
      store_lanes(out + i, activate<ACTIVATION>(load_lanes(gate + i, count)) * load_lanes(up + i, count), count);
    });
  }
}

template <class T>
Range rows_of(int32_t activation) {
  switch (activation) {
    case SILU: return multiply_rows<T, SILU>;
    case GELU: return multiply_rows<T, GELU>;
    case GELU_TANH: return multiply_rows<T, GELU_TANH>;
    default: return multiply_rows<T, RELU>;
  }
}

}  // namespace

EXPORT void switchgear_act_mul(const void* gate_up, int64_t stride, void* out, int64_t num_rows, int64_t size,
                               int32_t activation, int32_t element, int32_t num_threads) {
  const ActMul call{gate_up, stride, out, size};
  const Range range = element == FLOAT64   ? rows_of<double>(activation)
                      : element == FLOAT32 ? rows_of<float>(activation)
                                           : rows_of<BFloat16>(activation);
  constexpr int64_t COST_OF_EXP = 4;
  run_ranges(range, &call, num_rows, COST_OF_EXP * size, num_threads);
}
