/* simd_plain.h - the operations that rows_body.h needs, in plain C.  This file describes
 * them, and is what processors without a file of their own run. */
#ifndef SIMD_PLAIN_H
#define SIMD_PLAIN_H
#include <stdint.h>
#include <string.h>

typedef struct {
    uint8_t at[32];
} bytes;
typedef struct {
    int16_t at[32];
} words;

static inline bytes load(const uint8_t *p) {
    bytes x;
    memcpy(x.at, p, sizeof x.at);
    return x;
}

static inline void store(uint8_t *p, bytes x) { memcpy(p, x.at, sizeof x.at); }

static inline void split(const uint8_t *p, int stride, bytes channels[3]) {
    for (int c = 0; c < 3; c++)
        for (int i = 0; i < 32; i++) channels[c].at[i] = p[stride * i + c];
}

static inline void join(uint8_t *p, int stride, const bytes channels[3]) {
    for (int c = 0; c < 3; c++)
        for (int i = 0; i < 32; i++) p[stride * i + c] = channels[c].at[i];
}

static inline void split3(const uint8_t *p, bytes channels[3]) {
    split(p, 3, channels);
}

static inline void split4(const uint8_t *p, bytes channels[3]) {
    split(p, 4, channels);
}

static inline void join3(uint8_t *p, const bytes channels[3]) { join(p, 3, channels); }

/* The fourth channel is opaque. */
static inline void join4(uint8_t *p, const bytes channels[3]) {
    join(p, 4, channels);
    for (int i = 0; i < 32; i++) p[4 * i + 3] = 255;
}

/* Two planes, one byte of each in turn. */
static inline void join2(uint8_t *p, bytes a, bytes b) {
    for (int i = 0; i < 32; i++) p[2 * i] = a.at[i], p[2 * i + 1] = b.at[i];
}

/* x * 128 */
static inline words widened(bytes x) {
    words y;
    for (int i = 0; i < 32; i++) y.at[i] = (int16_t)(x.at[i] << 7);
    return y;
}

/* 32 samples: x * 128 */
static inline words luma_of(const uint8_t *p) { return widened(load(p)); }

static inline int16_t from_grey(uint8_t x) { return (int16_t)((x - 128) * 256); }

/* 16 samples, each for two pixels: (x - 128) * 256 */
static inline words chroma_of(const uint8_t *p) {
    words y;
    for (int i = 0; i < 32; i++) y.at[i] = from_grey(p[i / 2]);
    return y;
}

/* As chroma_of, from 16 pairs: of the first or second in each. */
static inline words chroma_of_pairs(const uint8_t *p, int second) {
    words y;
    for (int i = 0; i < 32; i++) y.at[i] = from_grey(p[i / 2 * 2 + second]);
    return y;
}

/* (x * c + 2^14) / 2^15 */
static inline words times(words x, int16_t c) {
    for (int i = 0; i < 32; i++) x.at[i] = (int16_t)((x.at[i] * c + (1 << 14)) >> 15);
    return x;
}

static inline words plus(words x, words y) {
    for (int i = 0; i < 32; i++) x.at[i] = (int16_t)(x.at[i] + y.at[i]);
    return x;
}

/* Saturated. */
static inline words plus_all(words x, int16_t c) {
    for (int i = 0; i < 32; i++) {
        const int sum = x.at[i] + c;
        x.at[i] = (int16_t)(sum > INT16_MAX   ? INT16_MAX
                            : sum < INT16_MIN ? INT16_MIN
                                              : sum);
    }
    return x;
}

/* x / 2^shift as bytes, 0 to 255 */
static inline bytes narrowed(words x, int shift) {
    bytes y;
    for (int i = 0; i < 32; i++) {
        const int whole = x.at[i] >> shift;
        y.at[i] = (uint8_t)(whole < 0 ? 0 : whole > 255 ? 255 : whole);
    }
    return y;
}

/* 64 bytes, pair by pair: the first times w0 and the second times w1. */
static inline words pairs(const uint8_t *p, int8_t w0, int8_t w1) {
    words y;
    for (int i = 0; i < 32; i++) y.at[i] = (int16_t)(p[2 * i] * w0 + p[2 * i + 1] * w1);
    return y;
}

static inline words shifted(words x, int by) {
    for (int i = 0; i < 32; i++) x.at[i] = (int16_t)(x.at[i] * (1 << by));
    return x;
}

/* As narrowed, for words in the order in which `pairs` makes them. */
static inline bytes narrowed_pairs(words x, int shift) { return narrowed(x, shift); }

#endif
