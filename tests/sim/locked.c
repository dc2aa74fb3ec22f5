/* locked.c - locked memory, when no address space is left.
 *
 * Usage: locked [advised]
 *
 * A slot's pages are lent to a real pipe.  The slot is locked (mlock), and the process
 * may not map another byte (RLIMIT_AS), so neither a second slot nor a plain madvise
 * can take the pages back.  They must be taken back all the same: the reader and the
 * slot both have the lent bytes.  If even that fails, an error is returned, and nothing
 * changes.
 *
 * With "advised", the pages are left to madvise, whose error is ignored: then the
 * reader sees bytes that were stored later, and the program fails.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "check.h"
#include "pool.h"

enum { PAGE = 4096, SLOT = 10 * PAGE, BEFORE = 'b', LATER = 'l' };

static int advise(void *at, size_t n) {
    madvise(at, n, MADV_DONTNEED);
    return 0;
}

static int refuse(void *at, size_t n) {
    (void)at, (void)n;
    return -ENOMEM;
}

/* After this call, the process can map no more memory. */
static void leave_no_address_space(void) {
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    struct rlimit limit;
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = pages * (rlim_t)sysconf(_SC_PAGESIZE);
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    CHECK(azc_sys.map(SLOT) == NULL);
}

static bool is_full_of(const char *data, char byte) {
    return data[0] == byte && memcmp(data, data + 1, SLOT - 1) == 0;
}

static void check_taken_back(int pipe_end, char *slot) {
    static char seen[SLOT];
    const void *last = NULL;
    CHECK(azc__pool_detach(slot, &last) >= SLOT && last == slot);
    CHECK(is_full_of(slot, BEFORE));
    memset(slot, LATER, SLOT);
    CHECK(read(pipe_end, seen, SLOT) == SLOT);
    CHECK(is_full_of(seen, BEFORE));
}

static void check_refused(char *slot) {
    const void *last = NULL;
    azc_sys.replace = refuse;
    CHECK(azc__pool_detach(slot, &last) == -ENOMEM && last == NULL);
    CHECK(is_full_of(slot, LATER));
}

int main(int argc, char **argv) {
    int ends[2];
    azc_id pool;
    if (argc > 1 && strcmp(argv[1], "advised") == 0) azc_sys.replace = advise;
    CHECK(azc_pool_open(SLOT, 2, &pool) == 0 && pipe(ends) == 0);
    char *slot = azc_pool_slot(pool, 1);
    memset(slot, BEFORE, SLOT);
    CHECK(mlock(slot, SLOT) == 0);
    struct iovec vec = {slot, SLOT};
    CHECK(azc_sys.lend(ends[1], NULL, &vec, 1) == SLOT);
    leave_no_address_space();
    check_taken_back(ends[0], slot);
    check_refused(slot);
    CHECK(azc_pool_close(pool) == 0);
    CHECK(azc_pool_close(pool) == -ESHUTDOWN);
    CHECK(azc_pool_slot(pool, 0) == NULL);
    return 0;
}
