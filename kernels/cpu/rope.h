// Rotates the halves of each head: (a, b) becomes (a cos - b sin, b cos + a sin); elements behind both halves pass.
#pragma once

#include "lanes.h"
#include "rows.h"

namespace {

template <class T>
void rotate_head(const T* x, const T* cos, const T* sin, T* out, int64_t half, int64_t size) {
  for_lanes<T>(half, [&](int64_t i, int64_t count) {
    const Lanes<T> first = load_lanes(x + i, count), second = load_lanes(x + half + i, count);
    const Lanes<T> c = load_lanes(cos + i, count), s = load_lanes(sin + i, count);
    store_lanes(out + i, first * c - second * s, count);
    store_lanes(out + half + i, second * c + first * s, count);
  });
  __builtin_memcpy(out + 2 * half, x + 2 * half, (size - 2 * half) * sizeof(T));
}

template <class T>
void rotate_token(const Rope& rope, int64_t token) {
  const T* cos = static_cast<const T*>(rope.cos) + token * rope.half;
  const T* sin = static_cast<const T*>(rope.sin) + token * rope.half;
  for (int64_t head = 0; head < rope.num_heads; ++head) {
    const T* x = static_cast<const T*>(rope.x) + token * rope.token_stride + head * rope.head_stride;
    T* out = static_cast<T*>(rope.out) + (token * rope.num_heads + head) * rope.size;
    rotate_head(x, cos, sin, out, rope.half, rope.size);
  }
}

template <class T>
void rotate_range(const void* context, int64_t first, int64_t last) {
  for (int64_t token = first; token < last; ++token) rotate_token<T>(*static_cast<const Rope*>(context), token);
}

template <class T>
void store_range(const void* context, int64_t first, int64_t last) {
  const RopeAndCache& call = *static_cast<const RopeAndCache*>(context);
  const int64_t half = call.rope.half, size = call.rope.size;
  for (int64_t token = first; token < last; ++token) {
    rotate_token<T>(call.rope, token);
    const T* cos = static_cast<const T*>(call.rope.cos) + token * half;
    const T* sin = static_cast<const T*>(call.rope.sin) + token * half;
    for (int64_t head = 0; head < call.num_kv_heads; ++head) {
      const int64_t place = (call.slots[token] * call.num_kv_heads + head) * size;
      const T* k = static_cast<const T*>(call.k) + token * call.k_token_stride + head * call.k_head_stride;
      const T* v = static_cast<const T*>(call.v) + token * call.v_token_stride + head * call.v_head_stride;
      rotate_head(k, cos, sin, static_cast<T*>(call.k_cache) + place, half, size);
      __builtin_memcpy(static_cast<T*>(call.v_cache) + place, v, size * sizeof(T));
    }
  }
}

inline Range rope_tokens(int32_t element) {
  if (element == FLOAT64) return rotate_range<double>;
  return element == FLOAT32 ? rotate_range<float> : rotate_range<BFloat16>;
}

inline Range rope_and_cache_tokens(int32_t element) {
  if (element == FLOAT64) return store_range<double>;
  return element == FLOAT32 ? store_range<float> : store_range<BFloat16>;
}

}  // namespace
