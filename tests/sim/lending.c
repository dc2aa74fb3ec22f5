/* lending.c - simulated pages and loans; see lending.h. */
#include "lending.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernel.h"
#include "threads.h"

enum {
    ARENA = 128 << 20, /* plus a huge page, to align it */
    HUGE = 2 << 20,
    RANGES = 32,
    STORED_LATER = 0xdb, /* what a caller stores when its memory is free again */
};

typedef struct range {
    char *from;
    size_t n;
} range;

uint64_t sim_lent, sim_taken_back;
void (*lending_on_lend)(const void *from);
void (*lending_on_replace)(const void *from, size_t n);

static struct {
    char *arena; /* maps are made from here on, one above the other */
    size_t used;
    range mapped[RANGES];
} pages;

/* ---- loans ----------------------------------------------------------- */

static void copy_loan(struct sim_flow *flow, sim_loan *loan, size_t n) {
    if (loan->copied || !n) return;
    unsigned char *to = flow->log + loan->at;
    memcpy(to, loan->from, n);
    SIM_CHECK(!memchr(to, STORED_LATER, n),
              "the reader of lent pages sees what was stored later");
}

/* Makes room for one more loan. */
static void make_room(sim_flow *flow) {
    if (flow->loans_count < flow->loans_room) return;
    flow->loans_room = 2 * flow->loans_room + 8;
    flow->loans = realloc(flow->loans, (size_t)flow->loans_room * sizeof *flow->loans);
    if (!flow->loans) abort();
}

void lending_add(struct sim_flow *flow, const char *from, size_t n) {
    make_room(flow);
    sim_loan *loan = &flow->loans[flow->loans_count++];
    *loan = (sim_loan){.from = from, .at = flow->moved, .n = n};
    sim_lent += n;
    lending_on_lend(from);
    if (!sim_chance(100)) return;
    copy_loan(flow, loan, n);
    loan->copied = true;
}

/* Copies as much of a loan as has been read. */
static void look(sim_flow *flow, sim_loan *loan) {
    if (loan->at >= flow->read) return;
    uint64_t n = flow->read - loan->at;
    if (n > loan->n) n = loan->n;
    copy_loan(flow, loan, n);
    loan->from += n;
    loan->at += n;
    loan->n -= n;
}

void lending_look(sim_flow *flow) {
    int kept = 0;
    for (int i = 0; i < flow->loans_count; i++) {
        look(flow, &flow->loans[i]);
        if (flow->loans[i].n) flow->loans[kept++] = flow->loans[i];
    }
    flow->loans_count = kept;
}

static bool overlaps(const sim_loan *loan, const char *from, size_t n) {
    return !loan->gone && loan->from < from + n && from < loan->from + loan->n;
}

static sim_loan *find_loan(sim_flow *flow, const char *from, size_t n) {
    for (int i = 0; i < flow->loans_count; i++)
        if (overlaps(&flow->loans[i], from, n)) return &flow->loans[i];
    return NULL;
}

uint64_t lending_unread(sim_flow *flow, const void *from, size_t n) {
    uint64_t unread = 0;
    for (int i = 0; i < flow->loans_count; i++)
        if (overlaps(&flow->loans[i], from, n)) unread += flow->loans[i].n;
    return unread;
}

/* Makes the first n bytes of a loan a loan of their own. */
static sim_loan *split(sim_flow *flow, sim_loan *loan, size_t n) {
    ptrdiff_t i = loan - flow->loans;
    make_room(flow);
    loan = flow->loans + i;
    memmove(loan + 1, loan, (size_t)(flow->loans_count++ - i) * sizeof *loan);
    loan[0].n = n;
    loan[1].from += n;
    loan[1].at += n;
    loan[1].n -= n;
    return loan;
}

/* Splits a loan at the ends of these pages; returns its part there, or NULL. */
static sim_loan *cut_out(sim_flow *flow, const char *from, size_t n) {
    sim_loan *loan = find_loan(flow, from, n);
    if (loan && loan->from < from)
        loan = split(flow, loan, (size_t)(from - loan->from)) + 1;
    if (loan && loan->from + loan->n > from + n)
        loan = split(flow, loan, (size_t)(from + n - loan->from));
    return loan;
}

/* These pages leave their address: readers keep their present content. */
static void replace(const char *from, size_t n) {
    for (int i = 0; i < kernel_files(); i++) {
        sim_flow *flow = &kernel_file_at(i)->flow[1];
        sim_loan *loan;
        while ((loan = cut_out(flow, from, n))) {
            copy_loan(flow, loan, loan->n);
            sim_taken_back += loan->n;
            loan->copied = loan->gone = true;
        }
    }
}

/* ---- mapping --------------------------------------------------------- */

static range *range_of(const char *from, size_t n) {
    for (int i = 0; i < RANGES; i++) {
        range *it = &pages.mapped[i];
        if (it->n && from >= it->from && from + n <= it->from + it->n) return it;
    }
    return NULL;
}

bool lending_is_mapped(const void *from, size_t n) { return range_of(from, n) != NULL; }

/* Maps at a huge page's boundary, with the room that pool.c asks for to find it. */
void *lending_map(size_t n) {
    if (kernel_strikes(kernel_rates.no_pages, FAULT_NO_PAGES)) {
        kernel_excuses.no_pages = true;
        return NULL;
    }
    size_t rounded = (n + HUGE - 1) / HUGE * HUGE;
    SIM_CHECK(pages.used + rounded <= ARENA, "too much memory is mapped");
    range *it = pages.mapped;
    while (it < pages.mapped + RANGES && it->n) it++;
    SIM_CHECK(it < pages.mapped + RANGES, "too many maps");
    *it = (range){pages.arena + pages.used, n};
    pages.used += rounded;
    sim_yield();
    return it->from;
}

/* The top of the arena is used again. */
static void unmap(range *it, size_t n) {
    it->n -= n;
    pages.used = 0;
    for (int i = 0; i < RANGES; i++) {
        size_t end = (size_t)(pages.mapped[i].from - pages.arena) +
                     (pages.mapped[i].n + HUGE - 1) / HUGE * HUGE;
        if (pages.mapped[i].n && end > pages.used) pages.used = end;
    }
}

int lending_unmap(void *memory, size_t n) {
    range *it = range_of(memory, n);
    SIM_CHECK(it && (char *)memory + n == it->from + it->n,
              "what is unmapped is no end of a map");
    bool whole = memory == (void *)it->from;
    if (whole) {
        replace(memory, n);
        memset(memory, STORED_LATER, n);
    }
    unmap(it, n);
    sim_yield();
    return 0;
}

/* Others may run between pool.c's copy and this call. */
int lending_remap(void *from, size_t n, void *to) {
    range *it = range_of(from, n);
    SIM_CHECK(it && (void *)it->from == from && it->n == n, "no such map");
    SIM_CHECK(range_of(to, n), "a map goes where there was none");
    if (kernel_strikes(kernel_rates.kept, FAULT_KEPT)) return -ENOMEM;
    lending_on_replace(to, n);
    if (sim_chance(512)) sim_pause();
    replace(to, n);
    memcpy(to, from, n);
    unmap(it, n);
    sim_yield();
    return 0;
}

int lending_replace(void *at, size_t n) {
    SIM_CHECK(range_of(at, n), "strange memory is replaced");
    if (kernel_strikes(kernel_rates.kept, FAULT_KEPT)) {
        kernel_excuses.kept = true;
        return -ENOMEM;
    }
    lending_on_replace(at, n);
    replace(at, n);
    memset(at, 0, n);
    return 0;
}

/* ---- beginning and ending -------------------------------------------- */

void lending_begin(void) {
    if (!pages.arena) {
        char *arena = mmap(NULL, ARENA + HUGE, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (arena == MAP_FAILED) abort();
        pages.arena = arena + -(uintptr_t)arena % HUGE;
    }
    pages.used = 0;
    memset(pages.mapped, 0, sizeof pages.mapped);
}

void lending_end(void) {
    for (int i = 0; i < RANGES; i++)
        SIM_CHECK(!pages.mapped[i].n, "memory is left mapped");
}
