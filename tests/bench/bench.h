/* bench.h - the clocks of the C programs, and what they send. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

static inline double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* CPU seconds so far, of this process or of its children. */
static inline double cpu(int who) {
    struct rusage use;
    getrusage(who, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1e-6;
}

/* All of a file, or NULL. */
static inline char *load(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) return NULL;
    *size = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*size);
    if (data && fread(data, 1, *size, file) != *size) return NULL;
    fclose(file);
    return data;
}
