/* pools.c - csrc/pool.c in an address space of our own.
 *
 * Which pages a pool maps and unmaps; which addresses it lends; and how a slot moves to
 * other pages, even if there is no room for a second slot.  Whatever fails, the bytes
 * stay, and no page is left mapped.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernel.h"
#include "pool.h"
#include "sys.h"
#include "threads.h"

enum { PAGE = 4096, KIB = 1 << 10, MIB = 1 << 20, HUGE = 2 * MIB };
enum { SPACE = 64 * MIB, PAGES = SPACE / PAGE };
enum { PIECE = 16 * KIB }; /* bytes of a slot that may be zero for a moment */

static const char *what; /* the check that runs now */

#define CHECK(condition) SIM_CHECK(condition, "%s: not %s", what, #condition)

/* ---- an address space ---------------------------------------------------- */

static struct azc_sys before;
static char *arena; /* at a huge page's boundary */
static bool mapped[PAGES];
static size_t page_bytes; /* what the kernel replaces at once */
static int maps, maps_left, replaces, replaces_left;
static bool remaps;
static char *advised; /* the latest memory that is to be huge pages */
static size_t advised_bytes;

static size_t page_of(const void *at) {
    return (size_t)((const char *)at - arena) / PAGE;
}

static int count_mapped(const void *at, size_t n) {
    int count = 0;
    for (size_t i = page_of(at); i < page_of((const char *)at + n); i++)
        count += mapped[i];
    return count;
}

static bool is_mapped(const void *at, size_t n) {
    return count_mapped(at, n) == (int)(n / PAGE);
}

static int pages_in_use(void) { return count_mapped(arena, SPACE); }

static void set_mapped(const void *at, size_t n, bool now) {
    CHECK((size_t)((const char *)at - arena) % page_bytes == 0 && n % page_bytes == 0);
    for (size_t i = page_of(at); i < page_of((const char *)at + n); i++) {
        CHECK(mapped[i] != now);
        mapped[i] = now;
    }
}

/* Counts down, and is true at 0. */
static bool runs_out(int *left) {
    if (*left == 0) return true;
    if (*left > 0) --*left;
    return false;
}

/* Maps at the lowest free address. */
static void *map(size_t n) {
    char *at = arena;
    maps++;
    if (n > SPACE || runs_out(&maps_left)) return NULL;
    while (at + n <= arena + SPACE && count_mapped(at, n)) at += PAGE;
    CHECK(at + n <= arena + SPACE);
    set_mapped(at, n, true);
    return at;
}

static int unmap(void *at, size_t n) {
    set_mapped(at, n, false);
    return 0;
}

static void prefer_huge(void *at, size_t n) {
    CHECK(is_mapped(at, n));
    advised = at;
    advised_bytes = n;
}

static int remap(void *from, size_t n, void *to) {
    CHECK(is_mapped(from, n) && is_mapped(to, n));
    if (!remaps) return -ENOMEM;
    memcpy(to, from, n);
    set_mapped(from, n, false);
    return 0;
}

static size_t page_size(void) { return page_bytes; }

/* As madvise: the beginning must be a page's, and the last page is replaced as a whole. */
static int replace(void *at, size_t n) {
    CHECK((size_t)((char *)at - arena) % page_bytes == 0);
    CHECK(n <= PIECE || n == page_bytes);
    n = (n + page_bytes - 1) / page_bytes * page_bytes;
    CHECK(is_mapped(at, n));
    if (runs_out(&replaces_left)) return -ENOMEM;
    replaces++;
    memset(at, 0, n);
    return 0;
}

static void begin(const char *name) {
    what = name;
    sim_begin(1, false);
    kernel_begin();
    kernel_rates = (sim_rates){0};
    before = azc_sys;
    azc_sys.map = map;
    azc_sys.unmap = unmap;
    azc_sys.page_size = page_size;
    azc_sys.prefer_huge = prefer_huge;
    azc_sys.remap = remap;
    azc_sys.replace = replace;
    maps_left = replaces_left = -1;
    maps = replaces = 0;
    page_bytes = PAGE;
    remaps = true;
}

static void end(void) {
    CHECK(pages_in_use() == 0);
    sim_end();
    azc_sys = before;
    kernel_end();
}

/* ---- opening ------------------------------------------------------------- */

typedef struct size {
    size_t slot_bytes;
    int slots;
    size_t stride;
} size;

static const size SIZES[] = {
    {1, 1, PAGE},           {PAGE - 1, 2, PAGE},      {PAGE, 3, PAGE},
    {PAGE + 1, 2, 8192},    {MIB - PAGE, 1, 1044480}, {MIB - 1, 2, MIB},
    {MIB, 2, HUGE},         {HUGE - 1, 2, HUGE},      {HUGE, 3, HUGE},
    {HUGE + 1, 1, 4 * MIB},
};

static azc_id open_pool(size_t slot_bytes, int slots) {
    azc_id pool;
    CHECK(azc_pool_open(slot_bytes, slots, &pool) == 0);
    return pool;
}

static char *slot_of(azc_id pool, int slot) { return azc_pool_slot(pool, slot); }

static bool is_long(azc_id pool, int slots, size_t bytes) {
    return slot_of(pool, slots) == slot_of(pool, 0) + bytes;
}

static void check_size(const size *it) {
    const size_t bytes = it->stride * (size_t)it->slots;
    int used = pages_in_use();
    azc_id pool = open_pool(it->slot_bytes, it->slots);
    char *first = slot_of(pool, 0);
    CHECK((uintptr_t)first % HUGE == 0 && is_long(pool, it->slots, bytes));
    CHECK(is_mapped(first, bytes));
    CHECK(pages_in_use() - used == (int)(bytes / PAGE));
    CHECK(advised == first && advised_bytes == bytes);
    for (int i = 1; i < it->slots; i++)
        CHECK(slot_of(pool, i) == first + (size_t)i * it->stride);
    CHECK(azc_pool_close(pool) == 0 && pages_in_use() == used);
    CHECK(azc_pool_close(pool) == -ESHUTDOWN);
    CHECK(slot_of(pool, 0) == NULL && !azc__pool_lends(first, 1));
}

/* The pool starts at a huge page, wherever the system maps memory. */
static void check_sizes(void) {
    static const int pages_before[] = {0, 1, 511, 512};
    for (int i = 0; i < 4; i++) {
        begin("sizes");
        size_t taken = (size_t)pages_before[i] * PAGE;
        set_mapped(arena, taken, true);
        for (size_t k = 0; k < sizeof SIZES / sizeof *SIZES; k++) check_size(&SIZES[k]);
        set_mapped(arena, taken, false);
        end();
    }
}

static void check_refused(void) {
    const size sizes[] = {
        {0, 1, 0},
        {1, 0, 0},
        {1, -1, 0},
        {0, 0, 0},
        {SIZE_MAX, 1, 0},
        {SIZE_MAX - PAGE, 2, 0},
        {(size_t)1 << 40, 1 << 30, 0},
    };
    begin("pools that cannot be");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        azc_id pool = 99;
        int r = azc_pool_open(sizes[i].slot_bytes, sizes[i].slots, &pool);
        CHECK(r == (i < 4 ? -EINVAL : -ENOMEM) && pool == 99);
    }
    CHECK(maps == 0);
    end();
}

/* Each allocation of an open fails once. */
static void check_without_memory(void) {
    azc_id pool = 99;
    begin("a pool without memory");
    maps_left = 0;
    CHECK(azc_pool_open(PAGE, 2, &pool) == -ENOMEM);
    maps_left = -1;
    int k = 0, r;
    do {
        CHECK(pool == 99 && pages_in_use() == 0);
        kernel_allocations_left = k;
        r = azc_pool_open(PAGE, 2, &pool);
        CHECK(r == 0 || r == -ENOMEM);
    } while (r < 0 && ++k < 9);
    CHECK(k == 2); /* the pool itself, and its number */
    CHECK(azc_pool_close(pool) == 0);
    end();
}

/* ---- addresses that are lent --------------------------------------------- */

static void check_lends(char *first, size_t stride, int slots) {
    for (int i = 0; i < slots; i++) {
        char *slot = first + (size_t)i * stride;
        CHECK(azc__pool_lends(slot, 1) && azc__pool_lends(slot, stride));
        CHECK(azc__pool_lends(slot + stride - 1, 1));
        CHECK(azc__pool_lends(slot + 1, stride - 1));
        CHECK(!azc__pool_lends(slot + 1, stride));
        CHECK(!azc__pool_lends(slot + stride - 1, 2));
    }
}

/* Pools without a gap between them, closed in each order. */
static void check_neighbours(void) {
    static const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                    {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int i = 0; i < 6; i++) {
        azc_id pools[3];
        char *first[3];
        begin("neighbours");
        for (int k = 0; k < 3; k++) {
            pools[k] = open_pool(HUGE, 2);
            first[k] = slot_of(pools[k], 0);
            CHECK(!k || first[k] == first[k - 1] + 2 * HUGE);
        }
        for (int gone = 0; gone <= 3; gone++) {
            bool open[3] = {true, true, true};
            for (int k = 0; k < gone; k++) open[orders[i][k]] = false;
            for (int k = 0; k < 3; k++) {
                if (open[k]) check_lends(first[k], HUGE, 2);
                CHECK(azc__pool_lends(first[k], 1) == open[k]);
                CHECK(azc__pool_lends(first[k] + 2 * HUGE - 1, 1) == open[k]);
            }
            CHECK(!azc__pool_lends(first[0] - 1, 1));
            CHECK(!azc__pool_lends(first[2] + 2 * HUGE, 1));
            if (gone < 3) CHECK(azc_pool_close(pools[orders[i][gone]]) == 0);
        }
        end();
    }
}

/* ---- moves to other pages ------------------------------------------------ */

enum { SLOT = 150 * KIB, STRIDE = 152 * KIB, SLOT_PIECES = 10 };

static void fill_slots(azc_id pool) {
    for (uint64_t i = 0; i < 3; i++) pattern_fill(slot_of(pool, (int)i), i, 0, SLOT);
}

static bool are_as_before(azc_id pool) {
    for (uint64_t i = 0; i < 3; i++)
        if (!pattern_equals(slot_of(pool, (int)i), i, 0, SLOT)) return false;
    return true;
}

static azc_id begin_moving(const char *name) {
    begin(name);
    azc_id pool = open_pool(SLOT, 3);
    CHECK(is_long(pool, 3, 3 * STRIDE));
    fill_slots(pool);
    advised = NULL;
    return pool;
}

static void end_moving(azc_id pool) {
    CHECK(are_as_before(pool) && pages_in_use() == 3 * STRIDE / PAGE);
    CHECK(azc_pool_close(pool) == 0);
    end();
}

/* Any byte of a slot names it; the slot that moved last stays where it is. */
static void check_moved(azc_id pool) {
    const void *last = NULL;
    for (int i = 0; i < 3; i++) {
        char *slot = slot_of(pool, i);
        CHECK(azc__pool_detach(slot + (i == 1), &last) == STRIDE);
        CHECK(last == slot && are_as_before(pool));
        CHECK(azc__pool_detach(slot + STRIDE - 1, &last) == 0 && last == slot);
    }
    CHECK(azc__pool_detach(slot_of(pool, 0) - 1, &last) == 0);
    CHECK(azc__pool_detach(slot_of(pool, 0) + 3 * STRIDE, &last) == 0);
    CHECK(last == slot_of(pool, 2));
}

static void check_move(void) {
    azc_id pool = begin_moving("a slot moves");
    check_moved(pool);
    CHECK(maps == 4 && replaces == 0);
    end_moving(pool);
}

/* A slot's pages are replaced by fresh ones, piece by piece. */
static void check_renewed(const char *name, bool has_map) {
    azc_id pool = begin_moving(name);
    maps_left = has_map ? -1 : 0;
    remaps = false;
    check_moved(pool);
    CHECK(replaces == 3 * SLOT_PIECES);
    CHECK(advised == slot_of(pool, 2) && advised_bytes == STRIDE);
    end_moving(pool);
}

/* The reader may still look, so the slot does not count as moved. */
static void check_kept(int after) {
    const void *last = NULL;
    azc_id pool = begin_moving("a slot that is kept");
    remaps = false;
    replaces_left = after;
    CHECK(azc__pool_detach(slot_of(pool, 1), &last) == -ENOMEM);
    CHECK(last == NULL && replaces == after && are_as_before(pool));
    replaces_left = -1;
    CHECK(azc__pool_detach(slot_of(pool, 1), &last) == STRIDE);
    end_moving(pool);
}

/* Some ARM systems have pages of 64 KiB: each is kept in memory of its own. */
static void check_long_pages(size_t page, int allocations) {
    const size_t bytes = (SLOT + page - 1) / page * page;
    const int pages = (int)(bytes / page);
    const void *last = NULL;
    azc_id pool;
    begin("long pages");
    page_bytes = page;
    remaps = false;
    pool = open_pool(SLOT, 3);
    CHECK(is_long(pool, 3, 3 * bytes));
    fill_slots(pool);
    kernel_allocations_left = allocations;
    CHECK(azc__pool_detach(slot_of(pool, 1), &last) == (ssize_t)bytes);
    CHECK(replaces == pages && last == slot_of(pool, 1) && are_as_before(pool));
    if (allocations) {
        kernel_allocations_left = 1;
        replaces_left = 0;
        CHECK(azc__pool_detach(slot_of(pool, 2), &last) == -ENOMEM);
        CHECK(kernel_allocations_left == 0 && last == slot_of(pool, 1));
        replaces_left = -1;
        CHECK(azc__pool_detach(slot_of(pool, 2), &last) == -ENOMEM);
        CHECK(replaces == pages && last == slot_of(pool, 1) && are_as_before(pool));
    }
    kernel_allocations_left = -1;
    CHECK(azc_pool_close(pool) == 0);
    end();
}

static void map_arena(void) {
    char *all = mmap(NULL, SPACE + HUGE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) abort();
    arena = all + -(uintptr_t)all % HUGE;
}

int main(void) {
    map_arena();
    check_sizes();
    check_refused();
    check_without_memory();
    check_neighbours();
    check_move();
    check_renewed("no memory for a second slot", false);
    check_renewed("no other pages at the same address", true);
    for (int after = 0; after < SLOT_PIECES; after++) check_kept(after);
    check_long_pages(16 * KIB, 0);
    check_long_pages(64 * KIB, 1);
    return 0;
}
