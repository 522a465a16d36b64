// Attention of single queries in products of bfloat16 pairs: the same tiles and state as in attention_lanes.h, where
// the processor has such products and a head is a multiple of their width.
#pragma once

#include "attention_keys.h"

#ifdef __AVX512BF16__

namespace {

constexpr int64_t PAIRED = 32;  // bfloat16 in a vector

inline __m512bh load_pairs(const BFloat16* place) { return (__m512bh)_mm512_loadu_si512(place); }

// Lane i of the result is the sum of the lanes of `x[i]`.
inline Floats sums_of(const Floats (&x)[16]) {
  Floats a[8], b[4], c[2];
  for (int i = 0; i < 8; ++i)
    a[i] = _mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]) + _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]);
  for (int i = 0; i < 4; ++i) {
    const __m512d first = _mm512_castps_pd(a[2 * i]), second = _mm512_castps_pd(a[2 * i + 1]);
    b[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(first, second)) + _mm512_castpd_ps(_mm512_unpackhi_pd(first, second));
  }
  for (int i = 0; i < 2; ++i)
    c[i] = _mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0x88) + _mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0xdd);
  return _mm512_shuffle_f32x4(c[0], c[1], 0x88) + _mm512_shuffle_f32x4(c[0], c[1], 0xdd);
}

// Products of the query with 16 keys.
inline Floats scores_of(const Keys<BFloat16>& keys, int64_t first, const BFloat16* q, int64_t offset, int64_t size) {
  Floats products[16];
  for (int key = 0; key < 16; ++key) products[key] = set_lanes(0.0f);
  for (int64_t i = 0; i < size; i += PAIRED) {
    const __m512bh part = load_pairs(q + i);
    for (int key = 0; key < 16; ++key)
      products[key] = _mm512_dpbf16_ps(products[key], part, load_pairs(keys.k[first + key] + offset + i));
  }
  return sums_of(products);
}

// Two vectors of numbers in order, from and to the order that interleaved rows of values have.
inline void interleave(Floats& low, Floats& high) {
  const Floats first = _mm512_shuffle_f32x4(low, high, 0x88), second = _mm512_shuffle_f32x4(low, high, 0xdd);
  low = first, high = second;
}
inline void straighten(Floats& low, Floats& high) {
  const Floats first = _mm512_shuffle_f32x4(low, high, 0x44), second = _mm512_shuffle_f32x4(low, high, 0xee);
  low = _mm512_shuffle_f32x4(first, first, 0xd8), high = _mm512_shuffle_f32x4(second, second, 0xd8);
}

// R query heads of one KV head over a tile of keys. `state`: of the first of them; q: the first of them.
template <int R>
void attend_pairs(const Decode& call, const Keys<BFloat16>& keys, const Keys<BFloat16>& next, const BFloat16* q,
                  float* state, int64_t offset) {
  const int64_t padded = padded_size(call.size), length = state_size(call.size);
  alignas(64) int32_t weights[R][TILE / 2];
  Floats shrink[R];
  const Floats scale = set_lanes(float(call.scale)), nothing = set_lanes(-__builtin_inff());
  const __mmask16 exists[2] = {__mmask16((1u << smaller(keys.count, 16)) - 1),
                               __mmask16((1u << (keys.count > 16 ? keys.count - 16 : 0)) - 1)};
  for (int r = 0; r < R; ++r) {
    float* ends = state + r * length + 2 * padded;
    Floats scores[2] = {nothing, nothing};
    for (int half = 0; half < 2 && exists[half]; ++half) {
      scores[half] = scores_of(keys, 16 * half, q + r * call.head_stride, offset, call.size) * scale;
      if (call.soft_cap != 0) scores[half] = capped<BFloat16>(scores[half], float(call.soft_cap));
    }
    const Floats known = _mm512_mask_blend_ps(exists[0], nothing, scores[0]);
    float largest = largest_in(larger_of(_mm512_mask_blend_ps(exists[1], nothing, scores[1]), known));
    if (!(largest > ends[0])) largest = ends[0];
    const float by = largest == ends[0] ? 1.0f : __builtin_expf(ends[0] - largest);
    Floats total = set_lanes(0.0f);
    for (int half = 0; half < 2; ++half) {
      scores[half] = _mm512_maskz_mov_ps(exists[half], exp_lanes<BFloat16>(scores[half] - set_lanes(largest)));
      total += scores[half];
    }
    _mm512_store_si512(weights[r], (__m512i)_mm512_cvtne2ps_pbh(scores[1], scores[0]));
    ends[0] = largest;
    ends[1] = ends[1] * by + sum_of(total);
    shrink[r] = set_lanes(by);
  }
  for (int64_t i = 0; i < call.size; i += PAIRED) {
    Floats low[R], high[R];
    for (int r = 0; r < R; ++r) {
      const float* sums = state + r * length + padded + i;
      low[r] = load_lanes(sums) * shrink[r], high[r] = load_lanes(sums + 16) * shrink[r];
      interleave(low[r], high[r]);
    }
    for (int64_t key = 0; key < keys.count; key += 2) {
      if (i == 0 && offset == 0) next.fetch(key, call.slot_stride), next.fetch(key + 1, call.slot_stride);
      const __m512i first = _mm512_loadu_si512(keys.v[key] + offset + i);
      const __m512i second = _mm512_loadu_si512(keys.v[key + 1] + offset + i);
      const __m512bh of_low = (__m512bh)_mm512_unpacklo_epi16(first, second);
      const __m512bh of_high = (__m512bh)_mm512_unpackhi_epi16(first, second);
      for (int r = 0; r < R; ++r) {
        const __m512bh both = (__m512bh)_mm512_set1_epi32(weights[r][key / 2]);
        low[r] = _mm512_dpbf16_ps(low[r], both, of_low);
        high[r] = _mm512_dpbf16_ps(high[r], both, of_high);
      }
    }
    for (int r = 0; r < R; ++r) {
      float* sums = state + r * length + padded + i;
      straighten(low[r], high[r]);
      store_lanes(sums, low[r]), store_lanes(sums + 16, high[r]);
    }
  }
}

}  // namespace

#endif
