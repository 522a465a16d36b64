// Launches attention of many queries a row.
#include "prefill.h"

namespace {

PrefillKernels kernels_of(int32_t element, int64_t size, int32_t level) {
  return (level >= AVX512_BF16 ? prefill_kernels_avx512 : prefill_kernels_avx2)(element, size);
}

int64_t wide_size(int32_t element) { return element == FLOAT64 ? 8 : 4; }

}  // namespace

// Bytes that a packed tile takes, all KV heads together.
EXPORT int64_t switchgear_prefill_tile_size(int64_t num_kv_heads, int64_t size, int32_t element, int32_t level) {
  return num_kv_heads * kernels_of(element, size, level).packed_size;
}

// The most queries that a stretch may have.
EXPORT int64_t switchgear_prefill_num_queries(int64_t group, int64_t size, int32_t element) {
  return cut_of(group, size, wide_size(element)).num_queries;
}

// Fills `out` for the tokens of `queries`.
EXPORT void switchgear_prefill(const void* q, int64_t token_stride, int64_t head_stride, const void* k, const void* v,
                               int64_t block_stride, int64_t slot_stride, int64_t kv_head_stride, int64_t block_size,
                               const int64_t* table, int64_t table_stride, const int64_t* tiles, int64_t num_tiles,
                               const int64_t* queries, int64_t num_stretches, void* packed, void* out,
                               int64_t num_heads, int64_t num_kv_heads, int64_t size, int64_t window, double scale,
                               double soft_cap, int32_t element, int32_t level, int32_t num_threads) {
  const Prefill call{q,          token_stride, head_stride,    k,         v,
                     block_stride, slot_stride, kv_head_stride, block_size, table,
                     table_stride, tiles,       queries,        static_cast<char*>(packed), out,
                     num_heads,  num_kv_heads, size,            window,    scale,
                     soft_cap};
  const PrefillKernels kernels = kernels_of(element, size, level);
  const Cut cut = cut_of(num_heads / num_kv_heads, size, wide_size(element));
  run_tasks(kernels.pack, call, num_tiles * num_kv_heads, num_threads);
  run_tasks(kernels.attend, call, num_stretches * num_kv_heads * cut.num_parts, num_threads);
}
