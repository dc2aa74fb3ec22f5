/* feed.c - a plain blocking write loop: what C reaches without any ado.
 *
 *   feed FD SIZE WARM COUNT CHUNK PATTERN [pause=BYTES] [turn=US] [thread=US]
 *
 * Sends messages of SIZE bytes, which are the file PATTERN over and over, in pieces of
 * CHUNK bytes (0: whole).  Prints the CPU seconds that the last COUNT of them took.
 *
 * What the loop would lose by being part of a program:
 *   pause   one short system call after so many bytes each
 *   turn    so many microseconds of computing between two messages
 *   thread  so many of another thread's, which each message wakes
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static double cpu(void) {
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1e-6;
}

static long long calls;
static size_t pause_after, since_pause;
static double turn_us, thread_us;
static int bell[2];

static void compute(double us) {
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((double)(now.tv_sec - start.tv_sec) * 1e6 +
                 (double)(now.tv_nsec - start.tv_nsec) * 1e-3 <
             us);
}

static void *compute_when_rung(void *unused) {
    char byte;
    while (read(bell[0], &byte, 1) == 1) compute(thread_us);
    return unused;
}

static bool start_thread(void) {
    pthread_t thread;
    return pipe(bell) == 0 && !pthread_create(&thread, NULL, compute_when_rung, NULL);
}

static bool between_messages(void) {
    if (turn_us > 0) compute(turn_us);
    return thread_us <= 0 || write(bell[1], "", 1) == 1;
}

static bool option(const char *text) {
    double number;
    if (sscanf(text, "pause=%lf", &number) == 1)
        pause_after = (size_t)number;
    else if (sscanf(text, "turn=%lf", &number) == 1)
        turn_us = number;
    else if (sscanf(text, "thread=%lf", &number) == 1)
        thread_us = number;
    else
        return false;
    return true;
}

static void pause_if_due(int fd, size_t sent) {
    int unread;
    since_pause += sent;
    if (!pause_after || since_pause < pause_after) return;
    since_pause = 0;
    ioctl(fd, FIONREAD, &unread);
    calls++;
}

static int feed(int fd, int is_socket, const char *data, size_t n, size_t chunk) {
    while (n) {
        size_t most = chunk && chunk < n ? chunk : n;
        ssize_t r = is_socket ? send(fd, data, most, 0) : write(fd, data, most);
        if (r < 0) return -1;
        data += r;
        n -= (size_t)r;
        calls++;
        pause_if_due(fd, (size_t)r);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 7) return 2;
    for (int i = 7; i < argc; i++)
        if (!option(argv[i])) return 2;
    if (thread_us > 0 && !start_thread()) return 2;
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
    long long buffers = (long long)(period / size);
    for (long long i = 0; i < warm + count; i++) {
        if (i == warm) before = cpu(), calls = 0;
        if (feed(fd, is_socket, data + (size_t)(i % buffers) * size, size, chunk)) {
            perror("feed");
            return 1;
        }
        if (!between_messages()) return 1;
    }
    printf("{\"who\": \"sender\", \"cpu\": %.6f, \"calls\": %lld}\n",
           cpu() - before, calls);
    return 0;
}
