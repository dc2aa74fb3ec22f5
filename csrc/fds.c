/* fds.c - open files that travel with bytes: their duplicates, and their end. */
#include <errno.h>

#include "sys.h"

int azc_dup_fds(azc_fds *fds, const int *from, int count) {
    if (count > AZC_MOST_FDS) return -EINVAL;
    for (int i = 0; i < count; i++) {
        int fd = azc_sys.dup(from[i]);
        if (fd < 0) {
            azc_close_fds(fds);
            return fd;
        }
        fds->fds[fds->count++] = fd;
    }
    return 0;
}

void azc_close_fds(azc_fds *fds) {
    while (fds->count > 0) azc_sys.close(fds->fds[--fds->count]);
}
