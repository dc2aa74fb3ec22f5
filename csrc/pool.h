/* pool.h - memory that the kernel may be lent: the slots of frame pools.
 *
 * Lent pages (see lender.h) are read when the reader reads, not before.  So only this
 * memory is ever lent.  It is ours alone, never goes back to malloc, and each slot can be
 * detached: its bytes move to other pages, in one step and at the same address, while the
 * reader keeps the old pages as they were.  If several operations have the same slot,
 * detaching it for one leaves the bytes of the others in place.  (A thread that stores into
 * a slot while another cancels an operation there may lose what it stores.)
 *
 * A pool is found by address, so any view of a slot can be sent, whatever Python
 * object it comes from.
 */
#ifndef AZC_POOL_H
#define AZC_POOL_H
#include "azc.h"
#include "sys.h"

/* May these bytes be lent?  They must lie in one slot. */
bool azc__pool_lends(const void *from, size_t n);

/* Takes the slot that holds this byte back from every reader: none sees what is
 * stored there from now on.  *slot is the slot that was detached last (it is not done
 * again), and is set to this one.  Returns how many bytes were moved; or -errno, and a
 * reader may still look. */
ssize_t azc__pool_detach(const void *at, const void **slot);

#endif
