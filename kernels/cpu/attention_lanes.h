// Attention of single queries, with the softmax taken as the scores come: 32 keys, all heads, the next 32 keys.
#pragma once

#include "attention_pairs.h"

namespace {

// Adds `N` vectors of each value, from element `i` on, to the sums of R heads.
template <class T, int R, int N>
inline __attribute__((always_inline)) void add_values(const Keys<T>& keys, const Wide<T> (&weights)[R][TILE],
                                                      Wide<T>* const (&sums)[R], const Wide<T> (&shrink)[R],
                                                      int64_t offset, int64_t i, int64_t count) {
  Lanes<T> totals[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) totals[r][n] = load_lanes(sums[r] + i + n * NUM_LANES<T>) * shrink[r];
  for (int64_t key = 0; key < keys.count; ++key) {
    for (int n = 0; n < N; ++n) {
      const T* place = keys.v[key] + offset + i + n * NUM_LANES<T>;
      const Lanes<T> value = N > 1 ? load_lanes(place) : load_lanes(place, count);
      for (int r = 0; r < R; ++r) totals[r][n] += weights[r][key] * value;
    }
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) store_lanes(sums[r] + i + n * NUM_LANES<T>, totals[r][n]);
}

// R query heads of one KV head over a tile of keys. `state`: of the first of them.
template <class T, int R>
void attend_heads(const Decode& call, const Keys<T>& keys, const Keys<T>& next, Wide<T>* state, int64_t offset) {
  const int64_t padded = padded_size(call.size);
  Wide<T> scores[R][TILE];
  Wide<T>* queries[R];
  Wide<T>* sums[R];
  Wide<T>* ends[R];
  for (int r = 0; r < R; ++r) {
    queries[r] = state + r * state_size(call.size);
    sums[r] = queries[r] + padded;
    ends[r] = sums[r] + padded;
  }
  for (int64_t key = 0; key < keys.count; ++key) {
    const T* k = keys.k[key] + offset;
    if (offset == 0) next.fetch(key, call.slot_stride);
    Lanes<T> products[R];
    for (int r = 0; r < R; ++r) products[r] = set_lanes(Wide<T>(0));
    int64_t i = 0;
    for (; i + NUM_LANES<T> <= call.size; i += NUM_LANES<T>) {
      const Lanes<T> part = load_lanes(k + i);
      for (int r = 0; r < R; ++r) products[r] += load_lanes(queries[r] + i) * part;
    }
    if (i < call.size) {
      const Lanes<T> part = load_lanes(k + i, call.size - i);
      for (int r = 0; r < R; ++r) products[r] += load_lanes(queries[r] + i) * part;
    }
    for (int r = 0; r < R; ++r) scores[r][key] = sum_of(products[r]);
  }
  Wide<T> shrink[R];
  for (int r = 0; r < R; ++r) {
    for (int64_t key = keys.count; key < TILE; ++key) scores[r][key] = scores[r][0];
    if (call.soft_cap != 0) {
      for (int64_t key = 0; key < TILE; key += NUM_LANES<T>)
        store_lanes(scores[r] + key, capped<T>(load_lanes(scores[r] + key), Wide<T>(call.soft_cap)));
    }
    Wide<T> largest = ends[r][0];
    for (int64_t key = 0; key < keys.count; ++key) largest = scores[r][key] > largest ? scores[r][key] : largest;
    shrink[r] = __builtin_exp(ends[r][0] - largest);
    Wide<T> total = 0;
    for (int64_t key = 0; key < TILE; key += NUM_LANES<T>)
      store_lanes(scores[r] + key, exp_lanes<T>(load_lanes(scores[r] + key) - largest));
    for (int64_t key = 0; key < keys.count; ++key) total += scores[r][key];
    ends[r][0] = largest;
    ends[r][1] = ends[r][1] * shrink[r] + total;
  }
  int64_t i = 0;
  for (; i + 4 * NUM_LANES<T> <= call.size; i += 4 * NUM_LANES<T>)
    add_values<T, R, 4>(keys, scores, sums, shrink, offset, i, NUM_LANES<T>);
  for (; i < call.size; i += NUM_LANES<T>)
    add_values<T, R, 1>(keys, scores, sums, shrink, offset, i, smaller(NUM_LANES<T>, call.size - i));
}

// Heads of a task that are computed together.
template <class T, int R>
void attend(const Decode& call, const Keys<T>& keys, const Keys<T>& next, [[maybe_unused]] const T* q, Wide<T>* state,
            int64_t offset) {
#ifdef __AVX512BF16__
  if constexpr (sizeof(T) == sizeof(BFloat16)) {
    if (call.size % PAIRED == 0) return attend_pairs<R>(call, keys, next, q, state, offset);
  }
#endif
  attend_heads<T, R>(call, keys, next, state, offset);
}

template <class T>
void attend_task(const void* context, int64_t index) {
  const Decode& call = *static_cast<const Decode*>(context);
  const int64_t* task = call.tasks + 4 * index;
  if (task[0] < 0) return;
  const int64_t* blocks = call.table + task[1] * call.table_stride;
  const int64_t state_length = state_size(call.size), padded = padded_size(call.size);
  Wide<T>* states = static_cast<Wide<T>*>(call.states) + index * call.num_heads * state_length;
  for (int64_t head = 0; head < call.num_heads; ++head) {
    const T* q = static_cast<const T*>(call.q) + task[0] * call.token_stride + head * call.head_stride;
    Wide<T>* state = states + head * state_length;
    __builtin_memset(state, 0, state_length * sizeof *state);
    for_lanes<T>(call.size, [&](int64_t i, int64_t count) {
      store_lanes(state + i, load_lanes(q + i, count) * Wide<T>(call.scale));
    });
    state[2 * padded] = -__builtin_inf();
  }
  const int64_t group = call.num_heads / call.num_kv_heads;
  Keys<T> keys, next;
  next.find(call, blocks, task[2], task[3]);
  for (int64_t first = task[2]; first < task[3]; first += TILE) {
    keys = next;
    next.find(call, blocks, first + TILE, task[3]);
    for (int64_t head = 0; head < call.num_heads;) {
      const int64_t kv_head = head / group;
      const int64_t count = smaller(MAX_HEADS, (kv_head + 1) * group - head);
      Wide<T>* state = states + head * state_length;
      const int64_t offset = kv_head * call.kv_head_stride;
      const T* q = static_cast<const T*>(call.q) + task[0] * call.token_stride + head * call.head_stride;
      switch (count) {
        case 1: attend<T, 1>(call, keys, next, q, state, offset); break;
        case 2: attend<T, 2>(call, keys, next, q, state, offset); break;
        case 3: attend<T, 3>(call, keys, next, q, state, offset); break;
        default: attend<T, MAX_HEADS>(call, keys, next, q, state, offset);
      }
      head += count;
    }
  }
}

// The parts of each token, weighed by what their weights sum to.
template <class T>
void merge_range(const void* context, int64_t from, int64_t to) {
  const Decode& call = *static_cast<const Decode*>(context);
  const int64_t state_length = state_size(call.size), padded = padded_size(call.size);
  for (const int64_t* merge = call.merges + 3 * from; merge < call.merges + 3 * to; merge += 3) {
    for (int64_t head = 0; head < call.num_heads; ++head) {
      T* out = static_cast<T*>(call.out) + (merge[0] * call.num_heads + head) * call.size;
      Wide<T>* first = static_cast<Wide<T>*>(call.states) + (merge[1] * call.num_heads + head) * state_length;
      const int64_t stride = call.num_heads * state_length;
      Wide<T> largest = -__builtin_inf(), total = 0;
      for (int64_t part = 0; part < merge[2]; ++part) {
        const Wide<T> its = first[part * stride + 2 * padded];
        largest = its > largest ? its : largest;
      }
      for (int64_t part = 0; part < merge[2]; ++part) {
        Wide<T>* state = first + part * stride + 2 * padded;
        // a part without keys weighs nothing: its largest score is -inf, and -inf - -inf is not a number
        state[0] = state[1] == 0 ? 0 : __builtin_exp(state[0] - largest);
        total += state[0] * state[1];
      }
      if (total == 0) total = 1;  // a query that sees nothing gets zeros
      for_lanes<T>(call.size, [&](int64_t i, int64_t count) {
        Lanes<T> sum = set_lanes(Wide<T>(0));
        for (int64_t part = 0; part < merge[2]; ++part)
          sum += first[part * stride + 2 * padded] * load_lanes(first + part * stride + padded + i);
        store_lanes(out + i, sum / total, count);
      });
    }
  }
}

inline DecodeKernels decode_kernels(int32_t element) {
  if (element == FLOAT64) return {attend_task<double>, merge_range<double>};
  if (element == FLOAT32) return {attend_task<float>, merge_range<float>};
  return {attend_task<BFloat16>, merge_range<BFloat16>};
}

}  // namespace
