// Launches attention of single queries, and stores the K and V of a step.
#include "attention.h"

EXPORT int64_t switchgear_decode_state_size(int64_t size) { return state_size(size); }

// Fills `out` for the tokens of `merges`: first every part of every context, then what they come to together.
EXPORT void switchgear_decode(const void* q, int64_t token_stride, int64_t head_stride, const void* k, const void* v,
                              int64_t block_stride, int64_t slot_stride, int64_t kv_head_stride, int64_t block_size,
                              const int64_t* table, int64_t table_stride, const int64_t* tasks, int64_t num_tasks,
                              const int64_t* merges, int64_t num_merges, void* states, void* out, int64_t num_heads,
                              int64_t num_kv_heads, int64_t size, double scale, double soft_cap, int32_t element,
                              int32_t level, int32_t num_threads) {
  const Decode call{q,          token_stride, head_stride,  k,     v,      block_stride, slot_stride,
                    kv_head_stride, block_size, table, table_stride, tasks, merges, states, out,
                    num_heads,  num_kv_heads, size, scale, soft_cap};
  const DecodeKernels kernels = (level >= AVX512_BF16 ? decode_kernels_avx512 : decode_kernels_avx2)(element);
  run_tasks(kernels.attend, call, num_tasks, num_threads);
  run_ranges(kernels.merge, call, num_merges, num_heads * size, num_threads);
}

namespace {

struct Write {
  const char* k;
  int64_t k_stride;
  const char* v;
  int64_t v_stride;
  char* k_cache;
  char* v_cache;
  const int64_t* slots;
  int64_t size;
};

void write_range(const void* context, int64_t first, int64_t last) {
  const Write& call = *static_cast<const Write*>(context);
  for (int64_t token = first; token < last; ++token) {
    __builtin_memcpy(call.k_cache + call.slots[token] * call.size, call.k + token * call.k_stride, call.size);
    __builtin_memcpy(call.v_cache + call.slots[token] * call.size, call.v + token * call.v_stride, call.size);
  }
}

}  // namespace

// Strides and size in bytes: those between tokens, and that of all heads of one, which are dense.
EXPORT void switchgear_write_kv(const void* k, int64_t k_stride, const void* v, int64_t v_stride, void* k_cache,
                                void* v_cache, const int64_t* slots, int64_t num_tokens, int64_t size,
                                int32_t num_threads) {
  const Write call{static_cast<const char*>(k), k_stride, static_cast<const char*>(v), v_stride,
                   static_cast<char*>(k_cache), static_cast<char*>(v_cache), slots, size};
  run_ranges(write_range, call, num_tokens, size, num_threads);
}
