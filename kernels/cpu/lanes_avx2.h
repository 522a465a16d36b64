// Eight float32 or four float64 at once, loaded from and stored to the element types. For files compiled with AVX2.
#pragma once

#include <immintrin.h>

#include "native.h"

namespace {

// By element type: the vector that it is computed in.
template <class T>
struct LanesOf {
  using Vector = __m256;
  static constexpr int64_t COUNT = 8;
};

template <>
struct LanesOf<double> {
  using Vector = __m256d;
  static constexpr int64_t COUNT = 4;
};

template <class T>
using Lanes = typename LanesOf<T>::Vector;

inline __m256 load_lanes(const float* place) { return _mm256_loadu_ps(place); }
inline __m256d load_lanes(const double* place) { return _mm256_loadu_pd(place); }
inline __m256 load_lanes(const BFloat16* place) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(place));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

inline void store_lanes(float* place, __m256 value) { _mm256_storeu_ps(place, value); }
inline void store_lanes(double* place, __m256d value) { _mm256_storeu_pd(place, value); }

// To the nearest, ties to even; adding to the bits would make a number of a NaN, so that one is set apart.
inline void store_lanes(BFloat16* place, __m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), is_odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
  const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(place), packed);
}

// As it would be read back after a store.
template <class T>
inline Lanes<T> rounded_to(Lanes<T> value) {
  if constexpr (sizeof(T) == sizeof(BFloat16)) {
    BFloat16 stored[LanesOf<T>::COUNT];
    store_lanes(stored, value);
    return load_lanes(stored);
  } else {
    return value;
  }
}

inline __m256 set_lanes(float value) { return _mm256_set1_ps(value); }
inline __m256d set_lanes(double value) { return _mm256_set1_pd(value); }

inline float sum_of(__m256 value) {
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, value);
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}
inline double sum_of(__m256d value) {
  alignas(32) double lanes[4];
  _mm256_store_pd(lanes, value);
  return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

// Calls `step(place, count)` for each full vector and for what is left of `size` elements.
template <class T, class Step>
inline void for_lanes(int64_t size, Step step) {
  constexpr int64_t COUNT = LanesOf<T>::COUNT;
  int64_t place = 0;
  for (; place + COUNT <= size; place += COUNT) step(place, COUNT);
  if (place < size) step(place, size - place);
}

// `count` elements, and zeros behind them.
template <class T>
inline Lanes<T> load_lanes(const T* place, int64_t count) {
  if (count == LanesOf<T>::COUNT) return load_lanes(place);
  T padded[LanesOf<T>::COUNT] = {};
  __builtin_memcpy(padded, place, count * sizeof(T));
  return load_lanes(padded);
}

template <class T>
inline void store_lanes(T* place, Lanes<T> value, int64_t count) {
  if (count == LanesOf<T>::COUNT) return store_lanes(place, value);
  T padded[LanesOf<T>::COUNT];
  store_lanes(padded, value);
  __builtin_memcpy(place, padded, count * sizeof(T));
}

}  // namespace
