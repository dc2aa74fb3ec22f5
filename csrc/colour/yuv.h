/* yuv.h - pictures: RGB to YUV 4:2:0 and back, read by the compiler and by cffi.
 *
 * The rules for azc.h hold for this file.  The caller computes the coefficients, so that
 * C need not know the standards.  No memory is borrowed after a call returns.
 */
#ifndef AZC_YUV_H
#define AZC_YUV_H
#include <stddef.h>
#include <stdint.h>

typedef struct azc_yuv {
    int width, height; /* may be odd: then chroma covers one pixel more */
    int pixel_bytes;   /* 3 or 4; the fourth is no colour */
    int blue_first;    /* BGR, not RGB */
    int interleaved;   /* U and V alternate in one plane */
    int left;          /* chroma lies on each second pixel, not between two */
    int16_t black;     /* luma's zero */
    int16_t to_y[3], to_u[3], to_v[3]; /* by 2^15, in the order of the bytes */
    int16_t gain;                      /* of luma, by 2^13 */
    int16_t from_black;                /* minus black's part, plus rounding, by 2^5 */
    int16_t v_to_red, u_to_green, v_to_green, u_to_blue; /* by 2^12 */
} azc_yuv;

/* Converts rows of pixels, stride bytes apart, to planes, one after the other.
 *   0        done
 *   -ENOMEM  no memory for two rows
 *   -EINVAL  the size or pixel_bytes is wrong */
int azc_rgb_to_yuv(const azc_yuv *how, const void *rgb, ptrdiff_t stride, void *yuv);

/* Converts planes to rows of pixels; a pixel's fourth byte becomes 255. */
int azc_yuv_to_rgb(const azc_yuv *how, const void *yuv, void *rgb, ptrdiff_t stride);

/* azc_yuv_to_rgb, to rows without gaps, as the `then` of azc_recv_then. */
typedef struct azc_yuv_job {
    azc_yuv how;
    const void *yuv;
    void *rgb;
} azc_yuv_job;

void azc_yuv_then_rgb(void *job);

/* Returns the code that is used here: "AVX2", "NEON" or "plain".  For tests: 1 switches
 * to plain C from now on, -1 back to the best. */
const char *azc_yuv_kind(int plain);

#endif
