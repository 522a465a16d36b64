// Tasks on the threads that torch has: its OpenMP runtime is handed over at load instead of linked, because a second
// runtime, or a pool of our own, would fight with torch's threads, which spin for a while after their last work.
#include "native.h"

namespace {

using Fork = void (*)(void (*)(void*), void*, unsigned, unsigned);
Fork fork_team = nullptr;

// Elements below which waking a thread takes longer than the work.
constexpr int64_t WORTH_A_THREAD = 16384;

struct Run {
  Task task;
  const void* context;
  int64_t num_tasks;
  int64_t next;
};

void work(void* shared) {
  Run& run = *static_cast<Run*>(shared);
  for (;;) {
    int64_t index = __atomic_fetch_add(&run.next, 1, __ATOMIC_RELAXED);
    if (index >= run.num_tasks) return;
    run.task(run.context, index);
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
  Run run{task, context, num_tasks, 0};
  int64_t num_useful = smaller(num_tasks, num_threads);
  if (fork_team == nullptr || num_useful <= 1) return work(&run);
  // always the whole team: the runtime would end its threads and start others for a smaller one
  fork_team(work, &run, static_cast<unsigned>(num_threads), 0);
}

void run_ranges(Range range, const void* context, int64_t count, int64_t cost, int32_t num_threads) {
  if (count * cost < WORTH_A_THREAD || num_threads <= 1) return range(context, 0, count);
  Ranges ranges{range, context, count, blocks_of(count, 4 * num_threads)};
  run_tasks(run_range, &ranges, blocks_of(count, ranges.size), num_threads);
}
