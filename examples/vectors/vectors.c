/* Vectors of 256 numbers from C to the Python program beside this file.
 *     cc -O2 -I../../csrc vectors.c -o vectors
 *     ./vectors ring PATH COUNT | unix PATH COUNT | pipe COUNT
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "azc_ring.h"

enum { LENGTH = 256, BYTES = LENGTH * sizeof(float) };

/* Fills in the vector with this number.  Its mean is exactly number % 1000 + 127.5. */
static void fill(float *vector, long number) {
    float first = (float)(number % 1000);
    for (int i = 0; i < LENGTH; i++) vector[i] = first + (float)i;
}

static int send_through_ring(const char *path, long count) {
    azc_ring ring;
    int r = azc_ring_connect(&ring, path, AZC_RING_PRODUCER);
    if (r < 0) return r;
    for (long i = 0; i < count && r == 0; i++) {
        void *vector;
        r = azc_ring_reserve_wait(&ring, BYTES, &vector, -1);
        if (r == 0) fill(vector, i);
        if (r == 0) r = azc_ring_commit(&ring, BYTES, 1);
    }
    azc_ring_close(&ring);
    return r;
}

static int write_all(FILE *output, long count) {
    static char buffer[256 * BYTES];
    float vector[LENGTH];
    if (!output) return -errno;
    setvbuf(output, buffer, _IOFBF, sizeof buffer);
    for (long i = 0; i < count; i++) {
        fill(vector, i);
        if (fwrite(vector, BYTES, 1, output) != 1) return -errno;
    }
    return fclose(output) == 0 ? 0 : -errno;
}

static FILE *connected(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0) return NULL;
    return fdopen(fd, "w");
}

int main(int argc, char **argv) {
    const char *way = argc > 2 ? argv[1] : "";
    long count = atol(argv[argc - 1]);
    int r = -EINVAL;
    if (strcmp(way, "ring") == 0 && argc == 4)
        r = send_through_ring(argv[2], count);
    else if (strcmp(way, "unix") == 0 && argc == 4)
        r = write_all(connected(argv[2]), count);
    else if (strcmp(way, "pipe") == 0 && argc == 3)
        r = write_all(stdout, count);
    else
        fputs("usage: vectors ring PATH COUNT | unix PATH COUNT | pipe COUNT\n",
              stderr);
    if (r < 0) fprintf(stderr, "vectors: %s\n", strerror(-r));
    return r < 0;
}
