// activation(gate) * up with one rounding at the end.
#pragma once

#include "lanes.h"
#include "rows.h"

namespace {

// Coefficients from the highest power down.
template <int N>
inline Floats polynomial(Floats x, const float (&coefficients)[N]) {
  Floats value = set_lanes(coefficients[0]);
  for (int i = 1; i < N; ++i) value = value * x + coefficients[i];
  return value;
}

// e^x = 2^n * e^r with |r| <= ln(2) / 2, to 2 units of float32, or to 3e-6 where bfloat16 is made of it. What would
// leave the normal numbers is held at their ends.
template <class T>
inline Floats exp_of(Floats x) {
  constexpr float LOG2_E = 1.44269504f, LN2_HIGH = 0.693359375f, LN2_LOW = -2.12194440e-4f;
  constexpr float SHORT[] = {1.0f / 120, 1.0f / 24, 1.0f / 6, 1.0f / 2, 1.0f, 1.0f};
  constexpr float LONG[] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 1.0f / 2, 1.0f, 1.0f};
  // in this order what is no number stays none
  x = smaller_of(set_lanes(88.0f), larger_of(set_lanes(-87.0f), x));
  const Floats n = nearest_integer(x * LOG2_E);
  const Floats r = (x - n * LN2_HIGH) - n * LN2_LOW;
  return power_of_two(n) * (sizeof(T) == sizeof(BFloat16) ? polynomial(r, SHORT) : polynomial(r, LONG));
}

template <class T>
inline Floats reciprocal(Floats x) {
  if constexpr (sizeof(T) != sizeof(BFloat16)) return 1.0f / x;
  const Floats rough = rough_reciprocal(x);
  return rough * (2.0f - x * rough);
}

template <class T>
inline Floats sigmoid(Floats x) {
  return reciprocal<T>(1.0f + exp_of<T>(-x));
}

// erfc(x) for x >= 0 to a relative 1.2e-7: Chebyshev fit of Numerical Recipes (Press et al.), section 6.2.
template <class T>
inline Floats erfc_of(Floats x) {
  constexpr float FIT[] = {0.17087277f,  -0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f,
                           -0.18628806f, 0.09678418f,  0.37409196f, 1.00002368f,  -1.26551223f};
  const Floats t = reciprocal<T>(1.0f + 0.5f * x);
  return t * exp_of<T>(polynomial(t, FIT) - x * x);
}

template <class T, int32_t ACTIVATION>
inline Floats activate(Floats x) {
  if constexpr (ACTIVATION == SILU) return x * sigmoid<T>(x);
  if constexpr (ACTIVATION == RELU) return larger_of(set_lanes(0.0f), x);
  if constexpr (ACTIVATION == GELU_TANH) {
    // 0.5 (1 + tanh(y)) is the sigmoid of 2 y
    constexpr float TWO_SQRT_2_OVER_PI = 1.59576912f;
    return x * sigmoid<T>(TWO_SQRT_2_OVER_PI * (x + 0.044715f * x * x * x));
  }
  constexpr float SQRT_HALF = 0.707106781f;
  const Floats tail = 0.5f * erfc_of<T>(absolute(x) * SQRT_HALF);
  return x * where_negative(x, tail, 1.0f - tail);
}

template <int32_t ACTIVATION>
inline double activate_one(double x) {
  if constexpr (ACTIVATION == SILU) return x / (1 + __builtin_exp(-x));
  if constexpr (ACTIVATION == RELU) return x < 0 ? 0 : x;
  if constexpr (ACTIVATION == GELU_TANH) {
    constexpr double SQRT_2_OVER_PI = 0.79788456080286535588;
    return 0.5 * x * (1 + __builtin_tanh(SQRT_2_OVER_PI * (x + 0.044715 * x * x * x)));
  }
  constexpr double SQRT_HALF = 0.70710678118654752440;
  return 0.5 * x * __builtin_erfc(-x * SQRT_HALF);
}

// float64 is what results are checked in, so it takes the time of the exact functions.
template <class T, int32_t ACTIVATION>
inline Doubles activate(Doubles x) {
  for (int64_t lane = 0; lane < NUM_LANES<double>; ++lane) x[lane] = activate_one<ACTIVATION>(x[lane]);
  return x;
}

template <class T, int32_t ACTIVATION>
void multiply_range(const void* context, int64_t first, int64_t last) {
  const ActMul& call = *static_cast<const ActMul*>(context);
  for (int64_t row = first; row < last; ++row) {
    const T* gate = static_cast<const T*>(call.gate_up) + row * call.stride;
    const T* up = gate + call.size;
    T* out = static_cast<T*>(call.out) + row * call.size;
    for_lanes<T>(call.size, [&](int64_t i, int64_t count) {
      store_lanes(out + i, activate<T, ACTIVATION>(load_lanes(gate + i, count)) * load_lanes(up + i, count), count);
    });
  }
}

template <class T>
Range multiply_range_of(int32_t activation) {
  switch (activation) {
    case SILU: return multiply_range<T, SILU>;
    case GELU: return multiply_range<T, GELU>;
    case GELU_TANH: return multiply_range<T, GELU_TANH>;
    default: return multiply_range<T, RELU>;
  }
}

inline Range act_mul_rows(int32_t element, int32_t activation) {
  if (element == FLOAT64) return multiply_range_of<double>(activation);
  return element == FLOAT32 ? multiply_range_of<float>(activation) : multiply_range_of<BFloat16>(activation);
}

}  // namespace
