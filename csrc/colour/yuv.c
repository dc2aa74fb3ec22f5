/* yuv.c - whole pictures, made from rows.h's blocks.
 *
 * A row's last pixels are seldom a whole block.  They go through a block of our own, so
 * that nothing is read or written beyond the caller's memory.
 */
#include "yuv.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "rows.h"

/* Rows of channels lie in our own memory, with room before the first sample. */
enum { BEFORE = 32, BEHIND = 2 * BLOCK };

static const azc_rows *_Atomic rows;

static const azc_rows *best(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2")) return &azc__rows_avx2;
#elif defined(__aarch64__)
    return &azc__rows_neon;
#endif
    return &azc__rows_plain;
}

__attribute__((constructor)) static void choose(void) { rows = best(); }

const char *azc_yuv_kind(int plain) {
    if (plain != 0) rows = plain > 0 ? &azc__rows_plain : best();
    return rows->name;
}

static bool is_picture(const azc_yuv *how) {
    const int most = 1 << 15;
    return how->width > 0 && how->width <= most && how->height > 0 &&
           how->height <= most && (how->pixel_bytes == 3 || how->pixel_bytes == 4);
}

static int halved(int n) { return (n + 1) / 2; }

/* ---- to YUV ---------------------------------------------------------------- */

static void luma_row(const azc_yuv *how, const uint8_t *rgb, uint8_t *y,
                     uint8_t *const channels[3]) {
    const int whole = how->width / BLOCK, done = whole * BLOCK;
    const int left = how->width - done;
    rows->luma(how, rgb, whole, y, channels);
    if (left > 0) {
        uint8_t pixels[4 * BLOCK] = {0}, samples[BLOCK];
        uint8_t *const behind[3] = {channels[0] + done, channels[1] + done,
                                    channels[2] + done};
        memcpy(pixels, rgb + (size_t)done * how->pixel_bytes,
               (size_t)left * how->pixel_bytes);
        rows->luma(how, pixels, 1, samples, behind);
        memcpy(y + done, samples, left);
    }
    for (int c = 0; c < 3; c++) { /* repeat the picture's edges */
        channels[c][-1] = channels[c][0];
        channels[c][how->width] = channels[c][how->width - 1];
    }
}

static void chroma_row(const azc_yuv *how, uint8_t *const first[3],
                       uint8_t *const second[3], uint8_t *u, uint8_t *v) {
    const int samples = halved(how->width), step = how->interleaved ? 2 : 1;
    const int whole = samples / BLOCK, done = whole * BLOCK;
    const int left = samples - done;
    rows->chroma(how, first, second, whole, u, v);
    if (left > 0) {
        uint8_t of_u[2 * BLOCK], of_v[BLOCK];
        uint8_t *const one[3] = {first[0] + 2 * done, first[1] + 2 * done,
                                 first[2] + 2 * done};
        uint8_t *const other[3] = {second[0] + 2 * done, second[1] + 2 * done,
                                   second[2] + 2 * done};
        rows->chroma(how, one, other, 1, of_u, of_v);
        memcpy(u + (size_t)step * done, of_u, (size_t)step * left);
        if (!how->interleaved) memcpy(v + done, of_v, left);
    }
}

int azc_rgb_to_yuv(const azc_yuv *how, const void *rgb, ptrdiff_t stride, void *yuv) {
    if (!is_picture(how)) return -EINVAL;
    const int w = how->width, h = how->height;
    const size_t room = BEFORE + (size_t)w + BEHIND;
    uint8_t *memory = calloc(6, room);
    if (memory == NULL) return -ENOMEM;
    uint8_t *channels[2][3];
    for (int i = 0; i < 6; i++) channels[i / 3][i % 3] = memory + i * room + BEFORE;

    const uint8_t *from = rgb;
    uint8_t *y = yuv, *u = y + (size_t)w * h;
    const size_t samples = (size_t)halved(w), step = how->interleaved ? 2 : 1;
    uint8_t *v = u + samples * halved(h);
    for (int row = 0; row < h; row += 2) {
        const bool two = row + 1 < h;
        luma_row(how, from + row * stride, y + (size_t)row * w, channels[0]);
        if (two)
            luma_row(how, from + (row + 1) * stride, y + (size_t)(row + 1) * w,
                     channels[1]);
        chroma_row(how, channels[0], channels[two ? 1 : 0],
                   u + row / 2 * samples * step, v + row / 2 * samples);
    }
    free(memory);
    return 0;
}

/* ---- to RGB ---------------------------------------------------------------- */

static void rgb_row(const azc_yuv *how, const uint8_t *y, const uint8_t *u,
                    const uint8_t *v, uint8_t *rgb) {
    const int whole = how->width / BLOCK, done = whole * BLOCK;
    const int left = how->width - done;
    const size_t step = how->interleaved ? 2 : 1;
    rows->rgb(how, y, u, v, whole, rgb);
    if (left > 0) {
        uint8_t of_y[BLOCK] = {0}, of_u[BLOCK] = {0}, of_v[BLOCK] = {0};
        uint8_t pixels[4 * BLOCK];
        memcpy(of_y, y + done, left);
        memcpy(of_u, u + step * done / 2, step * halved(left));
        if (!how->interleaved) memcpy(of_v, v + done / 2, halved(left));
        rows->rgb(how, of_y, of_u, of_v, 1, pixels);
        memcpy(rgb + (size_t)done * how->pixel_bytes, pixels,
               (size_t)left * how->pixel_bytes);
    }
}

void azc_yuv_then_rgb(void *with) {
    const azc_yuv_job *job = with;
    ptrdiff_t stride = (ptrdiff_t)job->how.width * job->how.pixel_bytes;
    azc_yuv_to_rgb(&job->how, job->yuv, job->rgb, stride);
}

int azc_yuv_to_rgb(const azc_yuv *how, const void *yuv, void *rgb, ptrdiff_t stride) {
    if (!is_picture(how)) return -EINVAL;
    const size_t w = (size_t)how->width, h = (size_t)how->height;
    const size_t samples = (size_t)halved(how->width);
    const size_t step = how->interleaved ? 2 : 1;
    const uint8_t *y = yuv, *u = y + w * h;
    const uint8_t *v = u + samples * halved(how->height);
    uint8_t *to = rgb;
    for (size_t row = 0; row < h; row++)
        rgb_row(how, y + row * w, u + row / 2 * samples * step, v + row / 2 * samples,
                to + (ptrdiff_t)row * stride);
    return 0;
}
