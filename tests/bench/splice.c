/* splice.c - what relay is measured against: stdin to FD without a copy in user space.
 *
 *   splice FD TOTAL
 *
 * Moves TOTAL bytes: by sendfile from a file to a socket, else by splice.  Prints the
 * CPU seconds that it took.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"

enum { MOST = 1 << 20 }; /* bytes a call */

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    int fd = atoi(argv[1]);
    long long left = atoll(argv[2]);
    struct stat in, out;
    if (fstat(0, &in) || fstat(fd, &out)) return 2;
    int by_sendfile = S_ISREG(in.st_mode) && S_ISSOCK(out.st_mode);

    while (left) {
        size_t n = left < MOST ? (size_t)left : MOST;
        ssize_t r = by_sendfile ? sendfile(fd, 0, NULL, n)
                                : splice(0, NULL, fd, NULL, n, SPLICE_F_MOVE);
        if (r <= 0) {
            perror("splice");
            return 1;
        }
        left -= r;
    }
    printf("{\"who\": \"sender\", \"cpu\": %.6f}\n", cpu(RUSAGE_SELF));
    return 0;
}
