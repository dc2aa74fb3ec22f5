/* rows_neon.c - for 64-bit ARM, which always has NEON. */
#include "rows.h"

#if defined(__aarch64__)
#include "simd_neon.h"

#include "rows_body.h"

const azc_rows azc__rows_neon = {"NEON", luma, chroma, rgb};
#endif
