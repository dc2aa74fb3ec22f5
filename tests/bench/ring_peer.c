/* The C sides of bench ring, called through ctypes: a producer by a ring of ours, and
 * one by fds.  Each sends `count` messages of a pattern of `buffers`, and returns 0 or
 * -errno. */
#define _GNU_SOURCE
#include "azc_ring.h"

enum { FOREVER = -1 };

int produce_ring(const char *path, const char *pattern, size_t size,
                 size_t buffers, size_t count) {
    azc_ring ring;
    int r = azc_ring_connect(&ring, path, AZC_RING_PRODUCER);
    if (r < 0) return r;
    for (size_t i = 0; i < count && r == 0; i++)
        r = azc_ring_send(&ring, pattern + i % buffers * size, size, 1,
                          FOREVER);
    azc_ring_close(&ring);
    return r;
}

static int write_all(int fd, const char *data, size_t n) {
    while (n) {
        ssize_t written = write(fd, data, n);
        if (written < 0 && errno != EINTR) return -errno;
        if (written > 0) data += written, n -= (size_t)written;
    }
    return 0;
}

/* As many at once as the pattern has. */
int produce_fd(int fd, const char *pattern, size_t size, size_t buffers,
               size_t count) {
    int r = 0;
    for (size_t n; count && r == 0; count -= n) {
        n = count < buffers ? count : buffers;
        r = write_all(fd, pattern, n * size);
    }
    return r;
}
