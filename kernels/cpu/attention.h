// Attention of single queries over paged KV, a part of the context at a time: what it is called with.
#pragma once

#include "native.h"

// Strides are in elements; heads are dense.
struct Decode {
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
  const int64_t* tasks;  // [tasks, 4]: token, row, first key, end; nothing is to do where the token is negative
  const int64_t* merges;  // [tokens, 3]: token, first task, number of tasks
  void* states;  // [tasks, num_heads, state_size], float32, or float64 for float64
  void* out;  // [tokens, num_heads, size], dense
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t size;
  double scale;
  double soft_cap;  // 0 where scores are not capped
};

// A head's state: its query and its sum of values, both padded, then the largest score and the sum of weights.
constexpr int64_t PADDING = 16;
constexpr int64_t padded_size(int64_t size) { return blocks_of(size, PADDING) * PADDING; }
constexpr int64_t state_size(int64_t size) { return 2 * padded_size(size) + 2; }

struct DecodeKernels {
  Task attend;  // over tasks
  Range merge;  // over tokens
};

DecodeKernels decode_kernels_avx2(int32_t element);
DecodeKernels decode_kernels_avx512(int32_t element);
