/* lending.h - simulated pages: the memory of pools, and the loans of it.
 *
 * A loan is what a pipe holds of lent pages: their address, and not their bytes.
 * The bytes are taken when the reader reads, so the reader gets what was stored
 * there meanwhile.  Only if the pages at that address are replaced (mremap, mmap,
 * munmap), the loan keeps the old ones.  Now and then the kernel copies at once, as
 * it may, without telling.
 */
#ifndef SIM_LENDING_H
#define SIM_LENDING_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sim_flow;

/* So many bytes from there on are lent; they follow what is in the log. */
typedef struct sim_loan {
    const char *from;
    uint64_t at; /* in the flow's log */
    size_t n;
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

/* As in csrc/sys.h. */
void *lending_map(size_t n);
int lending_unmap(void *at, size_t n);
int lending_remap(void *from, size_t n, void *to);
int lending_replace(void *at, size_t n);

#endif
