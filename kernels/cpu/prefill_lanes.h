// Attention of many queries a row: scores of a tile of keys, their softmax, their values, then the next tile.
#pragma once

#include "prefill.h"
#include "softmax_lanes.h"

namespace {

// What products are made of: pairs of bfloat16 where the processor multiplies them, else single wide numbers.
template <class T>
struct Factor {
  using Type = Wide<T>;
  using Vector = Lanes<T>;
  static constexpr int64_t INPUTS = 1;

  static Vector load(const Type* place) { return load_lanes(place); }
  static Vector spread(const Type* place) { return set_lanes(*place); }
  static Lanes<T> add(Lanes<T> sum, Vector a, Vector b) { return sum + a * b; }
  static Type from(const T* place) {
    if constexpr (sizeof(T) == sizeof(BFloat16)) {
      const uint32_t bits = static_cast<uint32_t>(place->bits) << 16;
      Type value;
      __builtin_memcpy(&value, &bits, sizeof value);
      return value;
    } else {
      return *place;
    }
  }
};

#ifdef __AVX512BF16__

constexpr int ROWS = 6;  // of a tile of sums, times 4 vectors: 24 registers, and 5 for what is multiplied

template <>
struct Factor<BFloat16> {
  using Type = BFloat16;
  using Vector = __m512bh;
  static constexpr int64_t INPUTS = 2;

  static Vector load(const Type* place) { return (__m512bh)_mm512_loadu_si512(place); }
  static Vector spread(const Type* place) {
    int32_t both;
    __builtin_memcpy(&both, place, sizeof both);
    return (__m512bh)_mm512_set1_epi32(both);
  }
  static Floats add(Floats sum, Vector a, Vector b) { return _mm512_dpbf16_ps(sum, a, b); }
  static Type from(const BFloat16* place) { return *place; }
};

#else

constexpr int ROWS = 2;

#endif

constexpr int VECTORS = 4;  // of a tile of sums

template <class T>
using FactorOf = typename Factor<T>::Type;

// A tile of K as [size / INPUTS, KEYS, INPUTS] and of V as [KEYS / INPUTS, size, INPUTS], padded with zeros.
template <class T>
struct Packed {
  static constexpr int64_t INPUTS = Factor<T>::INPUTS;

  int64_t num_steps;  // of K
  int64_t width;      // of V

  explicit Packed(int64_t size)
      : num_steps(blocks_of(size, INPUTS)), width(blocks_of(size, NUM_LANES<T>) * NUM_LANES<T>) {}
  int64_t num_of_k() const { return num_steps * INPUTS * KEYS; }
  int64_t num_factors() const { return num_of_k() + KEYS * width; }
};

template <class T>
void pack_task(const void* context, int64_t index) {
  using F = FactorOf<T>;
  constexpr int64_t INPUTS = Factor<T>::INPUTS;
  const Prefill& call = *static_cast<const Prefill*>(context);
  const int64_t* tile = call.tiles + index / call.num_kv_heads * 3;
  const int64_t* blocks = call.table + tile[0] * call.table_stride;
  const Packed<T> packed(call.size);
  F* k = reinterpret_cast<F*>(call.packed) + index * packed.num_factors();
  F* v = k + packed.num_of_k();
  __builtin_memset(k, 0, packed.num_factors() * sizeof(F));
  const int64_t count = smaller(KEYS, tile[2] - tile[1]);
  for (int64_t key = 0; key < count; ++key) {
    const int64_t position = tile[1] + key;
    const int64_t place = blocks[position / call.block_size] * call.block_stride +
                          position % call.block_size * call.slot_stride +
                          index % call.num_kv_heads * call.kv_head_stride;
    const T* from_k = static_cast<const T*>(call.k) + place;
    const T* from_v = static_cast<const T*>(call.v) + place;
    for (int64_t i = 0; i < call.size; ++i)
      k[(i / INPUTS * KEYS + key) * INPUTS + i % INPUTS] = Factor<T>::from(from_k + i);
    F* row = v + key / INPUTS * packed.width * INPUTS + key % INPUTS;
    for (int64_t i = 0; i < call.size; ++i) row[i * INPUTS] = Factor<T>::from(from_v + i);
  }
}

// sums += x times packed, for ROWS rows and P vectors. stride: between the steps of `packed`.
template <class T, int P>
inline __attribute__((always_inline)) void multiply(Lanes<T> (&sums)[ROWS][P], const FactorOf<T>* x, int64_t x_stride,
                                                    const FactorOf<T>* packed, int64_t stride, int64_t num_steps) {
  using M = Factor<T>;
  for (int64_t step = 0; step < num_steps; ++step, packed += stride) {
    typename M::Vector vectors[P];
    for (int p = 0; p < P; ++p) vectors[p] = M::load(packed + p * NUM_LANES<T> * M::INPUTS);
    for (int r = 0; r < ROWS; ++r) {
      const typename M::Vector both = M::spread(x + r * x_stride + step * M::INPUTS);
      for (int p = 0; p < P; ++p) sums[r][p] = M::add(sums[r][p], both, vectors[p]);
    }
  }
}

// out = x times packed, or out * shrink + x times packed. `out` has `width` numbers a row.
template <class T, int P>
void product(Wide<T>* out, int64_t width, const Wide<T>* shrink, const FactorOf<T>* x, int64_t x_stride,
             const FactorOf<T>* packed, int64_t stride, int64_t num_steps) {
  Lanes<T> sums[ROWS][P];
  for (int r = 0; r < ROWS; ++r)
    for (int p = 0; p < P; ++p)
      sums[r][p] = shrink == nullptr ? set_lanes(Wide<T>(0))
                                     : load_lanes(out + r * width + p * NUM_LANES<T>) * set_lanes(shrink[r]);
  multiply<T, P>(sums, x, x_stride, packed, stride, num_steps);
  for (int r = 0; r < ROWS; ++r)
    for (int p = 0; p < P; ++p) store_lanes(out + r * width + p * NUM_LANES<T>, sums[r][p]);
}

template <class T>
void products(Wide<T>* out, int64_t width, const Wide<T>* shrink, const FactorOf<T>* x, int64_t x_stride,
              const FactorOf<T>* packed, int64_t stride, int64_t num_steps, int64_t num_vectors) {
  for (int64_t vector = 0; vector < num_vectors; vector += VECTORS) {
    Wide<T>* place = out + vector * NUM_LANES<T>;
    const FactorOf<T>* its = packed + vector * NUM_LANES<T> * Factor<T>::INPUTS;
    switch (num_vectors - vector) {
      case 1: product<T, 1>(place, width, shrink, x, x_stride, its, stride, num_steps); break;
      case 2: product<T, 2>(place, width, shrink, x, x_stride, its, stride, num_steps); break;
      case 3: product<T, 3>(place, width, shrink, x, x_stride, its, stride, num_steps); break;
      default: product<T, VECTORS>(place, width, shrink, x, x_stride, its, stride, num_steps);
    }
  }
}

// The scores of one row become weights, of which those outside [first, end) are zero; returns what the weights of
// earlier tiles shrink by.
template <class T>
Wide<T> soften(const Prefill& call, Wide<T>* scores, FactorOf<T>* weights, int64_t first, int64_t end,
               int64_t num_keys, Wide<T>& largest, Wide<T>& total) {
  constexpr int64_t N = NUM_LANES<T>;
  const Lanes<T> scale = set_lanes(Wide<T>(call.scale));
  const bool is_whole = first <= 0 && end >= num_keys;
  if (end <= first) {
    __builtin_memset(weights, 0, num_keys * sizeof *weights);
    return 1;
  }
  Lanes<T> most = set_lanes(-Wide<T>(__builtin_inf()));
  for (int64_t key = 0; key < num_keys; key += N) {
    Lanes<T> its = load_lanes(scores + key) * scale;
    if (call.soft_cap != 0) its = capped<T>(its, Wide<T>(call.soft_cap));
    store_lanes(scores + key, its);
    if (is_whole) most = larger_of(most, its);
  }
  Wide<T> now = largest_in(most);
  if (!is_whole) {
    for (int64_t key = first < 0 ? 0 : first; key < smaller(end, num_keys); ++key)
      now = scores[key] > now ? scores[key] : now;
  }
  const Wide<T> before = largest;
  if (!(now > before)) now = before;
  const Wide<T> shrink = now == before ? Wide<T>(1) : Wide<T>(__builtin_exp(before - now));
  for (int64_t key = 0; key < num_keys; key += N)
    store_lanes(scores + key, exp_lanes<T>(load_lanes(scores + key) - set_lanes(now)));
  if (!is_whole) {
    for (int64_t key = 0; key < num_keys; ++key)
      if (key < first || key >= end) scores[key] = 0;
  }
  Lanes<T> sum = set_lanes(Wide<T>(0));
  for (int64_t key = 0; key < num_keys; key += N) {
    const Lanes<T> its = load_lanes(scores + key);
    sum += its;
    store_lanes(weights + key, its);
  }
  largest = now;
  total = total * shrink + sum_of(sum);
  return shrink;
}

template <class T>
void attend_queries(const void* context, int64_t index) {
  using F = FactorOf<T>;
  constexpr int64_t N = NUM_LANES<T>, INPUTS = Factor<T>::INPUTS;
  const Prefill& call = *static_cast<const Prefill*>(context);
  const int64_t group = call.num_heads / call.num_kv_heads;
  const Cut cut = cut_of(group, call.size, sizeof(Wide<T>));
  const int64_t* stretch = call.queries + index / (call.num_kv_heads * cut.num_parts) * 5;
  const int64_t kv_head = index / cut.num_parts % call.num_kv_heads, part = index % cut.num_parts * cut.num_heads;
  const int64_t first_token = stretch[0], position = stretch[1], num_queries = stretch[2], first_key = stretch[4];
  const int64_t head = kv_head * group + part, num_heads = smaller(cut.num_heads, group - part);
  const int64_t num_rows = num_queries * num_heads, num_padded = blocks_of(num_rows, ROWS) * ROWS;
  const Packed<T> packed(call.size);
  const int64_t depth = packed.num_steps * INPUTS;

  // a query's heads are rows next to each other
  alignas(64) F x[num_padded * depth];
  alignas(64) Wide<T> sums[num_padded * packed.width];
  alignas(64) Wide<T> scores[num_padded * KEYS];
  alignas(64) F weights[num_padded * KEYS];
  Wide<T> largest[num_padded], total[num_padded], shrink[num_padded];
  __builtin_memset(x, 0, sizeof x);
  __builtin_memset(sums, 0, sizeof sums);
  __builtin_memset(weights, 0, sizeof weights);
  for (int64_t row = 0; row < num_padded; ++row) {
    largest[row] = -__builtin_inf(), total[row] = 0, shrink[row] = 1;
    if (row >= num_rows) continue;
    const T* q = static_cast<const T*>(call.q) + (first_token + row / num_heads) * call.token_stride +
                 (head + row % num_heads) * call.head_stride;
    for (int64_t i = 0; i < call.size; ++i) x[row * depth + i] = Factor<T>::from(q + i);
  }

  const int64_t last = position + num_queries - 1;
  const int64_t first_seen = call.window == 0 ? 0 : position - call.window + 1;
  const F* tiles = reinterpret_cast<const F*>(call.packed);
  for (int64_t tile = first_seen > first_key ? (first_seen - first_key) / KEYS : 0; first_key + tile * KEYS <= last;
       ++tile) {
    const int64_t start = first_key + tile * KEYS;
    const F* k = tiles + ((stretch[3] + tile) * call.num_kv_heads + kv_head) * packed.num_factors();
    const F* v = k + packed.num_of_k();
    const int64_t num_vectors = blocks_of(smaller(KEYS, last + 1 - start), N), num_keys = num_vectors * N;
    for (int64_t row = 0; row < num_padded; row += ROWS) {
      products<T>(scores + row * KEYS, KEYS, nullptr, x + row * depth, depth, k, KEYS * INPUTS, packed.num_steps,
                  num_vectors);
    }
    for (int64_t row = 0; row < num_rows; ++row) {
      const int64_t its = position + row / num_heads;
      const int64_t from = call.window == 0 ? 0 : its - call.window + 1 - start;
      shrink[row] = soften<T>(call, scores + row * KEYS, weights + row * KEYS, from, its + 1 - start, num_keys,
                              largest[row], total[row]);
    }
    for (int64_t row = 0; row < num_padded; row += ROWS) {
      products<T>(sums + row * packed.width, packed.width, shrink + row, weights + row * KEYS, KEYS, v,
                  packed.width * INPUTS, num_keys / INPUTS, packed.width / N);
    }
  }

  for (int64_t row = 0; row < num_rows; ++row) {
    T* out = static_cast<T*>(call.out) +
             ((first_token + row / num_heads) * call.num_heads + head + row % num_heads) * call.size;
    const Wide<T> by = total[row] == 0 ? 1 : total[row];
    for_lanes<T>(call.size, [&](int64_t i, int64_t count) {
      store_lanes(out + i, load_lanes(sums + row * packed.width + i) / set_lanes(by), count);
    });
  }
}

template <class T>
PrefillKernels kernels_for(int64_t size) {
  return {pack_task<T>, attend_queries<T>, Packed<T>(size).num_factors() * int64_t(sizeof(FactorOf<T>))};
}

inline PrefillKernels prefill_kernels(int32_t element, int64_t size) {
  if (element == FLOAT64) return kernels_for<double>(size);
  return element == FLOAT32 ? kernels_for<float>(size) : kernels_for<BFloat16>(size);
}

}  // namespace
