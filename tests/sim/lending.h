/* lending.h - simulated pages: the memory of pools, and loans of it.
 *
 * A loan is what a pipe holds of lent pages: their address, but not their bytes.
 * The bytes are taken when the reader reads them, so the reader gets what was stored
 * meanwhile.  Only if the pages at that address are replaced (mremap, mmap, munmap)
 * does the loan keep the old ones.  Now and then the kernel copies at once, as it may,
 * without a sign.
 */
#ifndef SIM_LENDING_H
#define SIM_LENDING_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sim_flow;

/* n lent bytes at this address; in the log they have this position. */
typedef struct sim_loan {
    const char *from;
    uint64_t at; /* position in the flow's log */
    size_t n;
    bool copied; /* the log already has the bytes */
    bool gone;   /* and these pages are not in the slot any more */
} sim_loan;

extern uint64_t sim_lent, sim_taken_back; /* bytes, in all seeds together */

void lending_begin(void);
void lending_end(void); /* fails if memory is still mapped */

void lending_add(struct sim_flow *flow, const char *from, size_t n);
/* The reader looks at everything that it has read so far. */
void lending_look(struct sim_flow *flow);
/* Returns how many of these bytes this reader has not yet looked at. */
uint64_t lending_unread(struct sim_flow *flow, const void *from, size_t n);
bool lending_is_mapped(const void *from, size_t n);

/* Called for memory that is lent, and for pages that are replaced. */
extern void (*lending_on_lend)(const void *from);
extern void (*lending_on_replace)(const void *from, size_t n);

/* See csrc/sys.h. */
void *lending_map(size_t n);
int lending_unmap(void *at, size_t n);
int lending_remap(void *from, size_t n, void *to);
int lending_replace(void *at, size_t n);

#endif
