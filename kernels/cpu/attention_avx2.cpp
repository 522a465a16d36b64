// Attention of single queries, compiled for AVX2.
#include "attention_lanes.h"

DecodeKernels decode_kernels_avx2(int32_t element) { return decode_kernels(element); }
