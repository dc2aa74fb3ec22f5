/* pool.c - the slots of frame pools, found by address; see pool.h. */
#include "pool.h"

#include <errno.h>

#include "handle.h"

enum { HUGE = 2 << 20, HUGE_FROM = 1 << 20 };

typedef struct azc_pool {
    azc_id id;
    char *memory; /* the slots */
    size_t slot_bytes, stride, bytes;
} azc_pool;

/* ---- opening and closing ------------------------------------------------ */

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* Address space that begins at a huge page's boundary. */
static char *map_aligned(size_t n) {
    char *all = azc_sys.map(n + HUGE);
    if (!all) return NULL;
    size_t before = (size_t)(-(uintptr_t)all % HUGE);
    if (before) azc_sys.unmap(all, before);
    azc_sys.unmap(all + before + n, HUGE - before);
    azc_sys.prefer_huge(all + before, n);
    return all + before;
}

int azc_pool_open(size_t slot_bytes, int slots, azc_id *out) {
    if (!slot_bytes || slots <= 0) return -EINVAL;
    size_t page = azc_sys.page_size();
    size_t stride = round_up(slot_bytes, slot_bytes < HUGE_FROM ? page : HUGE);
    if (stride < slot_bytes || stride > SIZE_MAX / 4 / (size_t)slots) return -ENOMEM;
    azc_pool *pool = azc_sys.allocate(sizeof *pool);
    if (!pool) return -ENOMEM;
    *pool = (azc_pool){
        .slot_bytes = slot_bytes, .stride = stride, .bytes = stride * (size_t)slots};
    pool->memory = map_aligned(pool->bytes);
    pool->id = pool->memory ? azc__handle_new(&azc__pools, NULL) : 0;
    if (!pool->id) {
        if (pool->memory) azc_sys.unmap(pool->memory, pool->bytes);
        azc_sys.release(pool);
        return -ENOMEM;
    }
    *out = pool->id;
    azc__handle_set(&azc__pools, pool->id, pool);
    return 0;
}

void *azc_pool_slot(azc_id id, int slot) {
    azc_pool *pool = azc__handle_lock(&azc__pools, id);
    if (!pool) return NULL;
    char *at = pool->memory + pool->stride * (size_t)slot;
    azc__handle_unlock(&azc__pools, id);
    return at;
}

int azc_exchange(uint64_t *at, uint64_t from, uint64_t to) {
    return __sync_bool_compare_and_swap(at, from, to);
}

uint64_t azc_look(const uint64_t *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }

int azc_pool_close(azc_id id) {
    azc_pool *pool = azc__handle_lock(&azc__pools, id);
    if (!pool) return azc__handle_why(&azc__pools, id);
    azc__handle_drop(&azc__pools, id);
    azc_sys.unmap(pool->memory, pool->bytes); /* (a pipe keeps lent pages) */
    azc_sys.release(pool);
    return 0;
}

/* ---- lending ------------------------------------------------------------ */

/* Returns the pool that has this byte, with its lock held; or NULL. */
static azc_pool *pool_of(const char *at) {
    azc_pool *pool;
    for (uint32_t i = 0; (pool = azc__handle_next(&azc__pools, &i));) {
        if (at >= pool->memory && at < pool->memory + pool->bytes) return pool;
        azc__handle_unlock(&azc__pools, pool->id);
    }
    return NULL;
}

static char *slot_of(const azc_pool *pool, const char *at) {
    size_t first = (size_t)(at - pool->memory);
    return pool->memory + first / pool->stride * pool->stride;
}

bool azc__pool_lends(const void *from, size_t n) {
    const char *at = from;
    const azc_pool *pool = pool_of(at);
    if (!pool) return false;
    bool lends = at + n <= slot_of(pool, at) + pool->stride;
    azc__handle_unlock(&azc__pools, pool->id);
    return lends;
}

/* Each piece is zeros for a moment. */
static int renew_pieces(char *slot, size_t bytes, char *kept, size_t piece) {
    for (size_t at = 0, n; at < bytes; at += n) {
        n = bytes - at;
        if (n > piece) n = piece;
        memcpy(kept, slot + at, n);
        int r = azc_sys.replace(slot + at, n);
        if (r < 0) return r;
        memcpy(slot + at, kept, n);
    }
    azc_sys.prefer_huge(slot, bytes);
    return 0;
}

/* If no second slot can take its place: renews the slot piece by piece.  The kernel
 * replaces whole pages, which have 64 KiB on some ARM systems: a smaller piece would
 * lose the rest of its page. */
static int renew_slot(const azc_pool *pool, char *slot) {
    char few[16 << 10];
    size_t page = azc_sys.page_size();
    if (page <= sizeof few) return renew_pieces(slot, pool->stride, few, sizeof few);
    char *kept = azc_sys.allocate(page);
    if (!kept) return -ENOMEM;
    int r = renew_pieces(slot, pool->stride, kept, page);
    azc_sys.release(kept);
    return r;
}

/* Moves the slot's bytes to other pages. */
static int move_slot(const azc_pool *pool, char *slot) {
    char *fresh = azc_sys.remap ? map_aligned(pool->stride) : NULL;
    if (fresh) {
        memcpy(fresh, slot, pool->slot_bytes);
        if (azc_sys.remap(fresh, pool->stride, slot) == 0) return 0;
        azc_sys.unmap(fresh, pool->stride);
    }
    return renew_slot(pool, slot);
}

ssize_t azc__pool_detach(const void *at, const void **slot) {
    ssize_t moved = 0;
    azc_pool *pool = pool_of(at);
    if (!pool) return 0;
    char *ours = slot_of(pool, at);
    if (ours != *slot) {
        int r = move_slot(pool, ours);
        moved = r < 0 ? r : (ssize_t)pool->stride;
        if (r == 0) *slot = ours;
    }
    azc__handle_unlock(&azc__pools, pool->id);
    return moved;
}
