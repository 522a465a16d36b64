// The keys of a tile, wherever their blocks lie.
#pragma once

#include "attention.h"
#include "softmax_lanes.h"

namespace {

constexpr int64_t TILE = 32;
// Query heads of one KV head that are computed together, so that its keys are widened once for all of them.
constexpr int MAX_HEADS = 4;

// Where the keys of a tile, and their values, begin.
template <class T>
struct Keys {
  const T* k[TILE];
  const T* v[TILE];
  int64_t count;

  // Of the keys from `first` on.
  void find(const Decode& call, const int64_t* blocks, int64_t first, int64_t end) {
    count = first < end ? smaller(TILE, end - first) : 0;
    if (count == 0) return;
    const int64_t* block = blocks + first / call.block_size;
    int64_t slot = first % call.block_size;
    for (int64_t key = 0; key < count; ++key, ++slot) {
      if (slot == call.block_size) slot = 0, ++block;
      const int64_t place = *block * call.block_stride + slot * call.slot_stride;
      k[key] = static_cast<const T*>(call.k) + place;
      v[key] = static_cast<const T*>(call.v) + place;
    }
    // behind the last one stands a key that exists, so that all may be read
    for (int64_t key = count; key < TILE; ++key) k[key] = k[0], v[key] = v[0];
  }

  // Reads one key and its value, of all heads, a line at a time, while the tile before is computed: no processor foresees
  // where blocks lie. Front to back by loads, which teach its own look-ahead; prefetches alone wait for each other.
  void fetch(int64_t key, int64_t slot_stride) const {
    constexpr int64_t LINE = 64 / sizeof(T);
    if (key >= count) return;
    for (int64_t i = 0; i < slot_stride; i += LINE) (void)*reinterpret_cast<const volatile char*>(k[key] + i);
    for (int64_t i = 0; i < slot_stride; i += LINE) (void)*reinterpret_cast<const volatile char*>(v[key] + i);
  }
};

}  // namespace
