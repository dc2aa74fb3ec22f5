/* sink.c - a receiver: reads stdin to its end, always into the same memory, and prints
 * one line of JSON.
 *
 *   sink WARM TOTAL READ FILL [PATTERN]
 *
 * With FILL, a read goes on where the last one ended until READ bytes are there.
 * The clock runs from the arrival of byte WARM to that of byte TOTAL.  With the file
 * PATTERN every byte is compared: the stream must be that file, over and over.
 */
#include <string.h>
#include <unistd.h>

#include "bench.h"

/* The offset of the first byte that differs from the pattern, or -1. */
static long long first_wrong(const char *data, size_t n, long long at,
                             const char *pattern, size_t period) {
    size_t done = 0;
    while (done < n) {
        size_t from = (size_t)((at + (long long)done) % (long long)period);
        size_t len = period - from < n - done ? period - from : n - done;
        if (memcmp(data + done, pattern + from, len)) {
            while (data[done] == pattern[from++]) done++;
            return at + (long long)done;
        }
        done += len;
    }
    return -1;
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    long long warm = atoll(argv[1]), total = atoll(argv[2]);
    size_t size = (size_t)atoll(argv[3]), fill = (size_t)atoi(argv[4]), at = 0,
           period = 0;
    char *data = malloc(size), *pattern = NULL;
    if (argc > 5 && !(pattern = load(argv[5], &period))) return 2;
    if (!data) return 2;
    memset(data, 0, size);

    long long bytes = 0, wrong = -1;
    double start = seconds(), end = start, cpu_start = cpu(RUSAGE_SELF),
           cpu_end = cpu_start;
    ssize_t n;
    while ((n = read(0, data + at, size - at)) > 0) {
        if (pattern && wrong < 0)
            wrong = first_wrong(data + at, (size_t)n, bytes, pattern, period);
        if (bytes < warm && bytes + n >= warm)
            start = seconds(), cpu_start = cpu(RUSAGE_SELF);
        if (bytes < total && bytes + n >= total)
            end = seconds(), cpu_end = cpu(RUSAGE_SELF);
        bytes += n;
        at = fill ? (at + (size_t)n) % size : 0;
    }
    printf("{\"who\": \"sink\", \"seconds\": %.9f, \"cpu\": %.6f, "
           "\"bytes\": %lld, \"wrong\": %lld}\n",
           end - start, cpu_end - cpu_start, bytes, wrong);
    return n < 0;
}
