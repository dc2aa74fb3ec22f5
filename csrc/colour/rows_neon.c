/* rows_neon.c - for 64-bit ARM, which always has NEON. */
#if defined(__aarch64__)
#include "simd_neon.h"

#include "rows_body.h"

const azc_rows azc__rows_neon = {"NEON", luma, chroma, rgb};
#else
typedef int azc_nothing; /* a C file must not be empty */
#endif
