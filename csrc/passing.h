/* passing.h - how a relay's bytes pass from the source to the sink.
 *
 * The lanes "splice" and "sendfile" take bytes from the source and put them into the
 * sink in one call.  The other lanes first take them into something between: a pipe, or
 * memory (`rest`).
 *
 * The relay's thread drives both channels (move.h counts its calls, and handles their
 * errors).  Only that thread uses a passage, but for the atomic fields, `wake`, and a
 * side's `hold` and `lost`.
 */
#ifndef AZC_PASSING_H
#define AZC_PASSING_H
#include <stdatomic.h>

#include "channel.h"
#include "op.h"

/* One end. */
typedef struct azc_side {
    azc_id id;
    azc_op *hold; /* NULL once it has ended; under the channel's lock */
    int lost;     /* the status with which it ended; under that lock, too */
    bool turn;    /* the relay drives the channel */
    azc_channel *channel;
    mode_t mode; /* what kind of file it is */
    dev_t device;
    ino_t inode;
} azc_side;

typedef struct azc_passage {
    azc_side source, sink;
    uint64_t limit;    /* the most bytes to move */
    bool once;         /* end when some bytes were moved and the source is empty */
    int wake[2];       /* wakes the thread */
    int between[2];    /* a pipe for bytes in transit, if there is one */
    size_t in_between; /* bytes in it */
    char *rest;        /* memory for bytes in transit */
    size_t rest_room, rest_at, rest_bytes;
    uint64_t look_at;       /* bytes sent, when the fds' numbers are checked again */
    unsigned waits;         /* since bytes were moved */
    bool ended;             /* the source has no more */
    const azc_side *failed; /* the side whose channel has an error, or NULL */
    azc_party party;        /* to the pages of a source that is spliced */

    atomic_uint_fast64_t taken, sent;
    atomic_int lane;
    atomic_bool began; /* its turn has come, and `first` counts as taken */
} azc_passage;

/* Moves until the source ends, the limit is reached, a side fails, or it must stop. */
void azc__pass(azc_passage *pass);
/* All that was taken is out, and no more will be taken. */
bool azc__is_passed(const azc_passage *pass);
/* It was cancelled, or one of its channels is being closed or broken. */
bool azc__pass_must_stop(azc_passage *pass);
/* Moves the bytes in the pipe between into memory, and copies from now on. */
void azc__pass_by_copy(azc_passage *pass);
/* Waits until it is woken, one of the fds is ready, or a second is over.  fds[0] is for
 * this function. */
void azc__pass_wait(azc_passage *pass, struct pollfd *fds, nfds_t count);

/* For fork.c, in a forked child; it is in relay.c. */
void azc__relay_fork_child(void *relay);

#endif
