// A linear: out[t] = weight x[t] + bias. Packs the weight, and chooses the kernel by element type, processor and rows.
#include "linear.h"

namespace {

// Fewer rows than half a tile leave AMX mostly idle while weights arrive.
constexpr int64_t MIN_ROWS_FOR_TILES = 9;

struct Packing {
  const char* source;
  int64_t source_stride;
  char* target;
  int64_t num_outputs;
  int64_t num_inputs;
  int32_t element;
};

template <class T, int64_t INPUTS_AT_ONCE>
void pack_group(const Packing& packing, int64_t group) {
  const T* source = reinterpret_cast<const T*>(packing.source);
  const int64_t first = group * GROUP, num_padded = padded_inputs(packing.element, packing.num_inputs);
  const int64_t num_outputs = smaller(GROUP, packing.num_outputs - first);
  const int64_t width = blocks_of(num_outputs, PANEL) * PANEL;
  T* target = reinterpret_cast<T*>(packing.target) + first * num_padded;
  __builtin_memset(target, 0, width * num_padded * sizeof(T));
  for (int64_t output = 0; output < num_outputs; ++output) {
    const T* row = source + (first + output) * packing.source_stride;
    for (int64_t input = 0; input < packing.num_inputs; ++input) {
      const int64_t step = input / INPUTS_AT_ONCE, part = input % INPUTS_AT_ONCE;
      target[(step * width + output) * INPUTS_AT_ONCE + part] = row[input];
    }
  }
}

void pack_task(const void* context, int64_t group) {
  const Packing& packing = *static_cast<const Packing*>(context);
  switch (packing.element) {
    case BFLOAT16: return pack_group<uint16_t, 2>(packing, group);
    case FLOAT32: return pack_group<uint32_t, 1>(packing, group);
    default: return pack_group<uint64_t, 1>(packing, group);
  }
}

Task kernel_of(int32_t element, int32_t level, int64_t num_rows) {
  switch (element) {
    case BFLOAT16:
      if (level >= AMX_BF16 && num_rows >= MIN_ROWS_FOR_TILES) return linear_bf16_amx;
      return level >= AVX512_BF16 ? linear_bf16_avx512 : linear_bf16_avx2;
    case FLOAT32: return level >= AVX512 ? linear_f32_avx512 : linear_f32_avx2;
    default: return level >= AVX512 ? linear_f64_avx512 : linear_f64_avx2;
  }
}

// Equal chunks of rows, a multiple of a tile's; smaller ones where there would be fewer tasks than threads can share.
int64_t chunk_of(int64_t num_rows, int64_t num_groups, int32_t num_threads) {
  constexpr int64_t TILE = 16;
  int64_t num_chunks = blocks_of(num_rows, MAX_CHUNK);
  while (num_chunks * num_groups < 4 * num_threads && blocks_of(num_rows, num_chunks) > 2 * TILE) num_chunks *= 2;
  return blocks_of(blocks_of(num_rows, num_chunks), TILE) * TILE;
}

}  // namespace

// Bytes of the packed weight.
EXPORT int64_t switchgear_linear_size(int64_t num_outputs, int64_t num_inputs, int32_t element) {
  constexpr int64_t SIZES[] = {2, 4, 8};
  return blocks_of(num_outputs, PANEL) * PANEL * padded_inputs(element, num_inputs) * SIZES[element];
}

// weight: [num_outputs, num_inputs] with `stride` elements a row; packed: as long as `switchgear_linear_size` says.
EXPORT void switchgear_linear_pack(const void* weight, int64_t stride, void* packed, int64_t num_outputs,
                                   int64_t num_inputs, int32_t element, int32_t num_threads) {
  Packing packing{static_cast<const char*>(weight), stride, static_cast<char*>(packed), num_outputs, num_inputs, element};
  run_tasks(pack_task, packing, blocks_of(num_outputs, GROUP), num_threads);
}

// x: [num_rows, num_inputs], out: [num_rows, num_outputs], both of the weight's element type; they do not overlap.
EXPORT void switchgear_linear(const PackedLinear* linear, const void* x, int64_t x_stride, void* out,
                              int64_t out_stride, int64_t num_rows, int32_t level, int32_t num_threads) {
  if (num_rows == 0) return;
  LinearCall call{linear, x, x_stride, out, out_stride, num_rows, 0};
  call.rows_per_chunk = chunk_of(num_rows, call.num_groups(), num_threads);
  run_tasks(kernel_of(linear->element, level, num_rows), call, call.num_groups() * call.num_chunks(), num_threads);
}
