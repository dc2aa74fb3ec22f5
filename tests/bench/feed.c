/* feed.c - a plain loop of blocking writes.
 *
 *   feed FD SIZE WARM COUNT CHUNK PATTERN
 *
 * Sends messages of SIZE bytes, which are the file PATTERN over and over, in pieces of
 * CHUNK bytes (0: whole).  Prints the CPU seconds that the last COUNT of them took.
 *
 * As a library it has the function feed, for one message.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"

long long feed(int fd, int is_socket, const char *data, size_t n, size_t chunk);

/* Returns how many calls it took, or -1. */
long long feed(int fd, int is_socket, const char *data, size_t n,
               size_t chunk) {
    long long calls = 0;
    while (n) {
        size_t most = chunk && chunk < n ? chunk : n;
        ssize_t r = is_socket ? send(fd, data, most, 0) : write(fd, data, most);
        if (r < 0) return -1;
        data += r;
        n -= (size_t)r;
        calls++;
    }
    return calls;
}

int main(int argc, char **argv) {
    if (argc < 7) return 2;
    int fd = atoi(argv[1]);
    size_t size = (size_t)atoll(argv[2]), chunk = (size_t)atoll(argv[5]);
    long long warm = atoll(argv[3]), count = atoll(argv[4]);
    struct stat st;
    FILE *file = fopen(argv[6], "rb");
    if (!file || fstat(fileno(file), &st) || fstat(fd, &st) < 0) return 2;
    int is_socket = S_ISSOCK(st.st_mode);
    fstat(fileno(file), &st);
    size_t period = (size_t)st.st_size;
    char *data = malloc(period);
    if (!data || fread(data, 1, period, file) != period) return 2;

    double before = 0;
    long long buffers = (long long)(period / size), calls = 0;
    for (long long i = 0; i < warm + count; i++) {
        if (i == warm) before = cpu(RUSAGE_SELF), calls = 0;
        const char *message = data + (size_t)(i % buffers) * size;
        long long r = feed(fd, is_socket, message, size, chunk);
        if (r < 0) {
            perror("feed");
            return 1;
        }
        calls += r;
    }
    printf("{\"who\": \"sender\", \"cpu\": %.6f, \"calls\": %lld}\n",
           cpu(RUSAGE_SELF) - before, calls);
    return 0;
}
