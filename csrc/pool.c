/* pool.c - memory that the kernel may be lent: the slots of frame pools.
 *
 * Lent pages (see lend.c) are looked at when the reader reads, not before.  So
 * only this memory is ever lent: it is ours alone, never goes back to malloc,
 * and each slot can be detached: the bytes move to other pages, in one step
 * and at the same address, while the reader keeps the old ones as they were.
 * Several operations may have the same slot: detached for one, it still has the
 * bytes of the others.
 * (Who stores into a slot while part of it is being cancelled, from another
 * thread, may lose what he stores.)
 *
 * A pool is found again by address, so that any view of a slot can be sent,
 * whatever Python object it comes from.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "channel.h"

enum { HUGE = 2 << 20, HUGE_FROM = 1 << 20 };

struct azc_pool {
    azc_pool *next;
    char *memory;     /* the slots */
    size_t slot_bytes, stride, bytes;
};

static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static azc_pool *pools;

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* Address space that begins at a huge page's boundary. */
static char *map_aligned(size_t n) {
    char *all = mmap(NULL, n + HUGE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return NULL;
    size_t before = (size_t)(-(uintptr_t)all % HUGE);
    if (before) munmap(all, before);
    if (HUGE - before) munmap(all + before + n, HUGE - before);
#ifdef MADV_HUGEPAGE
    madvise(all + before, n, MADV_HUGEPAGE);
#endif
    return all + before;
}

int azc_pool_open(size_t slot_bytes, int slots, azc_pool **out) {
    if (!slot_bytes || slots <= 0) return -EINVAL;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t stride = round_up(slot_bytes, slot_bytes < HUGE_FROM ? page : HUGE);
    if (stride < slot_bytes || stride > SIZE_MAX / 4 / (size_t)slots)
        return -ENOMEM;
    azc_pool *pool = azc_sys.allocate(sizeof *pool);
    if (!pool) return -ENOMEM;
    *pool = (azc_pool){.slot_bytes = slot_bytes,
                       .stride = stride,
                       .bytes = stride * (size_t)slots};
    pool->memory = map_aligned(pool->bytes);
    if (!pool->memory) {
        azc_sys.release(pool);
        return -ENOMEM;
    }
    pthread_mutex_lock(&pools_lock);
    pool->next = pools;
    pools = pool;
    pthread_mutex_unlock(&pools_lock);
    *out = pool;
    return 0;
}

void *azc_pool_slot(azc_pool *pool, int slot) {
    return pool->memory + pool->stride * (size_t)slot;
}

size_t azc_pool_bytes(azc_pool *pool) { return pool->bytes; }

void azc_pool_close(azc_pool *pool) {
    pthread_mutex_lock(&pools_lock);
    azc_pool **place = &pools;
    while (*place != pool) place = &(*place)->next;
    *place = pool->next;
    pthread_mutex_unlock(&pools_lock);
    munmap(pool->memory, pool->bytes); /* a pipe's pages live on, unchanged */
    azc_sys.release(pool);
}

/* The lock is held. */
static azc_pool *pool_of(const char *at) {
    azc_pool *pool = pools;
    while (pool && !(at >= pool->memory && at < pool->memory + pool->bytes))
        pool = pool->next;
    return pool;
}

static char *slot_of(const azc_pool *pool, const char *at) {
    size_t first = (size_t)(at - pool->memory);
    return pool->memory + first / pool->stride * pool->stride;
}

/* May these bytes be lent?  They must lie in one slot. */
bool azc__pool_lends(const void *from, size_t n) {
    const char *at = from;
    pthread_mutex_lock(&pools_lock);
    const azc_pool *pool = pool_of(at);
    bool lends = pool && at + n <= slot_of(pool, at) + pool->stride;
    pthread_mutex_unlock(&pools_lock);
    return lends;
}

#ifndef AZC_PORTABLE

/* The same, piece by piece: for a moment each of them is zeros.  The lock, which
 * is held, guards the piece. */
static void renew_slot(const azc_pool *pool, char *slot) {
    static char kept[64 << 10];
    for (size_t at = 0, n; at < pool->stride; at += n) {
        n = pool->stride - at;
        if (n > sizeof kept) n = sizeof kept;
        memcpy(kept, slot + at, n);
        madvise(slot + at, n, MADV_DONTNEED);
        memcpy(slot + at, kept, n);
    }
}

/* The same bytes in other pages, even if there is no room for a second slot. */
static void move_slot(const azc_pool *pool, char *slot) {
    char *fresh = map_aligned(pool->stride);
    if (fresh) {
        memcpy(fresh, slot, pool->slot_bytes);
        if (mremap(fresh, pool->stride, pool->stride,
                   MREMAP_MAYMOVE | MREMAP_FIXED, slot) != MAP_FAILED)
            return;
        munmap(fresh, pool->stride);
    }
    renew_slot(pool, slot);
}

/* Takes the slot that has this byte back from every reader: what is stored there
 * from now on nobody sees.  *slot is the one that was done last, and set to this.
 * Returns how many bytes were moved. */
size_t azc__pool_detach(const void *at, const void **slot) {
    size_t moved = 0;
    pthread_mutex_lock(&pools_lock);
    azc_pool *pool = pool_of(at);
    if (pool && slot_of(pool, at) != *slot) {
        move_slot(pool, slot_of(pool, at));
        *slot = slot_of(pool, at);
        moved = pool->stride;
    }
    pthread_mutex_unlock(&pools_lock);
    return moved;
}

#else

size_t azc__pool_detach(const void *at, const void **slot) {
    (void)at, (void)slot;
    return 0;
}

#endif

void azc__pool_fork_lock(void) { pthread_mutex_lock(&pools_lock); }

void azc__pool_fork_unlock(void) { pthread_mutex_unlock(&pools_lock); }
