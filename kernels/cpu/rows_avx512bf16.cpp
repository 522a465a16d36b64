// The operations on rows, compiled for AVX-512.
#include "act_mul.h"
#include "argmax.h"
#include "rms_norm.h"
#include "rope.h"
#include "top_k.h"

Range norm_rows_avx512(int32_t element, int32_t weight_element) { return norm_rows(element, weight_element); }
Range rope_tokens_avx512(int32_t element) { return rope_tokens(element); }
Range rope_and_cache_tokens_avx512(int32_t element) { return rope_and_cache_tokens(element); }
Range argmax_rows_avx512(int32_t element) { return argmax_rows(element); }
Range top_k_rows_avx512(int32_t element) { return top_k_rows(element); }
Range act_mul_rows_avx512(int32_t element, int32_t activation) { return act_mul_rows(element, activation); }
