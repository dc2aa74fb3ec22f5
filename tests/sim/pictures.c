/* pictures.c - pictures of many sizes: the code for this processor and plain C agree,
 * and no byte beyond a picture is read or written. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "yuv.h"

enum { MOST = 300 };

static uint64_t state;

static unsigned dice(unsigned sides) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(state >> 33) % sides;
}

/* BT.709 limited, or the largest possible coefficients. */
static azc_yuv some(void) {
    azc_yuv how = {.width = 1 + (int)dice(MOST),
                   .height = 1 + (int)dice(9),
                   .pixel_bytes = 3 + (int)dice(2),
                   .blue_first = (int)dice(2),
                   .interleaved = (int)dice(2),
                   .left = (int)dice(2),
                   .black = 16,
                   .to_y = {5983, 20127, 2032},
                   .to_u = {-3298, -11094, 14392},
                   .to_v = {14392, -13073, -1319},
                   .gain = 9539,
                   .from_black = -580,
                   .v_to_red = 7343,
                   .u_to_green = -873,
                   .v_to_green = -2183,
                   .u_to_blue = 8652};
    if (dice(2) == 0) {
        how.black = 0;
        how.from_black = 16;
        how.to_u[0] = how.to_v[2] = 0;
        how.to_u[1] = how.to_v[1] = -16384;
        how.to_u[2] = how.to_v[0] = 16384;
    }
    return how;
}

static size_t yuv_bytes(const azc_yuv *how) {
    const size_t w = (size_t)how->width, h = (size_t)how->height;
    return w * h + 2 * ((w + 1) / 2) * ((h + 1) / 2);
}

/* Memory of exactly this size, so that a sanitizer sees its ends, with random bytes. */
static uint8_t *filled(size_t n) {
    uint8_t *memory = malloc(n);
    if (memory == NULL) exit(2);
    const unsigned extreme = dice(3);
    for (size_t i = 0; i < n; i++)
        memory[i] = (uint8_t)(extreme == 0 ? 255 * dice(2) : dice(256));
    return memory;
}

static int differ(const azc_yuv *how, const char *what) {
    printf("%s differs: %d x %d, %d bytes a pixel, %d %d %d\n", what, how->width,
           how->height, how->pixel_bytes, how->blue_first, how->interleaved, how->left);
    return 1;
}

int main(int argc, char **argv) {
    const long rounds = argc > 1 ? atol(argv[1]) : 2000;
    printf("%s\n", azc_yuv_kind(0));
    for (long round = 0; round < rounds; round++) {
        state = (uint64_t)round * 2 + 1;
        const azc_yuv how = some();
        const size_t stride = (size_t)how.width * (size_t)how.pixel_bytes;
        const size_t n = stride * (size_t)how.height, m = yuv_bytes(&how);
        uint8_t *rgb[2], *yuv[2], *from = filled(n), *back = filled(m);
        for (int plain = 0; plain < 2; plain++) {
            azc_yuv_kind(plain);
            rgb[plain] = malloc(n);
            yuv[plain] = malloc(m);
            if (azc_rgb_to_yuv(&how, from, (ptrdiff_t)stride, yuv[plain]) ||
                azc_yuv_to_rgb(&how, back, rgb[plain], (ptrdiff_t)stride))
                return 2;
        }
        azc_yuv_kind(-1);
        if (memcmp(yuv[0], yuv[1], m)) return differ(&how, "YUV");
        if (memcmp(rgb[0], rgb[1], n)) return differ(&how, "RGB");
        for (int i = 0; i < 2; i++) free(rgb[i]), free(yuv[i]);
        free(from), free(back);
    }
    return 0;
}
