/* feed.c - a plain loop of blocking writes, or of records into a ring.
 *
 *   feed TO SIZE WARM COUNT PATTERN [AT_ONCE]
 *
 * Sends messages of SIZE bytes, which are the file PATTERN over and over, to the ring
 * with the path TO or to the fd TO, AT_ONCE of them in each call.  Prints the CPU
 * seconds that the last COUNT of them took.
 */
#define _GNU_SOURCE
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "azc_ring.h"
#include "bench.h"

enum { FOREVER = -1 };

/* Returns 0 or -1. */
static int feed(int fd, int is_socket, const char *data, size_t n) {
    while (n) {
        ssize_t r = is_socket ? send(fd, data, n, 0) : write(fd, data, n);
        if (r < 0) return -1;
        data += r;
        n -= (size_t)r;
    }
    return 0;
}

static int connected(azc_ring *ring, const char *path) {
    int r;
    do /* perhaps nobody listens yet */
        r = azc_ring_connect(ring, path, AZC_RING_PRODUCER);
    while ((r == -ENOENT || r == -ECONNREFUSED) && usleep(1000) == 0);
    return r;
}

int main(int argc, char **argv) {
    if (argc < 6) return 2;
    azc_ring ring;
    int by_ring = argv[1][0] == '/', fd = by_ring ? -1 : atoi(argv[1]);
    size_t size = (size_t)atoll(argv[2]);
    long long warm = atoll(argv[3]), total = warm + atoll(argv[4]), n;
    long long at_once = argc > 6 ? atoll(argv[6]) : 1;
    struct stat st;
    size_t period = 0;
    char *data = load(argv[5], &period);
    if (!data) return 2;
    if (by_ring ? connected(&ring, argv[1]) : fstat(fd, &st)) return 2;

    double before = -1;
    long long buffers = (long long)(period / size);
    for (long long i = 0; i < total; i += n) {
        n = total - i < at_once ? total - i : at_once;
        if (i >= warm && before < 0) before = cpu(RUSAGE_SELF);
        const char *message = data + (size_t)(i % buffers) * size;
        if (by_ring ? azc_ring_send(&ring, message, size, 1, FOREVER)
                    : feed(fd, S_ISSOCK(st.st_mode), message, size * (size_t)n)) {
            perror("feed");
            return 1;
        }
    }
    if (by_ring) azc_ring_close(&ring);
    printf("{\"who\": \"sender\", \"cpu\": %.6f}\n", cpu(RUSAGE_SELF) - before);
    return 0;
}
