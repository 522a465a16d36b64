// Rotates the halves of each head: (a, b) becomes (a cos - b sin, b cos + a sin); elements behind both halves pass.
#include "lanes_avx2.h"

namespace {

// As in rope.py. Strides are in elements; x: [tokens, heads, size], out as dense; cos and sin: [tokens, half], dense.
struct Rope {
  const void* x;
  int64_t token_stride;
  int64_t head_stride;
  const void* cos;
  const void* sin;
  void* out;
  int64_t num_heads;
  int64_t size;
  int64_t half;
};

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
void rotate_tokens(const void* context, int64_t first, int64_t last) {
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

}  // namespace

EXPORT void switchgear_rope(const void* x, int64_t token_stride, int64_t head_stride, const void* cos, const void* sin,
                            void* out, int64_t num_tokens, int64_t num_heads, int64_t size, int64_t half,
                            int32_t element, int32_t num_threads) {
  const Rope rope{x, token_stride, head_stride, cos, sin, out, num_heads, size, half};
  const Range range = element == FLOAT64   ? rotate_tokens<double>
                      : element == FLOAT32 ? rotate_tokens<float>
                                           : rotate_tokens<BFloat16>;
  run_ranges(range, &rope, num_tokens, num_heads * size, num_threads);
}
