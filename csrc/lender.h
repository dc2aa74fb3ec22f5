/* lender.h - pages that are lent to a reader instead of copied.
 *
 * vmsplice lends a pool's pages (pool.c: only those can be taken back) to a pipe's
 * reader.  A loan is over when FIONREAD says that the reader has read past it.  No event
 * tells that, so the pump asks again and again, with naps in between.
 *
 * To a UNIX stream socket pages go through a pipe of the channel's own, `between`.  It
 * is the driver's, and empty but inside azc_sys.lend: what a splice leaves there is
 * thrown away with the pipe, and is unsent.  So whatever is counted as sent lies in the
 * peer's queue, and nothing waits in between when a cancel, a copy or fds come.
 * SIOCOUTQ counts each buffer of that queue as a whole, and its head, until its last
 * byte was read.  So it is never less than what is unread; a peek, and what others send
 * on the same socket, make it more.  EPOLLOUT tells when a quarter is left.  What a peer
 * leaves unread when it closes is thrown away after its error can be seen, so that is
 * looked for after the count.  A peer that only shuts down its reading can still read.
 *
 * A message that a socket's buffer holds is copied: to find out that all of it was read
 * takes longer.  A longer one waits for its reader in any case.
 *
 * A loan of memory that is no pool's (AZC_LENDS_ALL) stays in the pipe if its operation
 * ends early; the reader then knows by other means that it has no whole message.
 *
 * If the kernel refuses to lend, the channel copies from then on.
 *
 * Lent pages may be read, and nothing else: who splices or tees them hands them to
 * readers that no loan waits for.  So a pipe (or all UNIX sockets, since no one
 * tells which two are connected) has parties of one kind at a time: channels that
 * lend, or relays that pass its pages on.  A party of the other kind that comes later
 * copies, as long as it lasts.
 */
#ifndef AZC_LENDER_H
#define AZC_LENDER_H
#include "azc.h"
#include "sys.h"

typedef struct azc_channel azc_channel;

/* A channel or relay as a party to a pipe's pages; its owner's memory. */
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
    bool full;  /* the socket tells when most of what it has was read */
    sys_between between;
    uint64_t message; /* bytes of the shortest message of which any is lent */
    uint64_t read;    /* the reader has read past all bytes below this offset */
    unsigned nap_us;  /* until the reader's offset is asked for again */
} azc_lender;

void azc__lender_init(azc_channel *channel);
/* All its loans are over (or, in a forked child, they are the parent's). */
void azc__lender_end(azc_channel *channel);
/* False: the pipe has parties of the other kind, so copy. */
bool azc__party_join(azc_party *party, dev_t device, ino_t inode, bool lends);
/* (also if it did not join, or has left before) */
void azc__party_leave(azc_party *party);
/* The shortest piece of a message of so many bytes that is to be lent now; 0 if none
 * is. */
size_t azc__lend_from(const azc_channel *channel, uint64_t message);
/* Lends, without the channel's lock.  Then, with it, notes what came of that and
 * returns the result: -EINTR where the same bytes are to be copied instead. */
ssize_t azc__lend(azc_channel *channel, struct iovec *vec, int count);
ssize_t azc__lend_result(azc_channel *channel, ssize_t r);
/* Is anything lent that the reader may still look at? */
bool azc__has_loans(const azc_channel *channel);
/* Asks how far the reader is; the lock is released meanwhile.  Returns 0, or -errno
 * if the reader is gone. */
int azc__lender_ask(azc_channel *channel);

extern pthread_mutex_t azc__parties_lock;
/* In a forked child, whose copies of the parties do nothing. */
void azc__parties_fork_child(void);

#endif
