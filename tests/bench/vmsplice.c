/* vmsplice.c - a plain loop of vmsplice from huge pages: the most a pipe can carry.
 *
 *   vmsplice SIZE BUFFERS WARM COUNT PATTERN COMMAND...
 *
 * Starts the command with a pipe of 1 MiB as its stdin and lends it frames of SIZE
 * bytes, which are the BUFFERS frames of the file PATTERN over and over.  It never asks
 * whether a frame was read before it lends the same memory again, and never changes
 * a frame.  Prints what the last COUNT frames took, until the command had ended.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

enum { HUGE = 2 << 20, PIPE = 1 << 20 };

/* Every frame begins at a huge page. */
static char *spread(const char *data, size_t size, int buffers, size_t stride) {
    size_t total = stride * (size_t)buffers + HUGE;
    char *memory =
        mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || !data) return NULL;
    memory += HUGE - (size_t)memory % HUGE;
    madvise(memory, stride * (size_t)buffers, MADV_HUGEPAGE);
    for (size_t i = 0; i < (size_t)buffers; i++)
        memcpy(memory + stride * i, data + size * i, size);
    return memory;
}

static int start(char **command) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC)) return -1;
    fcntl(ends[1], F_SETPIPE_SZ, PIPE); /* else it keeps its size */
    if (fork() == 0) {
        dup2(ends[0], 0);
        execvp(command[0], command);
        _exit(127);
    }
    close(ends[0]);
    return ends[1];
}

static int lend(int fd, char *data, size_t n) {
    while (n) {
        struct iovec vec = {data, n};
        ssize_t r = vmsplice(fd, &vec, 1, 0);
        if (r < 0 && errno != EINTR) return -1;
        if (r < 0) continue;
        data += r;
        n -= (size_t)r;
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 7) return 2;
    size_t size = (size_t)atoll(argv[1]), stride = (size + HUGE - 1) / HUGE * HUGE,
           period;
    int buffers = atoi(argv[2]), warm = atoi(argv[3]), count = atoi(argv[4]), status;
    char *memory = spread(load(argv[5], &period), size, buffers, stride);
    if (!memory) return 2;
    int fd = start(argv + 6);
    double since = seconds(), used = cpu(RUSAGE_SELF);
    for (int i = 0; i < warm + count; i++) {
        if (i == warm) since = seconds(), used = cpu(RUSAGE_SELF);
        if (lend(fd, memory + stride * (size_t)(i % buffers), size)) return 1;
    }
    used = cpu(RUSAGE_SELF) - used;
    close(fd);
    if (wait(&status) < 0 || status) return 1;
    printf("{\"who\": \"sender\", \"seconds\": %.9f, \"cpu\": %.6f, "
           "\"children_cpu\": %.6f}\n",
           seconds() - since, used, cpu(RUSAGE_CHILDREN));
    return 0;
}
