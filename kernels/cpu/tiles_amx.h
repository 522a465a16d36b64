// The AMX instructions by name. With SWITCHGEAR_EMULATE_TILES they are plain loops, so that the kernel's use of them is
// tested on processors that have none.
#pragma once

#include "native.h"

#ifndef SWITCHGEAR_EMULATE_TILES

// Written out, since GCC's intrinsics do not tell it that they read memory.
#define TILE_CONFIGURE(configuration) __asm__ volatile("ldtilecfg (%0)" ::"r"(configuration) : "memory")
#define TILE_RELEASE() __asm__ volatile("tilerelease" ::: "memory")
#define TILE_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile ::: "memory")
#define TILE_LOAD(tile, place, stride) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(place), "r"(int64_t(stride)) : "memory")
#define TILE_STORE(tile, place, stride) \
  __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(place), "r"(int64_t(stride)) : "memory")
// sums += rows times weights
#define TILE_MULTIPLY(sums, rows, weights) \
  __asm__ volatile("tdpbf16ps %%tmm" #weights ", %%tmm" #rows ", %%tmm" #sums ::: "memory")

#else

#define TILE_CONFIGURE(configuration) tile_configure(configuration)
#define TILE_RELEASE() tile_release()
#define TILE_ZERO(tile) tile_zero(tile)
#define TILE_LOAD(tile, place, stride) tile_load(tile, place, stride)
#define TILE_STORE(tile, place, stride) tile_store(tile, place, stride)
#define TILE_MULTIPLY(sums, rows, weights) tile_multiply(sums, rows, weights)

namespace {

struct Tiles {
  uint8_t configuration[64];
  uint8_t data[8][16][64];

  int rows_of(int tile) const { return configuration[48 + tile]; }
  int bytes_of_row(int tile) const { return configuration[16 + 2 * tile] | configuration[17 + 2 * tile] << 8; }
};
thread_local Tiles tiles;

inline void tile_configure(const void* configuration) {
  __builtin_memcpy(tiles.configuration, configuration, 64);
  __builtin_memset(tiles.data, 0, sizeof tiles.data);
}

inline void tile_release() { __builtin_memset(&tiles, 0, sizeof tiles); }

inline void tile_zero(int tile) {
  __builtin_memset(tiles.data[tile], 0, sizeof tiles.data[tile]);
}

inline void tile_load(int tile, const void* place, int64_t stride) {
  tile_zero(tile);
  for (int row = 0; row < tiles.rows_of(tile); ++row)
    __builtin_memcpy(tiles.data[tile][row], static_cast<const char*>(place) + row * stride, tiles.bytes_of_row(tile));
}

inline void tile_store(int tile, void* place, int64_t stride) {
  for (int row = 0; row < tiles.rows_of(tile); ++row)
    __builtin_memcpy(static_cast<char*>(place) + row * stride, tiles.data[tile][row], tiles.bytes_of_row(tile));
}

inline float bfloat16_at(const uint8_t* row, int index) {
  uint16_t bits;
  __builtin_memcpy(&bits, row + 2 * index, sizeof bits);
  const uint32_t wide = uint32_t(bits) << 16;
  float value;
  __builtin_memcpy(&value, &wide, sizeof value);
  return value;
}

// As the instruction does it: products of even and of odd inputs are summed apart, then both are added.
inline void tile_multiply(int sums, int rows, int weights) {
  for (int row = 0; row < tiles.rows_of(sums); ++row) {
    for (int output = 0; output < tiles.bytes_of_row(sums) / 4; ++output) {
      float even = 0, odd = 0, sum;
      for (int pair = 0; pair < tiles.bytes_of_row(rows) / 4; ++pair) {
        even += bfloat16_at(tiles.data[rows][row], 2 * pair) * bfloat16_at(tiles.data[weights][pair], 2 * output);
        odd += bfloat16_at(tiles.data[rows][row], 2 * pair + 1) * bfloat16_at(tiles.data[weights][pair], 2 * output + 1);
      }
      uint8_t* place = tiles.data[sums][row] + 4 * output;
      __builtin_memcpy(&sum, place, sizeof sum);
      sum += even + odd;
      __builtin_memcpy(place, &sum, sizeof sum);
    }
  }
}

}  // namespace

#endif
