// Tasks on the threads that torch has: its OpenMP runtime is handed over at load instead of linked, because a second
// runtime, or a pool of our own, would fight with torch's threads, which spin for a while after their last work.
//
// What was run can be recorded as a program and run again in one go: the same functions on the same memory, in order.
#include <sched.h>
#include <stdlib.h>

#include "native.h"

namespace {

using Fork = void (*)(void (*)(void*), void*, unsigned, unsigned);
Fork fork_team = nullptr;

// Elements below which waking a thread takes longer than the work.
constexpr int64_t WORTH_A_THREAD = 16384;

// Equal tasks that may run at the same time, or stretches of `stretch` items out of `count`.
struct Work {
  Task task;
  Range range;  // instead of `task`, if not null
  const void* call;
  int64_t num_tasks;
  int64_t count;
  int64_t stretch;

  void run(int64_t index) const {
    if (range == nullptr) return task(call, index);
    range(call, index * stretch, smaller((index + 1) * stretch, count));
  }
};

// Neighbouring tasks read neighbouring memory, which a core reads fastest front to back: each thread starts in a region
// of its own, and helps in the others when it is done.
constexpr int64_t MAX_REGIONS = 64;

struct alignas(64) Region {
  int64_t next;
  int64_t end;
};

int64_t num_regions_of(const Work& work, int32_t num_threads) {
  return smaller(smaller(work.num_tasks, num_threads), MAX_REGIONS);
}

void open(Region* regions, int64_t num_regions, int64_t num_tasks) {
  for (int64_t region = 0; region < num_regions; ++region)
    regions[region] = {num_tasks * region / num_regions, num_tasks * (region + 1) / num_regions};
}

// Does tasks until nobody needs to begin one; how many it did. own: a number of the thread.
int64_t help(const Work& work, Region* regions, int64_t num_regions, int64_t own) {
  int64_t num_done = 0;
  for (int64_t turn = 0; turn < num_regions; ++turn) {
    Region& region = regions[(own + turn) % num_regions];
    for (;;) {
      const int64_t index = __atomic_fetch_add(&region.next, 1, __ATOMIC_RELAXED);
      if (index >= region.end) break;
      work.run(index);
      ++num_done;
    }
  }
  return num_done;
}

// -- at once ----------------------------------------------------------------------------------------------------------

struct Run {
  const Work* work;
  int64_t num_regions;
  int64_t num_arrived;
  Region regions[MAX_REGIONS];
};

void run_team(void* shared) {
  Run& run = *static_cast<Run*>(shared);
  const int64_t own = __atomic_fetch_add(&run.num_arrived, 1, __ATOMIC_RELAXED);
  help(*run.work, run.regions, run.num_regions, own);
}

void run_now(const Work& work, int32_t num_threads) {
  const int64_t num_regions = num_regions_of(work, num_threads);
  if (fork_team == nullptr || num_regions <= 1) {
    for (int64_t index = 0; index < work.num_tasks; ++index) work.run(index);
    return;
  }
  Run run;
  run.work = &work;
  run.num_regions = num_regions;
  run.num_arrived = 0;
  open(run.regions, num_regions, work.num_tasks);
  // always the whole team: the runtime would end its threads and start others for a smaller one
  fork_team(run_team, &run, static_cast<unsigned>(num_threads), 0);
}

// -- programs ---------------------------------------------------------------------------------------------------------

// Work with what it was called with, and how far it has come in this run of the program.
struct Step {
  Work work;
  alignas(64) char call[MAX_CALL];
  int64_t num_regions;
  Region* regions;
  alignas(64) int64_t num_done;
};

struct Program {
  Step** steps;
  int64_t length;
  int64_t capacity;
  bool is_broken;  // there was no memory for a step
};

// Of the thread that records.
thread_local Program* recorded = nullptr;

void free_step(Step* step) {
  if (step == nullptr) return;
  free(step->regions);
  free(step);
}

Step* new_step(const Work& work, int64_t call_size, int32_t num_threads) {
  Step* step = static_cast<Step*>(aligned_alloc(alignof(Step), sizeof(Step)));
  if (step == nullptr) return nullptr;
  step->work = work;
  __builtin_memcpy(step->call, work.call, call_size);
  step->work.call = step->call;
  step->num_regions = num_regions_of(work, num_threads);
  step->regions = static_cast<Region*>(aligned_alloc(alignof(Region), step->num_regions * sizeof(Region)));
  if (step->regions == nullptr) {
    free_step(step);
    return nullptr;
  }
  return step;
}

void append(Program& program, const Work& work, int64_t call_size, int32_t num_threads) {
  if (program.length == program.capacity) {
    const int64_t capacity = 2 * program.capacity + 64;
    void* steps = realloc(program.steps, capacity * sizeof(Step*));
    if (steps != nullptr) {
      program.steps = static_cast<Step**>(steps);
      program.capacity = capacity;
    }
  }
  Step* step = program.length < program.capacity ? new_step(work, call_size, num_threads) : nullptr;
  if (step == nullptr)
    program.is_broken = true;
  else
    program.steps[program.length++] = step;
}

void run(const Work& work, int64_t call_size, int32_t num_threads) {
  if (work.num_tasks == 0) return;
  if (recorded != nullptr) append(*recorded, work, call_size, num_threads);
  run_now(work, num_threads);
}

struct Replay {
  Step** first;
  Step** last;
  int64_t num_arrived;
};

// A thread that waits has nothing else to do, until another process wants its core: the one that it waits for may be
// without one.
constexpr int SPINS_BEFORE_YIELDING = 4096;

void wait_for(const Step& step) {
  for (int spins = 0; __atomic_load_n(&step.num_done, __ATOMIC_ACQUIRE) != step.work.num_tasks; ++spins) {
    if (spins < SPINS_BEFORE_YIELDING)
      __builtin_ia32_pause();
    else
      sched_yield();
  }
}

// Step after step. A step is over when its tasks are done, whoever did them: a thread that comes late finds the others
// further on and catches up, instead of being waited for at every step.
void replay_team(void* shared) {
  Replay& replay = *static_cast<Replay*>(shared);
  const int64_t own = __atomic_fetch_add(&replay.num_arrived, 1, __ATOMIC_RELAXED);
  for (Step** place = replay.first; place < replay.last; ++place) {
    Step& step = **place;
    if (__atomic_load_n(&step.num_done, __ATOMIC_ACQUIRE) == step.work.num_tasks) continue;
    const int64_t num_done = help(step.work, step.regions, step.num_regions, own);
    if (num_done) __atomic_fetch_add(&step.num_done, num_done, __ATOMIC_RELEASE);
    wait_for(step);
  }
}

}  // namespace

void run_tasks(Task task, const void* call, int64_t call_size, int64_t num_tasks, int32_t num_threads) {
  run({task, nullptr, call, num_tasks, 0, 0}, call_size, num_threads);
}

void run_ranges(Range range, const void* call, int64_t call_size, int64_t count, int64_t cost, int32_t num_threads) {
  const bool is_small = count * cost < WORTH_A_THREAD || num_threads <= 1;
  const int64_t stretch = is_small ? count : blocks_of(count, 4 * num_threads);
  run({nullptr, range, call, count ? blocks_of(count, stretch) : 0, count, stretch}, call_size, num_threads);
}

// fork: GOMP_parallel of the runtime that torch has loaded; without it everything runs in the calling thread.
EXPORT void switchgear_use_threads_of(void* fork) { fork_team = reinterpret_cast<Fork>(fork); }

// An empty program, or null where there is no memory for one.
EXPORT void* switchgear_program_new() { return calloc(1, sizeof(Program)); }

EXPORT void switchgear_program_free(void* pointer) {
  Program* program = static_cast<Program*>(pointer);
  for (int64_t index = 0; index < program->length; ++index) free_step(program->steps[index]);
  free(program->steps);
  free(program);
}

// From now on what this thread runs is also added to the program; null ends that.
EXPORT void switchgear_program_record(void* program) { recorded = static_cast<Program*>(program); }

// Steps recorded so far; negative where one is missing because there was no memory for it.
EXPORT int64_t switchgear_program_length(const void* pointer) {
  const Program* program = static_cast<const Program*>(pointer);
  return program->is_broken ? -1 : program->length;
}

// Runs the steps [first, last) again.
EXPORT void switchgear_program_run(void* pointer, int64_t first, int64_t last, int32_t num_threads) {
  Program* program = static_cast<Program*>(pointer);
  for (int64_t index = first; index < last; ++index) {
    Step& step = *program->steps[index];
    step.num_done = 0;
    open(step.regions, step.num_regions, step.work.num_tasks);
  }
  Replay replay{program->steps + first, program->steps + last, 0};
  if (fork_team == nullptr || num_threads <= 1) return replay_team(&replay);
  fork_team(replay_team, &replay, static_cast<unsigned>(num_threads), 0);
}
