/* lender.h - pages that are lent to a reader instead of copied.
 *
 * vmsplice lends a pool's pages (pool.c: only those can be taken back) to a pipe's
 * reader.  A loan is over when FIONREAD shows that the reader has read past it.  No event
 * reports that, so the pump asks repeatedly, with naps in between.
 *
 * To a UNIX stream socket pages go through a pipe of the channel's own, `between`.  Only
 * the driver uses it, and it is empty except inside azc_sys.lend: what a splice leaves
 * there is thrown away with the pipe, and counts as unsent.  So all bytes that count as
 * sent lie in the peer's queue, and none are in between when a cancel, a copy or fds come.
 * SIOCOUTQ counts each buffer of that queue as a whole, with its head, until its last
 * byte was read.  So it is never less than what is unread; a peek, and bytes that others
 * send on the same socket, make it more.  EPOLLOUT reports that a quarter is left.  When
 * a peer closes, its error can be seen before its unread bytes are thrown away, so we
 * look for the error after the count.  A peer that only shuts down reading still reads.
 *
 * A message that fits into a socket's buffer is copied, since it takes longer to find out
 * that a loan was read.  A longer message waits for its reader in any case.
 *
 * A loan of memory that is no pool's (AZC_LENDS_ALL) stays in the pipe if its operation
 * ends early; the reader then knows by other means that the message is not whole.
 *
 * If the kernel refuses to lend, the channel copies from then on.
 *
 * Lent pages may only be read: splice and tee would hand them to readers for which no
 * loan waits.  So a pipe has parties of one kind at a time: channels that lend, or relays
 * that pass its pages on.  A party of the other kind that comes later copies, as long as
 * it lasts.  All UNIX sockets count as one, since nothing shows which two are connected.
 */
#ifndef AZC_LENDER_H
#define AZC_LENDER_H
#include "azc.h"
#include "sys.h"

typedef struct azc_channel azc_channel;

/* A channel or relay as a party to a pipe's pages; in the memory of its owner. */
typedef struct azc_party azc_party;
struct azc_party {
    azc_party *next;
    dev_t device;
    ino_t inode;
    bool lends;
    bool joined;
};
enum { ALL_SOCKETS = 0 }; /* in the place of an inode */

typedef struct azc_lender {
    azc_party party;
    bool lends; /* until the kernel refuses */
    bool full;  /* the socket will report when most of its bytes were read */
    sys_between between;
    uint64_t message; /* bytes of the shortest message of which any is lent */
    uint64_t read;    /* the reader has read past all bytes below this offset */
    unsigned nap_us;  /* until the reader's offset is asked for again */
} azc_lender;

void azc__lender_init(azc_channel *channel);
/* Call it when all loans are over (or in a forked child, where they are the parent's). */
void azc__lender_end(azc_channel *channel);
/* False: the pipe has parties of the other kind, so copy. */
bool azc__party_join(azc_party *party, dev_t device, ino_t inode, bool lends);
/* Does nothing if the party did not join, or has left. */
void azc__party_leave(azc_party *party);
/* The shortest piece to lend now, of a message with this many bytes; 0: lend none. */
size_t azc__lend_from(const azc_channel *channel, uint64_t message);
/* Lends, without the channel's lock. */
ssize_t azc__lend(azc_channel *channel, struct iovec *vec, int count);
/* Takes what azc__lend returned, with the lock; -EINTR: copy these bytes instead. */
ssize_t azc__lend_result(azc_channel *channel, ssize_t r);
/* Is anything lent that the reader may still read? */
bool azc__has_loans(const azc_channel *channel);
/* Asks how far the reader is; the lock is released meanwhile.  Returns 0, or -errno
 * if the reader is gone. */
int azc__lender_ask(azc_channel *channel);

extern pthread_mutex_t azc__parties_lock;
/* In a forked child: forgets the parent's parties. */
void azc__parties_fork_child(void);

#endif
