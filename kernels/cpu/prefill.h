// Attention of many queries a row over paged KV: what it is called with.
//
// K and V of the rows are first packed, a tile of 64 keys at a time, into the order in which products want them; then a
// task takes some queries, with the heads that share a KV head, and walks the tiles that they see.
#pragma once

#include "native.h"

// Strides are in elements; heads are dense.
struct Prefill {
  const void* q;  // [tokens, num_heads, size]
  int64_t token_stride;
  int64_t head_stride;
  const void* k;  // [blocks, block_size, num_kv_heads, size]
  const void* v;
  int64_t block_stride;
  int64_t slot_stride;
  int64_t kv_head_stride;
  int64_t block_size;
  const int64_t* table;  // [rows, table_stride]
  int64_t table_stride;
  const int64_t* tiles;    // [tiles, 3]: row, first key, end of the row's keys
  const int64_t* queries;  // [stretches, 5]: first token, its position, how many, the row's first tile, its first key
  char* packed;            // [tiles, num_kv_heads, packed_size]
  void* out;               // [tokens, num_heads, size], dense
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t size;
  int64_t window;  // 0 where there is none
  double scale;
  double soft_cap;  // 0 where scores are not capped
};

constexpr int64_t KEYS = 64;  // of a tile; as in prefill_attention.py

// How a call is cut. Rows of a task's products: so many that packed tiles are read seldom, and what it keeps of them
// stays in the second-level cache.
struct Cut {
  int64_t num_heads;     // of a KV head that a task takes
  int64_t num_parts;     // tasks that share a KV head
  int64_t num_queries;   // that a task takes at most
};

constexpr int64_t MAX_ROWS = 96;
constexpr int64_t MAX_BYTES = 128 << 10;

constexpr Cut cut_of(int64_t group, int64_t size, int64_t wide_size) {
  const int64_t fitting = MAX_BYTES / (blocks_of(size, 16) * 16 * wide_size) / 6 * 6;
  const int64_t num_rows = fitting < 6 ? 6 : smaller(fitting, MAX_ROWS);
  const int64_t num_heads = smaller(group, num_rows);
  return {num_heads, blocks_of(group, num_heads), num_rows / num_heads};
}

struct PrefillKernels {
  Task pack;    // over tiles and KV heads
  Task attend;  // over stretches, KV heads and their parts
  int64_t packed_size;  // bytes of a tile of one KV head
};

PrefillKernels prefill_kernels_avx2(int32_t element, int64_t size);
PrefillKernels prefill_kernels_avx512(int32_t element, int64_t size);
