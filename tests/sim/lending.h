/* lending.h - simulated pages: the memory of pools, and the loans of it.
 *
 * A loan is what a pipe or a socket holds of lent pages: not bytes, but where
 * they are.
 * Its bytes are looked at when the reader reads, so whatever was stored there
 * meanwhile is what the reader gets.  Only when the pages are replaced at that
 * address (mremap, madvise, munmap) the loan keeps the old ones.  Now and then
 * the kernel copies at once, as it may, and nobody can tell.
 *
 * Read by the compiler before each file of csrc, as locks.h is, so that pool.c
 * maps simulated pages.
 */
#ifndef SIM_LENDING_H
#define SIM_LENDING_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

struct sim_flow;

/* So many bytes from there on are lent; they follow what is in the log. */
typedef struct sim_loan {
    const char *from;
    uint64_t at; /* in the flow's log */
    size_t n;
    int call;    /* to a socket: its number there */
    bool copied; /* the log has the bytes already ... */
    bool gone;   /* ... and these pages are no more in the slot */
} sim_loan;

extern uint64_t sim_lent, sim_taken_back; /* bytes, all seeds together */

void lending_begin(void);
void lending_end(void); /* fails if memory is left mapped */

void lending_add(struct sim_flow *flow, const char *from, size_t n);
/* The reader looks at all that it has read by now. */
void lending_look(struct sim_flow *flow);
/* How many of the bytes there has this reader still to look at? */
uint64_t lending_unread(struct sim_flow *flow, const void *from, size_t n);
bool lending_is_mapped(const void *from, size_t n);

/* Told of all memory that is lent, and of that whose pages are replaced. */
extern void (*lending_on_lend)(const void *from);
extern void (*lending_on_replace)(const void *from, size_t n);

void *sim_mmap(size_t n);
int sim_munmap(void *memory, size_t n);
void *sim_mremap(void *from, size_t n, void *to);
int sim_madvise(void *memory, size_t n, int advice);

#define mmap(at, n, protection, flags, fd, offset) sim_mmap(n)
#define munmap(memory, n)                          sim_munmap(memory, n)
#define mremap(from, n, to_n, flags, to)           sim_mremap(from, n, to)
#define madvise(at, n, advice)                     sim_madvise(at, n, advice)

#endif
