/* simd_avx2.h - the operations of simd_plain.h, where they are described, in AVX2.
 *
 * Most instructions work in two lanes of 16 bytes.  A `words` of a `bytes` holds
 * its items in the order of _mm256_unpacklo and -hi, which _mm256_packus undoes.
 *
 * On the way to RGB `lo` has the even pixels and `hi` the odd ones, until they are
 * joined.  So two pixels that share their chroma are at the same place in both, and the
 * compiler computes their chroma once.
 *
 * The file that includes this one lets the compiler use AVX2.
 */
#ifndef SIMD_AVX2_H
#define SIMD_AVX2_H
#include <immintrin.h>
#include <stdint.h>

#include "rows.h"

typedef __m256i bytes; /* 32 of them */
typedef struct {
    __m256i lo, hi;
} words; /* 32, signed, 16 bits */

/* [channel][vector][byte]: where in the vector the channel's byte is, or -1. */
static const int8_t SPLIT[3][3][16] = {
    {
        {0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1},
        {-1, -1, -1, -1, -1, -1, 2, 5, 8, 11, 14, -1, -1, -1, -1, -1},
        {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1, 4, 7, 10, 13},
    },
    {
        {1, 4, 7, 10, 13, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1},
        {-1, -1, -1, -1, -1, 0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1},
        {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 2, 5, 8, 11, 14},
    },
    {
        {2, 5, 8, 11, 14, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1},
        {-1, -1, -1, -1, -1, 1, 4, 7, 10, 13, -1, -1, -1, -1, -1, -1},
        {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 3, 6, 9, 12, 15},
    },
};

/* [vector][channel][byte]: where in the channel the vector's byte is, or -1.  The
 * channel has the even pixels in its first half, and the odd ones in its second. */
static const int8_t JOIN[3][3][16] = {
    {
        {0, -1, -1, 8, -1, -1, 1, -1, -1, 9, -1, -1, 2, -1, -1, 10},
        {-1, 0, -1, -1, 8, -1, -1, 1, -1, -1, 9, -1, -1, 2, -1, -1},
        {-1, -1, 0, -1, -1, 8, -1, -1, 1, -1, -1, 9, -1, -1, 2, -1},
    },
    {
        {-1, -1, 3, -1, -1, 11, -1, -1, 4, -1, -1, 12, -1, -1, 5, -1},
        {10, -1, -1, 3, -1, -1, 11, -1, -1, 4, -1, -1, 12, -1, -1, 5},
        {-1, 10, -1, -1, 3, -1, -1, 11, -1, -1, 4, -1, -1, 12, -1, -1},
    },
    {
        {-1, 13, -1, -1, 6, -1, -1, 14, -1, -1, 7, -1, -1, 15, -1, -1},
        {-1, -1, 13, -1, -1, 6, -1, -1, 14, -1, -1, 7, -1, -1, 15, -1},
        {5, -1, -1, 13, -1, -1, 6, -1, -1, 14, -1, -1, 7, -1, -1, 15},
    },
};

static inline bytes load(const uint8_t *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}

static inline void store(uint8_t *p, bytes x) { _mm256_storeu_si256((__m256i *)p, x); }

static inline __m256i two(const void *lo, const void *hi) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(lo)),
                                   _mm_loadu_si128(hi), 1);
}

static inline void store_two(uint8_t *lo, uint8_t *hi, __m256i x) {
    _mm_storeu_si128((__m128i *)lo, _mm256_castsi256_si128(x));
    _mm_storeu_si128((__m128i *)hi, _mm256_extracti128_si256(x, 1));
}

/* 16 bytes from memory, in both lanes. */
static inline __m256i both(const void *p) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(p));
}

/* The bytes of three vectors that these masks choose. */
static inline __m256i chosen(const __m256i from[3], const int8_t masks[3][16]) {
    __m256i of[3];
    UNROLLED
    for (int i = 0; i < 3; i++) of[i] = _mm256_shuffle_epi8(from[i], both(masks[i]));
    return _mm256_or_si256(_mm256_or_si256(of[0], of[1]), of[2]);
}

static inline void split3(const uint8_t *p, bytes channels[3]) {
    __m256i from[3];
    UNROLLED
    for (int i = 0; i < 3; i++) from[i] = two(p + 16 * i, p + 48 + 16 * i);
    UNROLLED
    for (int c = 0; c < 3; c++) channels[c] = chosen(from, SPLIT[c]);
}

static inline void join3(uint8_t *p, const bytes channels[3]) {
    UNROLLED
    for (int i = 0; i < 3; i++)
        store_two(p + 16 * i, p + 48 + 16 * i, chosen(channels, JOIN[i]));
}

static inline void split4(const uint8_t *p, bytes channels[3]) {
    const __m256i by_channel = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    __m256i of[4]; /* 4 pixels in each lane, by their channels */
    UNROLLED
    for (int i = 0; i < 4; i++)
        of[i] = _mm256_shuffle_epi8(two(p + 16 * i, p + 64 + 16 * i), by_channel);
    const __m256i a = _mm256_unpacklo_epi32(of[0], of[1]);
    const __m256i b = _mm256_unpacklo_epi32(of[2], of[3]);
    channels[0] = _mm256_unpacklo_epi64(a, b);
    channels[1] = _mm256_unpackhi_epi64(a, b);
    channels[2] = _mm256_unpacklo_epi64(_mm256_unpackhi_epi32(of[0], of[1]),
                                        _mm256_unpackhi_epi32(of[2], of[3]));
}

static inline void join4(uint8_t *p, const bytes channels[3]) {
    const __m256i full = _mm256_set1_epi8(-1);
    const __m256i a = _mm256_unpacklo_epi8(channels[0], channels[1]);
    const __m256i b = _mm256_unpackhi_epi8(channels[0], channels[1]);
    const __m256i c = _mm256_unpacklo_epi8(channels[2], full);
    const __m256i d = _mm256_unpackhi_epi8(channels[2], full);
    const __m256i even[2] = {_mm256_unpacklo_epi16(a, c), _mm256_unpackhi_epi16(a, c)};
    const __m256i odd[2] = {_mm256_unpacklo_epi16(b, d), _mm256_unpackhi_epi16(b, d)};
    UNROLLED
    for (int i = 0; i < 2; i++) {
        uint8_t *const q = p + 32 * i;
        store_two(q, q + 64, _mm256_unpacklo_epi32(even[i], odd[i]));
        store_two(q + 16, q + 80, _mm256_unpackhi_epi32(even[i], odd[i]));
    }
}

static inline void join2(uint8_t *p, bytes a, bytes b) {
    store_two(p, p + 32, _mm256_unpacklo_epi8(a, b));
    store_two(p + 16, p + 48, _mm256_unpackhi_epi8(a, b));
}

static inline words widened(bytes x) {
    const __m256i zero = _mm256_setzero_si256();
    return (words){_mm256_srli_epi16(_mm256_unpacklo_epi8(zero, x), 1),
                   _mm256_srli_epi16(_mm256_unpackhi_epi8(zero, x), 1)};
}

static inline words luma_of(const uint8_t *p) {
    const __m256i x = load(p), high = _mm256_set1_epi16((int16_t)0xff00);
    return (words){_mm256_srli_epi16(_mm256_slli_epi16(x, 8), 1),
                   _mm256_srli_epi16(_mm256_and_si256(x, high), 1)};
}

static inline words chroma_of(const uint8_t *p) {
    const __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
    const __m256i grey = _mm256_set1_epi16(INT16_MIN);
    const __m256i y = _mm256_xor_si256(_mm256_slli_epi16(x, 8), grey);
    return (words){y, y};
}

static inline words chroma_of_pairs(const uint8_t *p, int second) {
    const __m256i x = load(p), high = _mm256_set1_epi16((int16_t)0xff00);
    const __m256i grey = _mm256_set1_epi16(INT16_MIN);
    const __m256i y = _mm256_xor_si256(
        second ? _mm256_and_si256(x, high) : _mm256_slli_epi16(x, 8), grey);
    return (words){y, y};
}

static inline words times(words x, int16_t c) {
    const __m256i by = _mm256_set1_epi16(c);
    return (words){_mm256_mulhrs_epi16(x.lo, by), _mm256_mulhrs_epi16(x.hi, by)};
}

static inline words plus(words x, words y) {
    return (words){_mm256_add_epi16(x.lo, y.lo), _mm256_add_epi16(x.hi, y.hi)};
}

static inline words plus_all(words x, int16_t c) {
    const __m256i y = _mm256_set1_epi16(c);
    return (words){_mm256_adds_epi16(x.lo, y), _mm256_adds_epi16(x.hi, y)};
}

static inline bytes narrowed(words x, int shift) {
    return _mm256_packus_epi16(_mm256_srai_epi16(x.lo, shift),
                               _mm256_srai_epi16(x.hi, shift));
}

static inline words pairs(const uint8_t *p, int8_t w0, int8_t w1) {
    const __m256i by = _mm256_set1_epi16((int16_t)((uint8_t)w0 | (uint8_t)w1 << 8));
    return (words){_mm256_maddubs_epi16(load(p), by),
                   _mm256_maddubs_epi16(load(p + 32), by)};
}

static inline words shifted(words x, int by) {
    return (words){_mm256_slli_epi16(x.lo, by), _mm256_slli_epi16(x.hi, by)};
}

static inline bytes narrowed_pairs(words x, int shift) {
    return _mm256_permute4x64_epi64(narrowed(x, shift), 0xD8);
}

#endif
