// The k largest numbers of each row, largest first, and where they stand: of equals the first, and before all others
// what is no number.
#pragma once

#include "lanes.h"
#include "rows.h"

namespace {

// The best entries so far, a heap: none is before the one at its root, nor any of a subtree before that one's. It lies
// in the results and is sorted there at the end.
template <class T>
struct Best {
  T* values;
  int64_t* places;
  int64_t size;
};

template <class T>
constexpr T LEAST = -__builtin_inf();
template <>
constexpr int64_t LEAST<int64_t> = INT64_MIN;

// What is no number is larger than any, and as large as another one.
template <class T>
inline bool is_larger(T a, T b) {
  return !(a <= b) & (b == b);
}

// Whether entry `a` of a heap comes after a value and its place.
template <class T>
inline bool comes_after(const Best<T>& best, int64_t a, T value, int64_t place) {
  return is_larger(value, best.values[a]) | (!is_larger(best.values[a], value) & (best.places[a] > place));
}

// Puts an entry at `at` or, as long as a child comes after it, below: the subtrees there are heaps, and so is the whole.
template <class T>
inline void sink(const Best<T>& best, int64_t at, T value, int64_t place) {
  for (;;) {
    int64_t child = 2 * at + 1;
    if (child >= best.size) break;
    if (child + 1 < best.size) child += comes_after(best, child + 1, best.values[child], best.places[child]);
    if (!comes_after(best, child, value, place)) break;
    best.values[at] = best.values[child];
    best.places[at] = best.places[child];
    at = child;
  }
  best.values[at] = value;
  best.places[at] = place;
}

// Which of the next numbers are larger than a bound, a bit each; all of them where the bound is no number.
template <class T>
inline uint32_t found_above(const T* x, int64_t count, T bound) {
  if (count >= NUM_LANES<T>) return lanes_above(load_lanes(x), set_lanes(bound));
  return lanes_above(load_lanes(x, count), set_lanes(bound)) & ((uint32_t(1) << count) - 1);
}

// Takes every number of the places [first, last) that is larger than the root in its stead; of each `step` numbers it
// looks at one vector.
template <class T>
void improve(const Best<T>& best, const T* x, int64_t first, int64_t last, int64_t step) {
  for (; first < last; first += step) {
    for (uint32_t found = found_above(x + first, last - first, best.values[0]); found; found &= found - 1) {
      const int64_t place = first + __builtin_ctz(found);
      if (is_larger(x[place], best.values[0])) sink(best, 0, x[place], place);
    }
  }
}

// Takes the first numbers larger than a bound, in any order. Returns where the next one may stand, or 0 if they are too
// few.
template <class T>
int64_t fill(const Best<T>& best, const T* x, int64_t size, T bound) {
  int64_t count = 0;
  for (int64_t first = 0; first < size; first += NUM_LANES<T>) {
    for (uint32_t found = found_above(x + first, size - first, bound); found; found &= found - 1) {
      const int64_t place = first + __builtin_ctz(found);
      best.values[count] = x[place];
      best.places[count] = place;
      if (++count == best.size) return place + 1;
    }
  }
  return 0;
}

// Most of the work would be entries that go in early and out again. So a sixteenth of the row says first which bound
// about 2k numbers are above; where it was wrong and they are fewer than k, the row is begun anew without one.
constexpr int64_t WORTH_A_SAMPLE = 64;

template <class T>
T likely_bound(const Best<T>& best, const T* x, int64_t size) {
  const Best<T> sample{best.values, best.places, best.size / 8};
  for (int64_t i = 0; i < sample.size; ++i) {
    sample.values[i] = LEAST<T>;
    sample.places[i] = 0;
  }
  improve(sample, x, 0, size, 16 * NUM_LANES<T>);
  return sample.values[0];
}

template <class T>
void top_k_row(const Best<T>& best, const T* x, int64_t size) {
  int64_t next = 0;
  if (best.size >= WORTH_A_SAMPLE && size >= 4 * best.size) next = fill(best, x, size, likely_bound(best, x, size));
  if (next == 0) {
    for (; next < best.size; ++next) {
      best.values[next] = x[next];
      best.places[next] = next;
    }
  }
  for (int64_t at = best.size / 2; at-- > 0;) sink(best, at, best.values[at], best.places[at]);
  improve(best, x, next, size, NUM_LANES<T>);
  for (int64_t last = best.size; last-- > 1;) {
    const T value = best.values[last];
    const int64_t place = best.places[last];
    best.values[last] = best.values[0];
    best.places[last] = best.places[0];
    sink(Best<T>{best.values, best.places, last}, 0, value, place);
  }
}

template <class T>
void top_k_range(const void* context, int64_t first, int64_t last) {
  const TopK& call = *static_cast<const TopK*>(context);
  for (int64_t row = first; row < last; ++row) {
    const Best<T> best{static_cast<T*>(call.values) + row * call.k, call.places + row * call.k, call.k};
    top_k_row(best, static_cast<const T*>(call.x) + row * call.stride, call.size);
  }
}

inline Range top_k_rows(int32_t element) {
  if (element == INT64) return top_k_range<int64_t>;
  return element == FLOAT64 ? top_k_range<double> : top_k_range<float>;
}

}  // namespace
