// Attention of many queries a row, compiled for AVX2.
#include "prefill_lanes.h"

PrefillKernels prefill_kernels_avx2(int32_t element, int64_t size) { return prefill_kernels(element, size); }
