/* channel.h - one fd, one direction: its state, and the rules of its lock.
 *
 * The life of a channel
 *
 *   OPEN --(error)--> BROKEN --+
 *     |                        +--(azc_close)--> CLOSING --> CLOSED
 *     +------------------------+        at once, or when the driver is back
 *
 * and its memory goes when it is CLOSED, freed and nobody is driving.
 *
 * Driving.  At most one thread at a time makes system calls on a channel.  It sets
 * driving under the lock, lets go of the lock for each call, and does what was asked
 * for meanwhile (cancel, close) when it is back.  The lock is never let go of
 * otherwise, so whoever has it may rely on what he sees.
 *
 * Locks, always taken in this order, and none of them held in a system call that
 * moves bytes, nor while any Python may run
 *   the channel's   its queue and state (handle.h: its slot's lock); while it is
 *                   held, also that of a new channel which nobody else knows yet
 *   shared          which pumps serve all sockets (pump.c)
 *   a pump's        its lists of channels
 *   a port's        its list of events
 *   pools           where pools are (pool.c)
 */
#ifndef AZC_CHANNEL_H
#define AZC_CHANNEL_H
#include <stdatomic.h>

#include "azc.h"
#include "handle.h"
#include "lane.h"
#include "lender.h"
#include "pace.h"
#include "pump.h"
#include "queue.h"
#include "sys.h"
#include "writer.h"

/* An fd, closed when the last of its channels is. */
typedef struct azc_file {
    atomic_int refs;
    atomic_bool lost; /* the number belongs to another file now */
} azc_file;

enum azc_state { OPEN, BROKEN, CLOSING, CLOSED };

struct azc_channel {
    azc_slot *slot;
    azc_id id;
    int flags;
    enum azc_state state;
    int error; /* why it is BROKEN */
    bool driving;
    bool in_call; /* a system call has somebody's memory, not a copy */
    bool freed;   /* its number is given back */
    azc_queue queue;
    azc_stats stats;

    /* the fd */
    azc_file *file;
    int fd; /* -1 once closed */
    dev_t device;
    ino_t inode;

    /* how it moves */
    const azc_lane *lane;
    azc_lender lender;
    azc_pace pace;
    azc_writer writer;
    char *bounce;         /* of a lane that works on copies */
    size_t kept_at, kept; /* received into the bounce, not yet asked for */
    unsigned more_calls;  /* of the move going on, after its first */
    int met;              /* ... the -errno that it met, once it had got on */
    bool in_caller;       /* ... made in a thread that is the program's */
    bool no_nowait;       /* RWF_NOWAIT is not known to this pipe of ours */
    atomic_bool hurry;    /* ... to be ended soon: a cancel or a close waits */
    uint64_t starved_since; /* no memory in the kernel, or no pump; 0: never */
    azc_pumping pumping;

    /* who hears of it */
    azc_id last_port;    /* of the operations; its loop tries again for all */
    azc_id default_port; /* of azc_send_bound */
    uint64_t default_token;
    azc_op *spare; /* for the rest of such a message: none is ever torn */
    uint64_t turn, spent; /* sends that may end at once, and did */
    azc_event last; /* of the receives that ended in their own call, the last */
    azc_note *closing; /* tells of the closing */
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

/* The channel, with its lock held; or NULL, and azc__why says why. */
azc_channel *azc__enter(azc_id id);
/* The same, also of one whose number was given back and that is not yet at its end. */
azc_channel *azc__find(azc_id id);
int azc__why(azc_id id);
/* Lets go of the lock, and of the channel's memory if it is at its end. */
void azc__leave(azc_channel *channel);

/* All from here on with the lock. */

/* 0, or why nothing may be submitted. */
int azc__refusal(const azc_channel *channel);
/* Is it a lane that works on copies?  Then it gets a buffer for them. */
int azc__prepare_bounce(azc_channel *channel);
/* Does the number belong to another file now?  Then the channel is broken. */
bool azc__was_replaced(azc_channel *channel);
/* CLOSING -> CLOSED; the lock is let go of meanwhile.  False: another thread has the
 * fd's closing in hand. */
bool azc__finish_close(azc_channel *channel);

/* In a forked child, without the lock. */
void azc__channel_fork_child(void *channel);

#endif
