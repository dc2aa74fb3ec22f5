/* Reads frames (docs/pages/wire-format.md) from stdin and prints a line for each: a
 * whole reader in C, without any library.  For little-endian machines.
 *     cc -O2 -o frame_reader frame_reader.c && some_sender | ./frame_reader */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct header { /* 128 bytes, without a gap */
    char magic[4];
    uint8_t version, ndim;
    uint16_t flags;
    uint64_t sequence;
    int64_t timestamp_ns;
    uint64_t payload;
    uint32_t metadata;
    char dtype[4], pixel_format[16];
    uint64_t shape[8];
    uint32_t reserved, checksum;
};
enum { LIMIT = 256 << 20 };

static uint32_t crc32(const uint8_t *p, size_t n) {
    uint32_t c = ~0u;
    while (n--) {
        c ^= *p++;
        for (int k = 0; k < 8; k++) c = c >> 1 ^ (c & 1 ? 0xEDB88320 : 0);
    }
    return ~c;
}
static int is_text(const char *p, size_t n) { /* ASCII, then zero bytes only */
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)p[i] > 127 || (i && p[i] && !p[i - 1])) return 0;
    return 1;
}
static int is_dtype(const char *d) { /* byte order, letter, size */
    char item[] = {' ', d[1], d[2], d[3] ? d[3] : ' ', d[3] ? ' ' : 0, 0};
    return d[0] && strchr(d[2] == '1' && !d[3] ? "|" : "<>", d[0]) && d[1] && d[2] &&
           strstr(" b1 u1 u2 u4 u8 i1 i2 i4 i8 f2 f4 f8 c8 c16 ", item);
}
static int fail(const char *why) {
    fprintf(stderr, "%s\n", why);
    return 1;
}

int main(void) {
    struct header h;
    for (size_t n; (n = fread(&h, 1, sizeof h, stdin)) != 0;) {
        if (n < sizeof h) return fail("TruncatedFrame");
        if (memcmp(h.magic, "AZCF", 4)) return fail("WrongMagic");
        if (h.version != 1) return fail("UnknownVersion");
        int corrupt = crc32((uint8_t *)&h, 124) != h.checksum || h.ndim > 8 ||
                      !is_text(h.dtype, 4) || !is_text(h.pixel_format, 16) ||
                      !is_dtype(h.dtype);
        unsigned __int128 bytes = (unsigned)atoi((char[]){h.dtype[2], h.dtype[3], 0});
        unsigned __int128 most = bytes; /* with 1 in place of each 0 */
        for (int i = 0; i < 8 && !corrupt; i++) {
            if (i < h.ndim) bytes *= h.shape[i];
            if (h.shape[i]) most *= h.shape[i];
            corrupt = most >> 63 || (i >= h.ndim && h.shape[i]);
        }
        if (corrupt || bytes != h.payload) return fail("CorruptHeader");
        if (h.payload > LIMIT || h.metadata > 65536) return fail("FrameTooLarge");
        uint8_t *data = malloc((n = h.metadata + h.payload) + 1);
        if (!data || fread(data, 1, n, stdin) < n) return fail("TruncatedFrame");
        printf("%llu %lld %.4s %.16s %d %u %u ", (unsigned long long)h.sequence,
               (long long)h.timestamp_ns, h.dtype,
               *h.pixel_format ? h.pixel_format : "-", h.flags & 1, h.metadata,
               crc32(data + h.metadata, h.payload));
        for (int i = 0; i < h.ndim; i++)
            printf("%s%llu", i ? "x" : "", (unsigned long long)h.shape[i]);
        puts("");
        free(data);
    }
    return 0;
}
