/* rows_plain.c - for every processor. */
#include "simd_plain.h"

#include "rows_body.h"

const azc_rows azc__rows_plain = {"plain", luma, chroma, rgb};
