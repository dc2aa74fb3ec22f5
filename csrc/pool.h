/* pool.h - memory that the kernel may be lent: the slots of frame pools.
 *
 * Lent pages (see lender.h) are read when the reader reads, not before.  So only this
 * memory is lent, except with AZC_LENDS_ALL.  It is ours alone, never goes back to
 * malloc, and each slot can be detached: its bytes move to other pages at the same
 * address, while the reader keeps the old pages as they were.  That is one step, or, if
 * memory is short, piece by piece, with zeros in a piece for a moment.  If several
 * operations use one slot, detaching it for one leaves the bytes of the others in
 * place.  (A store into a slot that races with a cancel in another thread may be lost.)
 *
 * A pool is found by address, so a view of a slot can be sent from any Python object.
 */
#ifndef AZC_POOL_H
#define AZC_POOL_H
#include "azc.h"
#include "sys.h"

/* May these bytes be lent?  They must lie in one slot. */
bool azc__pool_lends(const void *from, size_t n);

/* Takes the slot that holds this byte back from every reader: none sees what is stored
 * there from now on.  Does nothing if *slot, the slot that was detached last, is the
 * same; else sets *slot.  Returns how many bytes were moved; or -errno, if a reader may
 * still read them. */
ssize_t azc__pool_detach(const void *at, const void **slot);

#endif
