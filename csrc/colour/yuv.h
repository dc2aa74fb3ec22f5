/* yuv.h - pictures: RGB to YUV 4:2:0 and back, read by the compiler and by cffi.
 *
 * The language of this file is that of azc.h.  The caller computes the coefficients,
 * so that C knows of no standard.  Memory is the caller's again when a call returns.
 */
#ifndef AZC_YUV_H
#define AZC_YUV_H
#include <stddef.h>
#include <stdint.h>

typedef struct azc_yuv {
    int width, height; /* odd ones too: then chroma covers one more */
    int pixel_bytes;   /* 3 or 4 for RGB, the fourth being no colour */
    int blue_first;    /* of the pixel's first three bytes */
    int interleaved;   /* U and V in one plane, in turn */
    int left;          /* chroma lies on each second pixel, not between */
    int16_t black;     /* luma's zero */
    int16_t to_y[3], to_u[3], to_v[3]; /* by 2^15, in the order of the bytes */
    int16_t gain;                      /* of luma, by 2^13 */
    int16_t from_black;                /* less black's, and rounded, by 2^5 */
    int16_t v_to_red, u_to_green, v_to_green, u_to_blue; /* by 2^12 */
} azc_yuv;

/* Rows that are stride bytes apart, to the planes one after the other.
 *   0        done
 *   -ENOMEM  no memory for two rows
 *   -EINVAL  no such picture */
int azc_rgb_to_yuv(const azc_yuv *how, const void *rgb, ptrdiff_t stride, void *yuv);

/* The other way; the fourth byte of a pixel becomes 255. */
int azc_yuv_to_rgb(const azc_yuv *how, const void *yuv, void *rgb, ptrdiff_t stride);

/* The same as what a receive does at its end, see azc_recv_then; rows without gaps. */
typedef struct azc_yuv_job {
    azc_yuv how;
    const void *yuv;
    void *rgb;
} azc_yuv_job;

void azc_yuv_then_rgb(void *job);

/* What does it here: "AVX2", "NEON" or "plain".  For tests: 1 chooses plain C from
 * now on, -1 again what is best. */
const char *azc_yuv_kind(int plain);

#endif
