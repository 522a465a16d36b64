// Attention of single queries, compiled for AVX-512.
#include "attention_lanes.h"

DecodeKernels decode_kernels_avx512(int32_t element) { return decode_kernels(element); }
