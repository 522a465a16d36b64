// What this processor and its kernel let the library use, and which sources it was built from.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "native.h"

namespace {

#ifdef SWITCHGEAR_EMULATE_TILES
constexpr bool HAS_EMULATED_TILES = true;
#else
constexpr bool HAS_EMULATED_TILES = false;
#endif

struct Registers {
  unsigned a, b, c, d;
};

Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r{0, 0, 0, 0};
  __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d);
  return r;
}

bool has(unsigned word, unsigned bits) { return (word & bits) == bits; }

// Register files that the kernel saves when it switches threads (XCR0).
uint64_t saved_state() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t(high) << 32 | low;
}

// Linux hands out the tile registers on request; threads that exist or will exist share the permission.
bool may_use_tiles() {
  constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
  return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

Level find_level() {
  constexpr unsigned FMA = 1u << 12, OSXSAVE = 1u << 27, AVX = 1u << 28;
  constexpr unsigned HAS_AVX2 = 1u << 5, AVX512_F_DQ_BW_VL = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
  constexpr unsigned HAS_AVX512_BF16 = 1u << 5, AMX_BF16_TILE = 1u << 22 | 1u << 24;
  constexpr uint64_t VECTORS = 0x6, MASKS_AND_WIDE_VECTORS = 0xe6, TILES = 0x60000;

  if (!has(cpuid(1, 0).c, FMA | OSXSAVE | AVX)) return NONE;
  const Registers features = cpuid(7, 0);
  const uint64_t saved = saved_state();
  if (!has(features.b, HAS_AVX2) || (saved & VECTORS) != VECTORS) return NONE;
  if (!has(features.b, AVX512_F_DQ_BW_VL) || (saved & MASKS_AND_WIDE_VECTORS) != MASKS_AND_WIDE_VECTORS) return AVX2;
  if (!has(cpuid(7, 1).a, HAS_AVX512_BF16)) return AVX512;
  const bool has_tiles = has(features.d, AMX_BF16_TILE) && (saved & TILES) == TILES && may_use_tiles();
  return HAS_EMULATED_TILES || has_tiles ? AMX_BF16 : AVX512_BF16;
}

}  // namespace

// The best `Level` that runs here. Asks for the tile registers where there are any.
EXPORT int32_t switchgear_level() {
  static const Level level = find_level();
  return level;
}

EXPORT const char* switchgear_source_hash() { return SWITCHGEAR_SOURCE_HASH; }
