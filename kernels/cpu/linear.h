// The packed form of a linear's weight, and what its kernels are called with.
//
// Outputs stand in groups of 48 (the last of 16, 32 or 48), one group after the other. Within a group, input after
// input, lie the weights of all its outputs; bfloat16 takes two inputs at a time, so that an output's pair is one 32
// bit word, as the dot products of AVX-512 and AMX want it. Inputs are padded to a multiple of 32 for bfloat16, and
// outputs to a multiple of 16, with zeros. A step thus reads the weights once, front to back, and a tile of 8 rows
// times 48 outputs fills the registers of AVX-512.
#pragma once

#include "native.h"

constexpr int64_t PANEL = 16;          // outputs that a partial group is a multiple of
constexpr int64_t GROUP = 3 * PANEL;   // outputs whose weights lie together
constexpr int64_t INPUTS_OF_TILE = 32; // bfloat16 inputs in one AMX tile

// As in linear.py. Strides and counts are in elements.
struct PackedLinear {
  const void* weight;
  const void* bias;  // padded to a multiple of 16 in the type that sums are kept in, or null
  int64_t num_outputs;
  int64_t num_inputs;
  int32_t element;
};

struct LinearCall {
  const PackedLinear* linear;
  const void* x;
  int64_t x_stride;
  void* out;
  int64_t out_stride;
  int64_t num_rows;
  int64_t rows_per_chunk;

  int64_t num_groups() const { return blocks_of(linear->num_outputs, GROUP); }
  int64_t num_chunks() const { return blocks_of(num_rows, rows_per_chunk); }
};

constexpr int64_t padded_inputs(int32_t element, int64_t num_inputs) {
  return element == BFLOAT16 ? blocks_of(num_inputs, INPUTS_OF_TILE) * INPUTS_OF_TILE : num_inputs;
}

// Rows that one task takes at most: their sums for one group stay in the first-level cache.
constexpr int64_t MAX_CHUNK = 128;

// Each a `Task`: group `index % num_groups` for chunk `index / num_groups` of the rows. Sums are in float32, for float64
// in float64, from the first input to the last whatever the number of rows, except in AMX.
void linear_bf16_avx2(const void* call, int64_t index);
void linear_bf16_avx512(const void* call, int64_t index);
void linear_bf16_amx(const void* call, int64_t index);
void linear_f32_avx2(const void* call, int64_t index);
void linear_f32_avx512(const void* call, int64_t index);
void linear_f64_avx2(const void* call, int64_t index);
void linear_f64_avx512(const void* call, int64_t index);
