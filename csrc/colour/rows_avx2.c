/* rows_avx2.c - for x86 with AVX2; yuv.c checks that the processor has it. */
#include "rows.h"

#if defined(__x86_64__)
#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif

#include "simd_avx2.h"

#include "rows_body.h"

const azc_rows azc__rows_avx2 = {"AVX2", luma, chroma, rgb};

#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
