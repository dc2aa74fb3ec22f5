/* passing.h - how a relay's bytes pass from the source to the sink.
 *
 * At any moment a byte was taken from the source or not, and was put into the sink or
 * not.  The lanes "splice" and "sendfile" do both in one call.  The others have
 * something between: a pipe, or memory (`rest`).
 *
 * All is the relay's thread's, which drives both channels (move.h counts its calls, and
 * handles their errors); what others may ask for is atomic.
 */
#ifndef AZC_PASSING_H
#define AZC_PASSING_H
#include <stdatomic.h>

#include "channel.h"
#include "op.h"

/* One end. */
typedef struct azc_side {
    azc_id id;
    azc_op *hold; /* NULL once it has ended, */
    int lost;     /* by this error; both under the channel's lock */
    bool turn;    /* the relay drives the channel: */
    azc_channel *channel;
    mode_t mode;  /* what kind of file it is, */
    dev_t device; /* and which */
    ino_t inode;
} azc_side;

typedef struct azc_passage {
    azc_side source, sink;
    uint64_t limit;    /* bytes to be moved at most */
    bool once;         /* it ends when the source is empty */
    int wake[2];       /* wakes the thread */
    int between[2];    /* a pipe for bytes on their way, if there is one */
    size_t in_between; /* bytes in it */
    char *rest;        /* memory for bytes on their way: */
    size_t rest_room, rest_at, rest_bytes;
    uint64_t look_at;       /* when to look again whether the fds are ours */
    unsigned waits;         /* since bytes were moved */
    bool ended;             /* the source has no more */
    const azc_side *failed; /* whose channel has an error */
    azc_party party;        /* to the pages of a source that is spliced */

    atomic_uint_fast64_t taken, sent;
    atomic_int lane;
    atomic_bool began; /* all that was in rest at the beginning is its own */
} azc_passage;

/* Moves until the source ends, the limit is reached, a side fails, or it must stop. */
void azc__pass(azc_passage *pass);
/* All that was taken is out, and no more is to be taken. */
bool azc__is_passed(const azc_passage *pass);
/* One of its channels is about to be closed, or broken, or it was cancelled. */
bool azc__pass_must_stop(azc_passage *pass);
/* Brings what lies in the pipe between into memory, and copies from now on. */
void azc__pass_by_copy(azc_passage *pass);
/* Until it is woken (fds[0]), one of the other fds is ready, or a second is over. */
void azc__pass_wait(azc_passage *pass, struct pollfd *fds, nfds_t count);

/* In a forked child: of relay.c, for fork.c. */
void azc__relay_fork_child(void *relay);

#endif
