// Launches the operations that treat each row by itself.
#include "rows.h"

// x and residual: [num_rows, size]; weight: [size]; out and sum: dense.
EXPORT void switchgear_rms_norm(const void* x, int64_t x_stride, const void* residual, int64_t residual_stride,
                                const void* weight, void* out, void* sum, int64_t num_rows, int64_t size, double eps,
                                int32_t element, int32_t weight_element, int32_t level, int32_t num_threads) {
  const Norm norm{x, x_stride, residual, residual_stride, weight, out, sum, size, eps};
  const Range range = (level >= AVX512_BF16 ? norm_rows_avx512 : norm_rows_avx2)(element, weight_element);
  run_ranges(range, norm, num_rows, size, num_threads);
}

EXPORT void switchgear_rope(const void* x, int64_t token_stride, int64_t head_stride, const void* cos, const void* sin,
                            void* out, int64_t num_tokens, int64_t num_heads, int64_t size, int64_t half,
                            int32_t element, int32_t level, int32_t num_threads) {
  const Rope rope{x, token_stride, head_stride, cos, sin, out, num_heads, size, half};
  const Range range = (level >= AVX512_BF16 ? rope_tokens_avx512 : rope_tokens_avx2)(element);
  run_ranges(range, rope, num_tokens, num_heads * size, num_threads);
}

// As above; besides, the keys rotated and the values as they are go to the slots of the caches.
EXPORT void switchgear_rope_and_cache(const void* q, int64_t q_token_stride, int64_t q_head_stride, const void* k,
                                      int64_t k_token_stride, int64_t k_head_stride, const void* v,
                                      int64_t v_token_stride, int64_t v_head_stride, const void* cos, const void* sin,
                                      void* out, void* k_cache, void* v_cache, const int64_t* slots,
                                      int64_t num_tokens, int64_t num_heads, int64_t num_kv_heads, int64_t size,
                                      int64_t half, int32_t element, int32_t level, int32_t num_threads) {
  const Rope rope{q, q_token_stride, q_head_stride, cos, sin, out, num_heads, size, half};
  const RopeAndCache call{rope, k, k_token_stride, k_head_stride, v, v_token_stride,
                          v_head_stride, k_cache, v_cache, slots, num_kv_heads};
  const Range range = (level >= AVX512_BF16 ? rope_and_cache_tokens_avx512 : rope_and_cache_tokens_avx2)(element);
  run_ranges(range, call, num_tokens, (num_heads + 2 * num_kv_heads) * size, num_threads);
}

EXPORT void switchgear_argmax(const void* x, int64_t stride, int64_t* out, int64_t num_rows, int64_t size,
                              int32_t element, int32_t level, int32_t num_threads) {
  const Argmax call{x, stride, out, size};
  const Range range = (level >= AVX512_BF16 ? argmax_rows_avx512 : argmax_rows_avx2)(element);
  run_ranges(range, call, num_rows, size, num_threads);
}

EXPORT void switchgear_top_k(const void* x, int64_t stride, void* values, int64_t* places, int64_t num_rows,
                             int64_t size, int64_t k, int32_t element, int32_t level, int32_t num_threads) {
  const TopK call{x, stride, values, places, size, k};
  const Range range = (level >= AVX512_BF16 ? top_k_rows_avx512 : top_k_rows_avx2)(element);
  run_ranges(range, call, num_rows, size, num_threads);
}

EXPORT void switchgear_act_mul(const void* gate_up, int64_t stride, void* out, int64_t num_rows, int64_t size,
                               int32_t activation, int32_t element, int32_t level, int32_t num_threads) {
  constexpr int64_t COST_OF_EXP = 4;
  const ActMul call{gate_up, stride, out, size};
  const Range range = (level >= AVX512_BF16 ? act_mul_rows_avx512 : act_mul_rows_avx2)(element, activation);
  run_ranges(range, call, num_rows, COST_OF_EXP * size, num_threads);
}
