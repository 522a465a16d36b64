// bfloat16 linear with the dot product of AVX-512 BF16: a pair of inputs times a pair of weights, 16 outputs at once.
#include <immintrin.h>

#include "linear_tiles.h"

namespace {

struct Kernel {
  using Element = BFloat16;
  using Sum = float;
  static constexpr int MAX_ROWS = 8;
  // the weights of a group stay in the second-level cache, and 8 rows of x in the first
  static constexpr int64_t BLOCK = 1536;

  template <int R, int P>
  static void run(const Tile<Kernel>& tile) {
    __m512 sums[R][P];
    for (int r = 0; r < R; ++r)
      for (int p = 0; p < P; ++p) sums[r][p] = _mm512_setzero_ps();

    const BFloat16* weight = tile.weight;
    const int64_t num_pairs = tile.num_inputs / 2;
    const char* ahead = tile.ahead;
    for (int64_t pair = 0; pair < num_pairs; ++pair, weight += P * 32, ahead += tile.ahead_step) {
      _mm_prefetch(ahead, _MM_HINT_T0);
      _mm_prefetch(ahead + 64, _MM_HINT_T0);
      add_pair<R, P>(sums, weight, tile, pair, false);
    }
    if (tile.num_inputs % 2) add_pair<R, P>(sums, weight, tile, num_pairs, true);

    for (int r = 0; r < R; ++r)
      for (int p = 0; p < P; ++p) finish(tile, r, p, sums[r][p]);
  }

 private:
  template <int R, int P>
  static inline __attribute__((always_inline)) void add_pair(__m512 (&sums)[R][P], const BFloat16* weight,
                                                             const Tile<Kernel>& tile, int64_t pair, bool is_half) {
    __m512bh weights[P];
    for (int p = 0; p < P; ++p) weights[p] = (__m512bh)_mm512_loadu_si512(weight + p * 32);
    for (int r = 0; r < R; ++r) {
      const __m512bh both = (__m512bh)_mm512_set1_epi32(inputs_at(tile.x + r * tile.x_stride + 2 * pair, is_half));
      for (int p = 0; p < P; ++p) sums[r][p] = _mm512_dpbf16_ps(sums[r][p], both, weights[p]);
    }
  }

  // Two inputs, or the last one of an odd number and a zero.
  static inline __attribute__((always_inline)) int32_t inputs_at(const BFloat16* x, bool is_half) {
    if (is_half) return x->bits;
    int32_t both;
    __builtin_memcpy(&both, x, sizeof both);
    return both;
  }

  static void finish(const Tile<Kernel>& tile, int r, int p, __m512 sum) {
    float* sums = tile.sums + r * GROUP + p * PANEL;
    if (!tile.is_first) sum = _mm512_add_ps(sum, _mm512_load_ps(sums));
    if (tile.is_first && tile.bias != nullptr) sum = _mm512_add_ps(sum, _mm512_loadu_ps(tile.bias + p * PANEL));
    if (!tile.is_last) return _mm512_store_ps(sums, sum);
    const int64_t num_outputs = smaller(PANEL, tile.num_outputs - p * PANEL);
    const __mmask16 exists = static_cast<__mmask16>((1u << num_outputs) - 1);
    const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(sum);
    _mm256_mask_storeu_epi16(tile.out + r * tile.out_stride + p * PANEL, exists, rounded);
  }
};

}  // namespace

void linear_bf16_avx512(const void* call, int64_t index) {
  run_group<Kernel>(*static_cast<const LinearCall*>(call), index);
}
