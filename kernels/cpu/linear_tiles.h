// How a task walks its rows and inputs, for the kernels that keep a tile of sums in vector registers.
//
// A kernel names its element and sum types, the rows of its largest tile and the inputs of a block, and computes one tile
// of R rows times P panels of 16 outputs over one block: what it adds to is the bias in the first block, `sums` in others. Included by several files compiled for different processors, so everything is the file's own.
#pragma once

#include "linear.h"

namespace {

constexpr int64_t AHEAD = 6144;  // bytes

template <class Kernel>
struct Tile {
  using Element = typename Kernel::Element;
  using Sum = typename Kernel::Sum;

  const Element* x;
  int64_t x_stride;
  const Element* weight;
  int64_t num_inputs;  // in this block
  const Sum* bias;  // of these outputs, or null
  Sum* sums;        // [R, GROUP]
  bool is_first;
  bool is_last;  // write `out` instead of `sums`
  Element* out;
  int64_t out_stride;
  int64_t num_outputs;  // that exist, of the P * 16
  const char* ahead;    // weights that are wanted soon
  int64_t ahead_step;   // bytes of them to ask for with each pair of inputs
};

template <class Kernel, int R>
void run_tile(const Tile<Kernel>& tile, int64_t num_panels) {
  switch (num_panels) {
    case 1: return Kernel::template run<R, 1>(tile);
    case 2: return Kernel::template run<R, 2>(tile);
    default: return Kernel::template run<R, 3>(tile);
  }
}

template <class Kernel, int R = Kernel::MAX_ROWS>
void run_tile_of(const Tile<Kernel>& tile, int64_t num_rows, int64_t num_panels) {
  if constexpr (R > 1) {
    if (num_rows < R) return run_tile_of<Kernel, R - 1>(tile, num_rows, num_panels);
  }
  run_tile<Kernel, R>(tile, num_panels);
}

template <class Kernel>
void run_group(const LinearCall& call, int64_t index) {
  using Element = typename Kernel::Element;
  using Sum = typename Kernel::Sum;
  alignas(64) Sum sums[MAX_CHUNK * GROUP];

  const PackedLinear& linear = *call.linear;
  const int64_t output = index % call.num_groups() * GROUP;
  const int64_t first_row = index / call.num_groups() * call.rows_per_chunk;
  const int64_t last_row = smaller(first_row + call.rows_per_chunk, call.num_rows);
  const int64_t num_outputs = smaller(GROUP, linear.num_outputs - output);
  const int64_t num_panels = blocks_of(num_outputs, PANEL);
  const Element* x = static_cast<const Element*>(call.x);
  const Element* weight =
      static_cast<const Element*>(linear.weight) + output * padded_inputs(linear.element, linear.num_inputs);
  Element* out = static_cast<Element*>(call.out) + output;

  Tile<Kernel> tile;
  tile.x_stride = call.x_stride;
  tile.out_stride = call.out_stride;
  tile.num_outputs = num_outputs;
  tile.bias = linear.bias == nullptr ? nullptr : static_cast<const Sum*>(linear.bias) + output;
  for (int64_t input = 0; input < linear.num_inputs; input += Kernel::BLOCK) {
    tile.num_inputs = smaller(Kernel::BLOCK, linear.num_inputs - input);
    tile.weight = weight + input * num_panels * PANEL;
    tile.is_first = input == 0;
    tile.is_last = input + Kernel::BLOCK >= linear.num_inputs;
    // Each pass over a block brings its part of the next one, which follows in memory: left to the last pass, memory
    // would be idle in the others. A single pass looks a little ahead of itself, further than the processor does.
    const int64_t num_passes = blocks_of(last_row - first_row, Kernel::MAX_ROWS);
    const int64_t pair_bytes = num_panels * PANEL * 2 * sizeof(Element);
    const int64_t block_bytes = tile.num_inputs / 2 * pair_bytes;
    tile.ahead = reinterpret_cast<const char*>(tile.weight) + (num_passes > 1 ? block_bytes : AHEAD);
    tile.ahead_step = pair_bytes / num_passes;
    for (int64_t row = first_row; row < last_row; row += Kernel::MAX_ROWS) {
      tile.x = x + row * call.x_stride + input;
      tile.sums = sums + (row - first_row) * GROUP;
      tile.out = out + row * call.out_stride;
      run_tile_of<Kernel>(tile, smaller(Kernel::MAX_ROWS, last_row - row), num_panels);
      tile.ahead += block_bytes / num_passes;
    }
  }
}

}  // namespace
