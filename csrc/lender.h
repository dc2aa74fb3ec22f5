/* lender.h - pages that are lent to a pipe's reader, not copied: until when.
 *
 * vmsplice lends a pool's pages (pool.c: only those can be taken back).  A loan is
 * over when FIONREAD says that the reader has read past it.  Nobody tells, so the
 * pump asks again and again, after a nap.
 *
 * A kernel that refuses is never asked again, and gets copies.
 */
#ifndef AZC_LENDER_H
#define AZC_LENDER_H
#include "azc.h"
#include "sys.h"

typedef struct azc_channel azc_channel;

typedef struct azc_lender {
    bool lends;      /* until the kernel refuses */
    uint64_t read;   /* no lent byte below this offset is looked at any more */
    unsigned nap_us; /* until that is asked for again */
} azc_lender;

void azc__lender_begin(azc_channel *channel);
/* From how many bytes on a piece is to be lent now; 0 if none is. */
size_t azc__lend_from(const azc_channel *channel);
/* Without the channel's lock, and what came of it, with the lock again. */
ssize_t azc__lend(azc_channel *channel, struct iovec *vec, int count);
ssize_t azc__lend_weigh(azc_channel *channel, ssize_t r);
/* Is there a loan that somebody may still look at? */
bool azc__is_owed(const azc_channel *channel);
/* Asks how far the reader is; the lock is let go of meanwhile.  Returns 0, or
 * -errno if the reader is gone. */
int azc__lender_ask(azc_channel *channel);

#endif
