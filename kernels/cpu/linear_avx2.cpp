// Linears on any processor with AVX2. bfloat16 is widened to float32 in registers, and multiplied as such.
#include <immintrin.h>

#include "lanes.h"
#include "linear_float.h"

namespace {

struct BFloat16Kernel {
  using Element = BFloat16;
  using Sum = float;
  static constexpr int MAX_ROWS = 2;
  static constexpr int64_t BLOCK = 1536;
  static constexpr int LANES = 8;

  template <int R, int P>
  static void run(const Tile<BFloat16Kernel>& tile) {
    constexpr int V = 2 * P;
    __m256 sums[R][V];
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) sums[r][v] = _mm256_setzero_ps();

    const BFloat16* weight = tile.weight;
    for (int64_t input = 0; input < tile.num_inputs; input += 2, weight += V * 2 * LANES) {
      const bool is_half = input + 1 == tile.num_inputs;
      for (int v = 0; v < V; ++v) {
        const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight + v * 2 * LANES));
        const __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
        const __m256 second = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(int32_t(0xffff0000))));
        for (int r = 0; r < R; ++r) {
          const BFloat16* x = tile.x + r * tile.x_stride + input;
          sums[r][v] = _mm256_fmadd_ps(first, widened(x[0]), sums[r][v]);
          if (!is_half) sums[r][v] = _mm256_fmadd_ps(second, widened(x[1]), sums[r][v]);
        }
      }
    }

    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) finish(tile, r, v, sums[r][v]);
  }

 private:
  static __m256 widened(BFloat16 x) { return _mm256_castsi256_ps(_mm256_set1_epi32(int32_t(x.bits) << 16)); }

  static void finish(const Tile<BFloat16Kernel>& tile, int r, int v, __m256 sum) {
    float* sums = tile.sums + r * GROUP + v * LANES;
    if (!tile.is_first) sum += _mm256_loadu_ps(sums);
    if (tile.is_first && tile.bias != nullptr) sum += _mm256_loadu_ps(tile.bias + v * LANES);
    if (!tile.is_last) return _mm256_storeu_ps(sums, sum);
    const int64_t num_outputs = smaller(LANES, tile.num_outputs - v * LANES);
    if (num_outputs <= 0) return;
    BFloat16 rounded[LANES];
    store_lanes(rounded, sum);
    __builtin_memcpy(tile.out + r * tile.out_stride + v * LANES, rounded, num_outputs * sizeof(BFloat16));
  }
};

}  // namespace

void linear_bf16_avx2(const void* call, int64_t index) {
  run_group<BFloat16Kernel>(*static_cast<const LinearCall*>(call), index);
}

void linear_f32_avx2(const void* call, int64_t index) {
  run_group<FloatKernel<float, 32, 2>>(*static_cast<const LinearCall*>(call), index);
}

void linear_f64_avx2(const void* call, int64_t index) {
  run_group<FloatKernel<double, 32, 1>>(*static_cast<const LinearCall*>(call), index);
}
