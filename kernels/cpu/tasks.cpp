// Tasks on the threads that torch has: its OpenMP runtime is handed over at load instead of linked, because a second
// runtime, or a pool of our own, would fight with torch's threads, which spin for a while after their last work.
#include "native.h"

namespace {

using Fork = void (*)(void (*)(void*), void*, unsigned, unsigned);
Fork fork_team = nullptr;

// Elements below which waking a thread takes longer than the work.
constexpr int64_t WORTH_A_THREAD = 16384;

// Neighbouring tasks read neighbouring memory, which a core reads fastest front to back: each thread starts in a region
// of its own, and helps in the others when it is done.
constexpr int64_t MAX_REGIONS = 64;

struct alignas(64) Region {
  int64_t next;
  int64_t end;
};

struct Run {
  Task task;
  const void* context;
  int64_t num_regions;
  int64_t num_arrived;
  Region regions[MAX_REGIONS];
};

void work(void* shared) {
  Run& run = *static_cast<Run*>(shared);
  const int64_t own = __atomic_fetch_add(&run.num_arrived, 1, __ATOMIC_RELAXED);
  for (int64_t turn = 0; turn < run.num_regions; ++turn) {
    Region& region = run.regions[(own + turn) % run.num_regions];
    for (;;) {
      const int64_t index = __atomic_fetch_add(&region.next, 1, __ATOMIC_RELAXED);
      if (index >= region.end) break;
      run.task(run.context, index);
    }
  }
}

struct Ranges {
  Range range;
  const void* context;
  int64_t count;
  int64_t size;
};

void run_range(const void* context, int64_t index) {
  const Ranges& ranges = *static_cast<const Ranges*>(context);
  int64_t first = index * ranges.size;
  ranges.range(ranges.context, first, smaller(first + ranges.size, ranges.count));
}

}  // namespace

// fork: GOMP_parallel of the runtime that torch has loaded; without it everything runs in the calling thread.
EXPORT void switchgear_use_threads_of(void* fork) { fork_team = reinterpret_cast<Fork>(fork); }

void run_tasks(Task task, const void* context, int64_t num_tasks, int32_t num_threads) {
  const int64_t num_regions = smaller(smaller(num_tasks, num_threads), MAX_REGIONS);
  if (fork_team == nullptr || num_regions <= 1) {
    for (int64_t index = 0; index < num_tasks; ++index) task(context, index);
    return;
  }
  Run run;
  run.task = task;
  run.context = context;
  run.num_regions = num_regions;
  run.num_arrived = 0;
  for (int64_t region = 0; region < num_regions; ++region)
    run.regions[region] = {num_tasks * region / num_regions, num_tasks * (region + 1) / num_regions};
  // always the whole team: the runtime would end its threads and start others for a smaller one
  fork_team(work, &run, static_cast<unsigned>(num_threads), 0);
}

void run_ranges(Range range, const void* context, int64_t count, int64_t cost, int32_t num_threads) {
  if (count * cost < WORTH_A_THREAD || num_threads <= 1) return range(context, 0, count);
  Ranges ranges{range, context, count, blocks_of(count, 4 * num_threads)};
  run_tasks(run_range, &ranges, blocks_of(count, ranges.size), num_threads);
}
