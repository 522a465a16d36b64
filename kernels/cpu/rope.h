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
void rotate_range(const void* context, int64_t first, int64_t last) {
  const Rope& rope = *static_cast<const Rope*>(context);
  for (int64_t token = first; token < last; ++token) {
    const T* cos = static_cast<const T*>(rope.cos) + token * rope.half;
    const T* sin = static_cast<const T*>(rope.sin) + token * rope.half;
    for (int64_t head = 0; head < rope.num_heads; ++head) {
      const T* x = static_cast<const T*>(rope.x) + token * rope.token_stride + head * rope.head_stride;
      T* out = static_cast<T*>(rope.out) + (token * rope.num_heads + head) * rope.size;
      rotate_head(x, cos, sin, out, rope.half, rope.size);
    }
  }
}

inline Range rope_tokens(int32_t element) {
  if (element == FLOAT64) return rotate_range<double>;
  return element == FLOAT32 ? rotate_range<float> : rotate_range<BFloat16>;
}

}  // namespace
