// Where the largest number of each row stands: the first one of equals, and before all others one that is no number.
#pragma once

#include "lanes.h"
#include "rows.h"

namespace {

// Numbers among which the place is looked for once the largest is known to be there.
constexpr int64_t PART = 1024;

template <class T>
int64_t argmax_row(const T* x, int64_t size) {
  T most = x[0];
  int64_t best = 0;
  for (int64_t first = 0; first < size; first += PART) {
    const int64_t end = smaller(first + PART, size);
    Lanes<T> largest = set_lanes(x[first]);
    decltype(largest != largest) is_no_number = {};
    int64_t i = first;
    for (; i + NUM_LANES<T> <= end; i += NUM_LANES<T>) {
      const Lanes<T> value = load_lanes(x + i);
      largest = value > largest ? value : largest;
      is_no_number |= value != value;
    }
    T here = x[first];
    bool is_broken = false;
    for (int64_t lane = 0; lane < NUM_LANES<T>; ++lane) {
      here = largest[lane] > here ? largest[lane] : here;
      is_broken |= is_no_number[lane] != 0;
    }
    for (; i < end; ++i) {
      here = x[i] > here ? x[i] : here;
      is_broken |= x[i] != x[i];
    }
    if (is_broken) {
      for (i = first; x[i] == x[i];) ++i;
      return i;
    }
    if (here > most) {
      most = here;
      best = first;
    }
  }
  while (x[best] != most) ++best;
  return best;
}

template <class T>
void argmax_range(const void* context, int64_t first, int64_t last) {
  const Argmax& call = *static_cast<const Argmax*>(context);
  for (int64_t row = first; row < last; ++row)
    call.out[row] = argmax_row(static_cast<const T*>(call.x) + row * call.stride, call.size);
}

inline Range argmax_rows(int32_t element) { return element == FLOAT64 ? argmax_range<double> : argmax_range<float>; }

}  // namespace
