/* rows.h - rows of pixels and of samples, in whole blocks of 32.
 *
 * One source, rows_body.h, is compiled for each kind of processor; all of them give
 * the same bytes.
 */
#ifndef ROWS_H
#define ROWS_H
#include "yuv.h"

enum { BLOCK = 32 };

/* Before a short loop over vectors, which -O2 would keep in memory. */
#ifdef __clang__
#define UNROLLED
#else
#define UNROLLED _Pragma("GCC unroll 4")
#endif

typedef struct azc_rows {
    const char *name;
    /* Pixels to a row of luma, and to three rows of their channels. */
    void (*luma)(const azc_yuv *how, const uint8_t *rgb, int blocks, uint8_t *y,
                 uint8_t *const channels[3]);
    /* Two rows of channels, with a sample before the first, to one of chroma:
     * blocks of 64 pixels.  v is not used if the two are interleaved in u. */
    void (*chroma)(const azc_yuv *how, uint8_t *const first[3],
                   uint8_t *const second[3], int blocks, uint8_t *u, uint8_t *v);
    /* A row of luma, and half as many of chroma, to pixels. */
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
