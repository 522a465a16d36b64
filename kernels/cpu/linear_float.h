// float32 and float64 linears with fused multiply-adds, over vectors of as many bytes as the including file may use.
#pragma once

#include "linear_tiles.h"

namespace {

template <class T, int VECTOR_BYTES, int ROWS>
struct FloatKernel {
  using Element = T;
  using Sum = T;
  typedef T Vector __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(T)), may_alias));
  static constexpr int MAX_ROWS = ROWS;
  // short, because the error of a sum grows with its length: blocks are summed first, then their sums
  static constexpr int64_t BLOCK = 64;
  static constexpr int LANES = VECTOR_BYTES / sizeof(T);

  template <int R, int P>
  static void run(const Tile<FloatKernel>& tile) {
    constexpr int V = P * PANEL / LANES;
    Vector sums[R][V];
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) sums[r][v] = Vector{};

    const T* weight = tile.weight;
    for (int64_t input = 0; input < tile.num_inputs; ++input, weight += P * PANEL) {
      T x[R];
      for (int r = 0; r < R; ++r) x[r] = tile.x[r * tile.x_stride + input];
      for (int v = 0; v < V; ++v) {
        const Vector weights = vector_at(weight + v * LANES);
        for (int r = 0; r < R; ++r) sums[r][v] += weights * x[r];
      }
    }

    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) finish(tile, r, v, sums[r][v]);
  }

 private:
  static Vector vector_at(const T* place) { return *reinterpret_cast<const Vector*>(place); }

  static void finish(const Tile<FloatKernel>& tile, int r, int v, Vector sum) {
    Vector* sums = reinterpret_cast<Vector*>(tile.sums + r * GROUP + v * LANES);
    if (!tile.is_first) sum += *sums;
    if (tile.is_first && tile.bias != nullptr) sum += vector_at(tile.bias + v * LANES);
    if (!tile.is_last) {
      *sums = sum;
      return;
    }
    T* out = tile.out + r * tile.out_stride + v * LANES;
    const int64_t num_outputs = tile.num_outputs - v * LANES;
    if (num_outputs >= LANES) {
      *reinterpret_cast<Vector*>(out) = sum;
    } else {
      for (int64_t output = 0; output < num_outputs; ++output) out[output] = sum[output];
    }
  }
};

}  // namespace
