// bfloat16 linear with AMX tiles: 16 rows of 32 inputs times 32 inputs of 16 outputs, summed in 16 x 16 float32.
//
// Tiles are always whole: rows and inputs that do not exist are zeros in a copy, outputs that do not exist are zeros of
// the packed weight.
#include <immintrin.h>

#include "linear.h"
#include "tiles_amx.h"

namespace {

constexpr int ROWS = 16;
constexpr int BYTES_OF_ROW = 64;  // of any tile: 32 bfloat16, or 16 float32
constexpr int64_t INPUTS = INPUTS_OF_TILE;

// What the six sums, a tile of rows and one of weights are configured to: palette 1, all of the same size.
struct alignas(64) Configuration {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes_of_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(Configuration) == 64, "as LDTILECFG reads it");

// One tile of x: in place where all of it exists, else copied to `padded` [16, 32].
struct RowsOfTile {
  const BFloat16* place;
  int64_t stride;
};

RowsOfTile rows_at(const BFloat16* x, int64_t stride, int64_t num_rows, int64_t num_inputs, BFloat16* padded) {
  if (num_rows >= ROWS && num_inputs >= INPUTS) return {x, stride};
  __builtin_memset(padded, 0, ROWS * BYTES_OF_ROW);
  for (int64_t row = 0; row < smaller(num_rows, ROWS); ++row)
    __builtin_memcpy(padded + row * INPUTS, x + row * stride, smaller(num_inputs, INPUTS) * sizeof(BFloat16));
  return {padded, INPUTS};
}

// Sums of up to 32 rows and P panels: tiles 0 to 2 for the first 16 rows, 3 to 5 for the others, 6 for x, 7 for weights.
template <int P, bool HAS_SECOND>
void sum_tiles(const LinearCall& call, int64_t row, int64_t num_rows, const BFloat16* weight, float* sums) {
  alignas(64) BFloat16 padded[ROWS * INPUTS];
  const int64_t num_inputs = call.linear->num_inputs;
  const BFloat16* x = static_cast<const BFloat16*>(call.x) + row * call.x_stride;
  constexpr int64_t PAIR_STRIDE = P * BYTES_OF_ROW;

  TILE_ZERO(0);
  if constexpr (P > 1) TILE_ZERO(1);
  if constexpr (P > 2) TILE_ZERO(2);
  if constexpr (HAS_SECOND) {
    TILE_ZERO(3);
    if constexpr (P > 1) TILE_ZERO(4);
    if constexpr (P > 2) TILE_ZERO(5);
  }
  for (int64_t input = 0; input < num_inputs; input += INPUTS, weight += INPUTS * P * PANEL) {
    const int64_t num_left = num_inputs - input;
    const RowsOfTile first = rows_at(x + input, call.x_stride, num_rows, num_left, padded);
    TILE_LOAD(6, first.place, first.stride * sizeof(BFloat16));
    TILE_LOAD(7, weight, PAIR_STRIDE);
    TILE_MULTIPLY(0, 6, 7);
    if constexpr (P > 1) {
      TILE_LOAD(7, weight + 2 * PANEL, PAIR_STRIDE);
      TILE_MULTIPLY(1, 6, 7);
    }
    if constexpr (P > 2) {
      TILE_LOAD(7, weight + 4 * PANEL, PAIR_STRIDE);
      TILE_MULTIPLY(2, 6, 7);
    }
    if constexpr (HAS_SECOND) {
      // backwards, so that the weights loaded last serve both halves of the rows
      const RowsOfTile second =
          rows_at(x + ROWS * call.x_stride + input, call.x_stride, num_rows - ROWS, num_left, padded);
      TILE_LOAD(6, second.place, second.stride * sizeof(BFloat16));
      if constexpr (P > 2) {
        TILE_MULTIPLY(5, 6, 7);
        TILE_LOAD(7, weight + 2 * PANEL, PAIR_STRIDE);
      }
      if constexpr (P > 1) {
        TILE_MULTIPLY(4, 6, 7);
        TILE_LOAD(7, weight, PAIR_STRIDE);
      }
      TILE_MULTIPLY(3, 6, 7);
    }
  }
  constexpr int64_t SUM_STRIDE = GROUP * sizeof(float);
  TILE_STORE(0, sums, SUM_STRIDE);
  if constexpr (P > 1) TILE_STORE(1, sums + PANEL, SUM_STRIDE);
  if constexpr (P > 2) TILE_STORE(2, sums + 2 * PANEL, SUM_STRIDE);
  if constexpr (HAS_SECOND) {
    TILE_STORE(3, sums + ROWS * GROUP, SUM_STRIDE);
    if constexpr (P > 1) TILE_STORE(4, sums + ROWS * GROUP + PANEL, SUM_STRIDE);
    if constexpr (P > 2) TILE_STORE(5, sums + ROWS * GROUP + 2 * PANEL, SUM_STRIDE);
  }
}

using SumTiles = void (*)(const LinearCall&, int64_t, int64_t, const BFloat16*, float*);
constexpr SumTiles SUM_TILES[3][2] = {
    {sum_tiles<1, false>, sum_tiles<1, true>},
    {sum_tiles<2, false>, sum_tiles<2, true>},
    {sum_tiles<3, false>, sum_tiles<3, true>},
};

void add_bias_and_store(const float* sums, const float* bias, BFloat16* out, int64_t num_outputs) {
  for (int64_t output = 0; output < num_outputs; output += PANEL) {
    __m512 sum = _mm512_loadu_ps(sums + output);
    if (bias != nullptr) sum = _mm512_add_ps(sum, _mm512_loadu_ps(bias + output));
    const __mmask16 exists = static_cast<__mmask16>((1u << smaller(PANEL, num_outputs - output)) - 1);
    _mm256_mask_storeu_epi16(out + output, exists, (__m256i)_mm512_cvtneps_pbh(sum));
  }
}

}  // namespace

void linear_bf16_amx(const void* context, int64_t index) {
  const LinearCall& call = *static_cast<const LinearCall*>(context);
  const PackedLinear& linear = *call.linear;
  const int64_t output = index % call.num_groups() * GROUP;
  const int64_t first_row = index / call.num_groups() * call.rows_per_chunk;
  const int64_t last_row = smaller(first_row + call.rows_per_chunk, call.num_rows);
  const int64_t num_outputs = smaller(GROUP, linear.num_outputs - output);
  const int64_t num_panels = blocks_of(num_outputs, PANEL);
  const BFloat16* weight =
      static_cast<const BFloat16*>(linear.weight) + output * padded_inputs(BFLOAT16, linear.num_inputs);
  const float* bias = linear.bias == nullptr ? nullptr : static_cast<const float*>(linear.bias) + output;

  alignas(64) float sums[2 * ROWS * GROUP];
  const Configuration configuration;
  TILE_CONFIGURE(&configuration);
  for (int64_t row = first_row; row < last_row; row += 2 * ROWS) {
    const int64_t num_rows = smaller(2 * ROWS, last_row - row);
    SUM_TILES[num_panels - 1][num_rows > ROWS](call, row, num_rows, weight, sums);
    for (int64_t r = 0; r < num_rows; ++r) {
      BFloat16* out = static_cast<BFloat16*>(call.out) + (row + r) * call.out_stride + output;
      add_bias_and_store(sums + r * GROUP, bias, out, num_outputs);
    }
  }
  // a thread that leaves tiles in use makes every switch away from it save 8 KB
  TILE_RELEASE();
}
