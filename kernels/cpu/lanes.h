// As many numbers at once as the including file may use: 8 float32 with AVX2, 16 with AVX-512 BF16, half as many
// float64 or int64; loaded from and stored to the element types.
#pragma once

#include <immintrin.h>

#include "native.h"

namespace {

#ifdef __AVX512BF16__

using Floats = __m512;
using Doubles = __m512d;
using Longs = __m512i;

inline Floats set_lanes(float value) { return _mm512_set1_ps(value); }
inline Doubles set_lanes(double value) { return _mm512_set1_pd(value); }
inline Longs set_lanes(int64_t value) { return _mm512_set1_epi64(value); }
inline Floats load_lanes(const float* place) { return _mm512_loadu_ps(place); }
inline Doubles load_lanes(const double* place) { return _mm512_loadu_pd(place); }
inline Longs load_lanes(const int64_t* place) { return _mm512_loadu_si512(place); }
inline void store_lanes(float* place, Floats value) { _mm512_storeu_ps(place, value); }
inline void store_lanes(double* place, Doubles value) { _mm512_storeu_pd(place, value); }
inline float sum_of(Floats value) { return _mm512_reduce_add_ps(value); }
inline double sum_of(Doubles value) { return _mm512_reduce_add_pd(value); }
inline float largest_in(Floats value) { return _mm512_reduce_max_ps(value); }

inline Floats widened(__m256i halves) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
inline Floats load_lanes(const BFloat16* place) {
  return widened(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(place)));
}
inline void store_lanes(BFloat16* place, Floats value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(place), (__m256i)_mm512_cvtneps_pbh(value));
}
inline Floats rounded_to_bfloat16(Floats value) { return widened((__m256i)_mm512_cvtneps_pbh(value)); }

inline Floats larger_of(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats smaller_of(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats absolute(Floats x) { return _mm512_abs_ps(x); }
inline Floats where_negative(Floats x, Floats negative, Floats other) {
  return _mm512_mask_blend_ps(_mm512_movepi32_mask(_mm512_castps_si512(x)), other, negative);
}
inline Floats nearest_integer(Floats x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT); }
inline Floats power_of_two(Floats n) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
inline Floats rough_reciprocal(Floats x) { return _mm512_rcp14_ps(x); }

// A bit for each lane of x that is not at most the bound's.
inline uint32_t lanes_above(Floats x, Floats bound) { return _mm512_cmp_ps_mask(x, bound, _CMP_NLE_UQ); }
inline uint32_t lanes_above(Doubles x, Doubles bound) { return _mm512_cmp_pd_mask(x, bound, _CMP_NLE_UQ); }
inline uint32_t lanes_above(Longs x, Longs bound) { return _mm512_cmpgt_epi64_mask(x, bound); }

#else

using Floats = __m256;
using Doubles = __m256d;
using Longs = __m256i;

inline Floats set_lanes(float value) { return _mm256_set1_ps(value); }
inline Doubles set_lanes(double value) { return _mm256_set1_pd(value); }
inline Longs set_lanes(int64_t value) { return _mm256_set1_epi64x(value); }
inline Floats load_lanes(const float* place) { return _mm256_loadu_ps(place); }
inline Doubles load_lanes(const double* place) { return _mm256_loadu_pd(place); }
inline Longs load_lanes(const int64_t* place) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(place));
}
inline void store_lanes(float* place, Floats value) { _mm256_storeu_ps(place, value); }
inline void store_lanes(double* place, Doubles value) { _mm256_storeu_pd(place, value); }
inline float sum_of(Floats value) {
  float sum = 0;
  for (int lane = 0; lane < 8; ++lane) sum += value[lane];
  return sum;
}
inline double sum_of(Doubles value) { return (value[0] + value[1]) + (value[2] + value[3]); }
inline float largest_in(Floats value) {
  float largest = value[0];
  for (int lane = 1; lane < 8; ++lane) largest = value[lane] > largest ? value[lane] : largest;
  return largest;
}

inline Floats load_lanes(const BFloat16* place) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(place));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

// To the nearest, ties to even; adding to the bits would make a number of a NaN, so that one is set apart.
inline Floats rounded_to_bfloat16(Floats value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i raised = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), is_odd);
  const __m256 rounded = _mm256_castsi256_ps(_mm256_and_si256(raised, _mm256_set1_epi32(int32_t(0xffff0000))));
  return _mm256_blendv_ps(rounded, set_lanes(__builtin_nanf("")), _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
}
inline void store_lanes(BFloat16* place, Floats value) {
  const __m256i halves = _mm256_srli_epi32(_mm256_castps_si256(rounded_to_bfloat16(value)), 16);
  const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(place), packed);
}

inline Floats larger_of(Floats a, Floats b) { return _mm256_max_ps(a, b); }
inline Floats smaller_of(Floats a, Floats b) { return _mm256_min_ps(a, b); }
inline Floats absolute(Floats x) { return _mm256_andnot_ps(set_lanes(-0.0f), x); }
inline Floats where_negative(Floats x, Floats negative, Floats other) { return _mm256_blendv_ps(other, negative, x); }
inline Floats nearest_integer(Floats x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Floats power_of_two(Floats n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline Floats rough_reciprocal(Floats x) { return _mm256_rcp_ps(x); }

inline uint32_t lanes_above(Floats x, Floats bound) {
  return _mm256_movemask_ps(_mm256_cmp_ps(x, bound, _CMP_NLE_UQ));
}
inline uint32_t lanes_above(Doubles x, Doubles bound) {
  return _mm256_movemask_pd(_mm256_cmp_pd(x, bound, _CMP_NLE_UQ));
}
inline uint32_t lanes_above(Longs x, Longs bound) {
  return _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(x, bound)));
}

#endif

inline Doubles larger_of(Doubles a, Doubles b) { return a > b ? a : b; }
inline double largest_in(Doubles value) {
  double largest = value[0];
  for (int lane = 1; lane < int(sizeof(Doubles) / sizeof(double)); ++lane)
    largest = value[lane] > largest ? value[lane] : largest;
  return largest;
}

inline float root_of(float x) { return __builtin_sqrtf(x); }
inline double root_of(double x) { return __builtin_sqrt(x); }

// By element type: the vector that it is computed in.
template <class T>
struct LanesOf {
  using Vector = Floats;
};

template <>
struct LanesOf<double> {
  using Vector = Doubles;
};

template <>
struct LanesOf<int64_t> {
  using Vector = Longs;
};

template <class T>
using Lanes = typename LanesOf<T>::Vector;

template <class T>
constexpr int64_t NUM_LANES = sizeof(Floats) / (sizeof(T) == sizeof(double) ? sizeof(double) : sizeof(float));

// As it would be read back after a store.
template <class T>
inline Lanes<T> rounded_to(Lanes<T> value) {
  if constexpr (sizeof(T) == sizeof(BFloat16)) {
    return rounded_to_bfloat16(value);
  } else {
    return value;
  }
}

// `count` elements, and zeros behind them.
template <class T>
inline Lanes<T> load_lanes(const T* place, int64_t count) {
  if (count == NUM_LANES<T>) return load_lanes(place);
  T padded[NUM_LANES<T>] = {};
  __builtin_memcpy(padded, place, count * sizeof(T));
  return load_lanes(padded);
}

template <class T>
inline void store_lanes(T* place, Lanes<T> value, int64_t count) {
  if (count == NUM_LANES<T>) return store_lanes(place, value);
  T padded[NUM_LANES<T>];
  store_lanes(padded, value);
  __builtin_memcpy(place, padded, count * sizeof(T));
}

// Calls `step(place, count)` for each full vector of `size` elements, and for what is left.
template <class T, class Step>
inline __attribute__((always_inline)) void for_lanes(int64_t size, Step step) {
  int64_t place = 0;
  for (; place + NUM_LANES<T> <= size; place += NUM_LANES<T>) step(place, NUM_LANES<T>);
  if (place < size) step(place, size - place);
}

}  // namespace
