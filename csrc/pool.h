/* pool.h - memory that the kernel may be lent: the slots of frame pools.
 *
 * Lent pages (see lender.h) are looked at when the reader reads, not before.  So
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
#ifndef AZC_POOL_H
#define AZC_POOL_H
#include "azc.h"
#include "sys.h"

/* May these bytes be lent?  They must lie in one slot. */
bool azc__pool_lends(const void *from, size_t n);

/* Takes the slot that has this byte back from every reader: what is stored there
 * from now on nobody sees.  *slot is the one that was done last, and set to this.
 * Returns how many bytes were moved; or -errno, and a reader may still look. */
ssize_t azc__pool_detach(const void *at, const void **slot);

/* Around a fork; the child's memory is its own, and stays as it is. */
void azc__pool_fork_lock(void);
void azc__pool_fork_unlock(void);

#endif
