// The operations that treat each row (or token) by itself: what they are called with, and where the kernels are.
#pragma once

#include "native.h"

// Strides are in elements everywhere; what has none is dense.

// h = x + residual, out = weight * h / sqrt(mean(h^2) + eps). `residual` is null where there is none; then `sum` is x.
struct Norm {
  const void* x;
  int64_t x_stride;
  const void* residual;
  int64_t residual_stride;
  const void* weight;
  void* out;
  void* sum;
  int64_t size;
  double eps;
};

// x: [tokens, heads, size]; cos and sin: [tokens, half].
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

// k and v: [tokens, kv_heads, size]; the caches: [slots, kv_heads, size].
struct RopeAndCache {
  Rope rope;
  const void* k;
  int64_t k_token_stride;
  int64_t k_head_stride;
  const void* v;
  int64_t v_token_stride;
  int64_t v_head_stride;
  void* k_cache;
  void* v_cache;
  const int64_t* slots;
  int64_t num_kv_heads;
};

// x: [rows, size]; out: [rows].
struct Argmax {
  const void* x;
  int64_t stride;
  int64_t* out;
  int64_t size;
};

// x: [rows, size]; values and places: [rows, k], 1 <= k <= size.
struct TopK {
  const void* x;
  int64_t stride;
  void* values;
  int64_t* places;
  int64_t size;
  int64_t k;
};

// gate_up: [rows, 2 * size], gate first.
struct ActMul {
  const void* gate_up;
  int64_t stride;
  void* out;
  int64_t size;
};

// As in act_mul.py.
enum Activation : int32_t { SILU = 0, GELU = 1, GELU_TANH = 2, RELU = 3 };

// The `Range` over rows for these types, of the file that is compiled for a processor.
Range norm_rows_avx2(int32_t element, int32_t weight_element);
Range norm_rows_avx512(int32_t element, int32_t weight_element);
Range rope_tokens_avx2(int32_t element);
Range rope_tokens_avx512(int32_t element);
Range rope_and_cache_tokens_avx2(int32_t element);
Range rope_and_cache_tokens_avx512(int32_t element);
Range argmax_rows_avx2(int32_t element);
Range argmax_rows_avx512(int32_t element);
Range top_k_rows_avx2(int32_t element);
Range top_k_rows_avx512(int32_t element);
Range act_mul_rows_avx2(int32_t element, int32_t activation);
Range act_mul_rows_avx512(int32_t element, int32_t activation);
