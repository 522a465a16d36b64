// float32 and float64 linears in the 32 registers of AVX-512.
#include "linear_float.h"

void linear_f32_avx512(const void* call, int64_t index) {
  run_group<FloatKernel<float, 64, 8>>(*static_cast<const LinearCall*>(call), index);
}

void linear_f64_avx512(const void* call, int64_t index) {
  run_group<FloatKernel<double, 64, 4>>(*static_cast<const LinearCall*>(call), index);
}
