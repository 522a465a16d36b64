// What every file of the library shares: how it is seen from outside, element types, levels of the processor, tasks.
//
// No file includes a header of the C++ library with code in it: files are compiled for different processors (the end
// of their name says which), and the linker would keep any one copy of an inline function for all of them.
#pragma once

#include <cstdint>

#define EXPORT extern "C" __attribute__((visibility("default")))

// As in elements.py and library.py. INT64 is for what compares numbers and nothing else.
enum Element : int32_t { BFLOAT16 = 0, FLOAT32 = 1, FLOAT64 = 2, INT64 = 3 };
enum Level : int32_t { NONE = 0, AVX2 = 1, AVX512 = 2, AVX512_BF16 = 3, AMX_BF16 = 4 };

struct BFloat16 {
  uint16_t bits;
};

constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t blocks_of(int64_t count, int64_t size) { return (count + size - 1) / size; }

// What a kernel is called with, a plain struct of at most so many bytes: where a program is recorded it is copied.
constexpr int64_t MAX_CALL = 192;

// One piece of work; `index` counts from 0. Each is done once, by whichever thread is free.
using Task = void (*)(const void* call, int64_t index);

// A stretch [first, last) of equal items.
using Range = void (*)(const void* call, int64_t first, int64_t last);

void run_tasks(Task task, const void* call, int64_t call_size, int64_t num_tasks, int32_t num_threads);
void run_ranges(Range range, const void* call, int64_t call_size, int64_t count, int64_t cost, int32_t num_threads);

// Returns when all tasks are done. One thread, or one task, runs in the caller.
template <class Call>
static void run_tasks(Task task, const Call& call, int64_t num_tasks, int32_t num_threads) {
  static_assert(sizeof(Call) <= MAX_CALL && __is_trivially_copyable(Call));
  run_tasks(task, &call, sizeof(Call), num_tasks, num_threads);
}

// Splits `count` items of `cost` elements each into ranges, if that is worth waking a thread for.
template <class Call>
static void run_ranges(Range range, const Call& call, int64_t count, int64_t cost, int32_t num_threads) {
  static_assert(sizeof(Call) <= MAX_CALL && __is_trivially_copyable(Call));
  run_ranges(range, &call, sizeof(Call), count, cost, num_threads);
}
