/* simd_neon.h - the operations of simd_plain.h, where they are described, in NEON. */
#ifndef SIMD_NEON_H
#define SIMD_NEON_H
#include <arm_neon.h>
#include <stdint.h>

typedef uint8x16x2_t bytes; /* 32 of them */
typedef int16x8x4_t words;  /* 32, signed */

static inline bytes load(const uint8_t *p) {
    return (bytes){{vld1q_u8(p), vld1q_u8(p + 16)}};
}

static inline void store(uint8_t *p, bytes x) {
    vst1q_u8(p, x.val[0]);
    vst1q_u8(p + 16, x.val[1]);
}

static inline void split3(const uint8_t *p, bytes channels[3]) {
    for (int half = 0; half < 2; half++) {
        const uint8x16x3_t of = vld3q_u8(p + 48 * half);
        for (int c = 0; c < 3; c++) channels[c].val[half] = of.val[c];
    }
}

static inline void split4(const uint8_t *p, bytes channels[3]) {
    for (int half = 0; half < 2; half++) {
        const uint8x16x4_t of = vld4q_u8(p + 64 * half);
        for (int c = 0; c < 3; c++) channels[c].val[half] = of.val[c];
    }
}

static inline void join3(uint8_t *p, const bytes channels[3]) {
    for (int half = 0; half < 2; half++) {
        const uint8x16x3_t of = {
            {channels[0].val[half], channels[1].val[half], channels[2].val[half]}};
        vst3q_u8(p + 48 * half, of);
    }
}

static inline void join4(uint8_t *p, const bytes channels[3]) {
    for (int half = 0; half < 2; half++) {
        const uint8x16x4_t of = {{channels[0].val[half], channels[1].val[half],
                                  channels[2].val[half], vdupq_n_u8(255)}};
        vst4q_u8(p + 64 * half, of);
    }
}

static inline void join2(uint8_t *p, bytes a, bytes b) {
    for (int half = 0; half < 2; half++) {
        const uint8x16x2_t of = {{a.val[half], b.val[half]}};
        vst2q_u8(p + 32 * half, of);
    }
}

static inline words widened(bytes x) {
    words y;
    for (int half = 0; half < 2; half++) {
        const uint8x16_t of = x.val[half];
        y.val[2 * half] = vreinterpretq_s16_u16(vshll_n_u8(vget_low_u8(of), 7));
        y.val[2 * half + 1] = vreinterpretq_s16_u16(vshll_n_u8(vget_high_u8(of), 7));
    }
    return y;
}

static inline words luma_of(const uint8_t *p) { return widened(load(p)); }

/* Each of 16 bytes twice: (x - 128) * 256 */
static inline words doubled(uint8x16_t x) {
    const uint8x16_t of = veorq_u8(x, vdupq_n_u8(128));
    const uint8x16x2_t high = vzipq_u8(vdupq_n_u8(0), of);
    words y;
    for (int half = 0; half < 2; half++) {
        const int16x8_t one = vreinterpretq_s16_u8(high.val[half]);
        const int16x8x2_t two = vzipq_s16(one, one);
        y.val[2 * half] = two.val[0];
        y.val[2 * half + 1] = two.val[1];
    }
    return y;
}

static inline words chroma_of(const uint8_t *p) { return doubled(vld1q_u8(p)); }

static inline words chroma_of_pairs(const uint8_t *p, int second) {
    return doubled(vld2q_u8(p).val[second]);
}

static inline words times(words x, int16_t c) {
    for (int i = 0; i < 4; i++) x.val[i] = vqrdmulhq_n_s16(x.val[i], c);
    return x;
}

static inline words plus(words x, words y) {
    for (int i = 0; i < 4; i++) x.val[i] = vaddq_s16(x.val[i], y.val[i]);
    return x;
}

static inline words plus_all(words x, int16_t c) {
    for (int i = 0; i < 4; i++) x.val[i] = vqaddq_s16(x.val[i], vdupq_n_s16(c));
    return x;
}

static inline bytes narrowed(words x, int shift) {
    const int16x8_t by = vdupq_n_s16((int16_t)-shift);
    bytes y;
    for (int half = 0; half < 2; half++)
        y.val[half] = vcombine_u8(vqmovun_s16(vshlq_s16(x.val[2 * half], by)),
                                  vqmovun_s16(vshlq_s16(x.val[2 * half + 1], by)));
    return y;
}

static inline words pairs(const uint8_t *p, int8_t w0, int8_t w1) {
    words y;
    for (int i = 0; i < 4; i++) {
        const uint8x8x2_t of = vld2_u8(p + 16 * i);
        const uint16x8_t sum = vmlal_u8(vmull_u8(of.val[0], vdup_n_u8((uint8_t)w0)),
                                        of.val[1], vdup_n_u8((uint8_t)w1));
        y.val[i] = vreinterpretq_s16_u16(sum);
    }
    return y;
}

static inline words shifted(words x, int by) {
    for (int i = 0; i < 4; i++)
        x.val[i] = vshlq_s16(x.val[i], vdupq_n_s16((int16_t)by));
    return x;
}

static inline bytes narrowed_pairs(words x, int shift) { return narrowed(x, shift); }

#endif
