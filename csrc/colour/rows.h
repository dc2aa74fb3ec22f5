/* rows.h - rows of pixels and of samples, in whole blocks of 32.
 *
 * One source, rows_body.h, is compiled for each kind of processor; all of them give
 * the same bytes.
 */
#ifndef ROWS_H
#define ROWS_H
#include "yuv.h"

enum { BLOCK = 32 };

/* Put before a short loop over vectors: without it, -O2 would keep them in memory. */
#ifdef __clang__
#define UNROLLED
#else
#define UNROLLED _Pragma("GCC unroll 4")
#endif

typedef struct azc_rows {
    const char *name;
    /* Turns pixels into a row of luma, and into three rows of their channels. */
    void (*luma)(const azc_yuv *how, const uint8_t *rgb, int blocks, uint8_t *y,
                 uint8_t *const channels[3]);
    /* Turns two rows of channels, with a sample before the first, into one row of
     * chroma; a block has 64 pixels.  v is not used if u has both, interleaved. */
    void (*chroma)(const azc_yuv *how, uint8_t *const first[3],
                   uint8_t *const second[3], int blocks, uint8_t *u, uint8_t *v);
    /* Turns a row of luma, and half as many samples of chroma, into pixels. */
    void (*rgb)(const azc_yuv *how, const uint8_t *y, const uint8_t *u,
                const uint8_t *v, int blocks, uint8_t *rgb);
} azc_rows;

extern const azc_rows azc__rows_plain;
#if defined(__x86_64__)
extern const azc_rows azc__rows_avx2;
#elif defined(__aarch64__)
extern const azc_rows azc__rows_neon;
#endif

#endif
