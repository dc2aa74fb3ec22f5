/* feed.c - a plain loop of blocking writes.
 *
 *   feed FD SIZE WARM COUNT PATTERN
 *
 * Sends messages of SIZE bytes, which are the file PATTERN over and over.  Prints the
 * CPU seconds that the last COUNT of them took.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"

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

int main(int argc, char **argv) {
    if (argc < 6) return 2;
    int fd = atoi(argv[1]);
    size_t size = (size_t)atoll(argv[2]);
    long long warm = atoll(argv[3]), count = atoll(argv[4]);
    struct stat st;
    FILE *file = fopen(argv[5], "rb");
    if (!file || fstat(fileno(file), &st)) return 2;
    size_t period = (size_t)st.st_size;
    char *data = malloc(period);
    if (!data || fread(data, 1, period, file) != period) return 2;
    if (fstat(fd, &st) < 0) return 2;

    double before = 0;
    long long buffers = (long long)(period / size);
    for (long long i = 0; i < warm + count; i++) {
        if (i == warm) before = cpu(RUSAGE_SELF);
        const char *message = data + (size_t)(i % buffers) * size;
        if (feed(fd, S_ISSOCK(st.st_mode), message, size)) {
            perror("feed");
            return 1;
        }
    }
    printf("{\"who\": \"sender\", \"cpu\": %.6f}\n", cpu(RUSAGE_SELF) - before);
    return 0;
}
