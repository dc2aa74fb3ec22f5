/* rows_body.h - what rows.h declares, over the operations of one simd_*.h.
 *
 * Fixed point.  To YUV: samples have 7 fractional bits and coefficients 15.  To RGB: the
 * products of `times` have 5, and so have the results.
 */
#include "rows.h"

static inline words matrix(const words of[3], const int16_t by[3], int zero) {
    words sum = plus(times(of[0], by[0]), times(of[1], by[1]));
    sum = plus(sum, times(of[2], by[2]));
    return plus_all(sum, (int16_t)(zero * 128 + 64));
}

static void luma(const azc_yuv *how, const uint8_t *rgb, int blocks, uint8_t *y,
                 uint8_t *const channels[3]) {
    const azc_yuv h = *how;
    for (int i = 0; i < blocks * BLOCK; i += BLOCK) {
        bytes of[3];
        words wide[3];
        if (h.pixel_bytes == 3)
            split3(rgb + 3 * i, of);
        else
            split4(rgb + 4 * i, of);
        UNROLLED
        for (int c = 0; c < 3; c++) {
            store(channels[c] + i, of[c]);
            wide[c] = widened(of[c]);
        }
        store(y + i, narrowed(matrix(wide, h.to_y, h.black), 7));
    }
}

/* One channel's mean at each sample of chroma, times 128: weights add up to 8. */
static inline words sited(const azc_yuv *how, const uint8_t *first,
                          const uint8_t *second) {
    words sum;
    if (how->left) { /* 1 2 1 about each second pixel */
        sum = plus(pairs(first, 2, 1), pairs(second, 2, 1));
        sum = plus(sum, plus(pairs(first - 1, 1, 0), pairs(second - 1, 1, 0)));
    } else {
        sum = plus(pairs(first, 2, 2), pairs(second, 2, 2));
    }
    return shifted(sum, 4);
}

static void chroma(const azc_yuv *how, uint8_t *const first[3],
                   uint8_t *const second[3], int blocks, uint8_t *u, uint8_t *v) {
    const azc_yuv h = *how;
    for (int i = 0; i < blocks * BLOCK; i += BLOCK) {
        words of[3];
        UNROLLED
        for (int c = 0; c < 3; c++)
            of[c] = sited(&h, first[c] + 2 * i, second[c] + 2 * i);
        const bytes a = narrowed_pairs(matrix(of, h.to_u, 128), 7);
        const bytes b = narrowed_pairs(matrix(of, h.to_v, 128), 7);
        if (h.interleaved) {
            join2(u + 2 * i, a, b);
        } else {
            store(u + i, a);
            store(v + i, b);
        }
    }
}

/* How a pixel's first or last channel is made from chroma. */
typedef struct {
    const uint8_t *chroma;
    int second; /* 1: the second of each pair, if u and v are interleaved */
    int16_t by, to_green;
} channel;

static void rgb(const azc_yuv *how, const uint8_t *y, const uint8_t *u,
                const uint8_t *v, int blocks, uint8_t *rgb) {
    const azc_yuv h = *how;
    const channel blue = {u, 0, h.u_to_blue, h.u_to_green};
    const channel red = {v, 1, h.v_to_red, h.v_to_green};
    const channel first = h.blue_first ? blue : red;
    const channel last = h.blue_first ? red : blue;
    for (int i = 0; i < blocks * BLOCK; i += BLOCK) {
        const words a = h.interleaved ? chroma_of_pairs(u + i, first.second)
                                      : chroma_of(first.chroma + i / 2);
        const words b = h.interleaved ? chroma_of_pairs(u + i, last.second)
                                      : chroma_of(last.chroma + i / 2);
        const words green = plus(times(a, first.to_green), times(b, last.to_green));
        const words grey = plus_all(times(luma_of(y + i), h.gain), h.from_black);
        const bytes of[3] = {narrowed(plus(grey, times(a, first.by)), 5),
                             narrowed(plus(grey, green), 5),
                             narrowed(plus(grey, times(b, last.by)), 5)};
        if (h.pixel_bytes == 3)
            join3(rgb + 3 * i, of);
        else
            join4(rgb + 4 * i, of);
    }
}
