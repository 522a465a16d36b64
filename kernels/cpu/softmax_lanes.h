// What every form of attention does to scores: the exponential by element type, and the soft cap.
#pragma once

#include "act_mul.h"

namespace {

template <class T>
struct WideOf {
  using Type = float;
};

template <>
struct WideOf<double> {
  using Type = double;
};

template <class T>
using Wide = typename WideOf<T>::Type;

template <class T>
inline Floats exp_lanes(Floats x) {
  return exp_of<T>(x);
}

template <class T>
inline Doubles exp_lanes(Doubles x) {
  for (int64_t lane = 0; lane < NUM_LANES<double>; ++lane) x[lane] = __builtin_exp(x[lane]);
  return x;
}

// cap * tanh(x / cap), in a form that nothing overflows.
template <class T>
inline Lanes<T> capped(Lanes<T> x, Wide<T> cap) {
  Lanes<T> size = x;
  for (int64_t lane = 0; lane < NUM_LANES<T>; ++lane) size[lane] = x[lane] < 0 ? x[lane] : -x[lane];
  const Lanes<T> shrunk = exp_lanes<T>(size * (2 / cap));
  Lanes<T> value = cap * (1 - shrunk) / (1 + shrunk);
  for (int64_t lane = 0; lane < NUM_LANES<T>; ++lane) value[lane] = x[lane] < 0 ? -value[lane] : value[lane];
  return value;
}

}  // namespace
