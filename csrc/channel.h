/* channel.h - one fd, one direction: its state, and the rules of its lock.
 *
 * The life of a channel
 *
 *   OPEN --(error)--> BROKEN --+
 *     |                        +--(azc_close)--> CLOSING --> CLOSED
 *     +------------------------+        at once, or after the driver's call
 *
 * Its memory is released when it is CLOSED, freed and no thread is driving.
 *
 * Driving.  At most one thread at a time makes system calls on a channel: the driver.  It
 * sets driving under the lock, releases the lock for each call, and for the `then` of a
 * receive, and afterwards does what other threads asked for meanwhile (cancel, close).  It
 * releases the lock at no other point, so what it sees under the lock does not change.
 * (But a relay holds the lock only for moments.)
 *
 * Locks, always taken in this order.  None is held in a system call that moves bytes from
 * or to a channel's fd, nor while any Python may run.
 *   the channel's   its queue and state (handle.h: its slot's lock); never those of
 *                   two channels at once
 *   pumps           which pumps serve all sockets (pump.c)
 *   a pump's        its lists of channels
 *   loops           which ports' loops receive by themselves (loop.c)
 *   a port's        its list of events
 *   a pool's        its memory (pool.c)
 *   parties         which channels lend pages, which relays pass them on (lender.c)
 *
 * A table's lock (handle.c: its free slots) is taken beside others only in fork.c.
 */
#ifndef AZC_CHANNEL_H
#define AZC_CHANNEL_H
#include <stdatomic.h>

#include "azc.h"
#include "handle.h"
#include "lane.h"
#include "lender.h"
#include "pump.h"
#include "queue.h"
#include "sys.h"

/* An fd, closed when the last of its channels is. */
typedef struct azc_file {
    atomic_int refs;
    atomic_bool lost; /* the number belongs to another file now */
} azc_file;

enum { IN_VAIN = 8 }; /* receives in a row that asked again, each time in vain */

enum azc_state { OPEN, BROKEN, CLOSING, CLOSED };

struct azc_channel {
    azc_slot *slot;
    azc_id id;
    int flags;
    enum azc_state state;
    int error; /* why it is BROKEN */
    bool driving;
    bool in_call; /* the driver's call is using borrowed memory, not a copy */
    bool freed;   /* azc_free was called */
    azc_queue queue;
    azc_stats stats;

    /* the fd */
    azc_file *file;
    int fd; /* -1 once closed */
    dev_t device;
    ino_t inode;
    mode_t mode; /* what kind of file it is */

    /* how it moves */
    const azc_lane *lane;
    azc_lender lender;
    char *bounce;                 /* the copy, of a lane that works on copies */
    size_t leftover_at, leftover; /* bytes in the bounce, not yet asked for */
    bool no_nowait;               /* this pipe does not know RWF_NOWAIT */
    uint64_t starved_since;       /* when memory or pumps ran out, or 0 */

    /* the move in progress */
    bool in_caller;         /* it is made by the call that submits it */
    azc_fds *fds;           /* sent or received with it; or NULL */
    uint64_t wanted;        /* bytes that a receive needs; 0: what is there */
    bool alone;             /* there is one processor, and a local peer needs it */
    int vain;               /* receives in a row that asked in vain: see IN_VAIN */
    unsigned extra_calls;   /* system calls after the first */
    int stopped_by;         /* the -errno that ended it after some bytes, or 0 */
    atomic_bool stop_early; /* a cancel or close is waiting for its end */

    /* its pump */
    azc_pumping pumping;

    /* the ports and events */
    azc_id last_port;  /* of the latest operation: its loop may retry for us */
    azc_id bound_port; /* of azc_send_bound */
    uint64_t bound_token;
    azc_op *spare;          /* for the rest of a bound send, made beforehand */
    uint64_t budget, spent; /* the fairness budget: see azc_bind_port */
    azc_event last;         /* of the last operation that ended in its own call */
    azc_note *closing;      /* reports that it is closed */
};

static inline bool azc__outward(const azc_channel *channel) {
    return channel->flags & AZC_OUT;
}

static inline void azc__lock(azc_channel *channel) {
    pthread_mutex_lock(&channel->slot->lock);
}

static inline void azc__unlock(azc_channel *channel) {
    pthread_mutex_unlock(&channel->slot->lock);
}

/* Returns the channel, with its lock held; or NULL, and azc__why says why. */
azc_channel *azc__enter(azc_id id);
/* As azc__enter, but finds the channel after azc_free, too, until it has ended. */
azc_channel *azc__find(azc_id id);
int azc__why(azc_id id);
/* Releases the lock, and the channel's memory if it has ended. */
void azc__leave(azc_channel *channel);

/* Returns the fd if the caller must close it: this was the last of its channels, and the
 * number is not lost.  Else returns -1. */
int azc__give_up_file(azc_file *file, int fd);

/* From here on with the lock held. */

/* 0, or why nothing may be submitted. */
int azc__refusal(const azc_channel *channel);
/* Asks the driver to stop early: a cancel or a close is waiting. */
void azc__interrupt(azc_channel *channel);

#endif
