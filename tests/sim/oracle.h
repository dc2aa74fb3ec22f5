/* oracle.h - what the driver remembers of each operation, and what must hold.
 *
 * Each message carries bytes made from its token and the offset, so whatever
 * reached a reader can be compared, byte by byte, with what should have.  The
 * instant an operation's memory is the caller's again by the rule of csrc/azc.h,
 * it is poisoned and often freed: a later look at it is a poisoned byte at a
 * reader, or an error of the address sanitizer.
 *
 * Checked when an operation is submitted
 *   - it has to wait for room if, and only if, the unsent bytes before it leave
 *     none; and it is told of room only when they do
 * Checked whenever a channel's lock is taken
 *   - the queue's counters are those of its list, all that is over has left it,
 *     nobody waits where there is room, and nothing is in flight unless a
 *     thread moves it
 * Checked when an operation ends
 *   - it ends once: by return value or by an event
 *   - what is said of it fits: status, bytes, outcome, order of ends, and what
 *     azc_cancel has said before
 *   - received bytes lie where they should, and nothing beyond them changed
 *   - the reader has looked at all pages of it that were lent, unless it was
 *     cancelled, closed or broken; an empty message also waits for those before
 *   (several operations may have the same slot: then its memory is the
 *   caller's with the end of the last)
 * An operation may be moved to a copy of its bytes, or become another message: then
 * the memory that it had is poisoned too.
 * Checked of each channel at the end of a seed
 *   - the reader has the messages in the order of submission, each contiguous;
 *     those in part are the last, a cancelled batch ends with a message
 *   - one that was dropped left no byte but those it has told of, one that was
 *     rescued is whole
 *   - every error has a cause, and all operations of a channel hear the same
 *   - the counters of azc_get_stats are those of the simulated kernel
 *   - memory that was given back was not written to
 */
#ifndef SIM_ORACLE_H
#define SIM_ORACLE_H
#include "azc.h"
#include "channel.h"
#include "kernel.h"

enum { OPS = 400, ENDS = 6, CHANNELS = 18, SLOTS = 8, PORTS_EVER = 24 };

enum op_kind { SEND, RECEIVE, CLOSE };
enum op_end { RUNNING, BY_RETURN, BY_EVENT };
enum { NOTHING = -1 }; /* what azc_cancel has said of it */

typedef struct chan chan;

typedef struct op {
    uint64_t token;
    chan *channel;
    int kind;
    unsigned char *data;
    int slot;         /* of the pool, whose memory it is; -1: none */
    bool twin;        /* another has, or had, the same memory */
    uint64_t content; /* the token that its bytes were made from */
    size_t length, need;
    uint64_t ends[ENDS];
    int nends;
    size_t bad_from;           /* bytes from here on cannot be read; length: none */
    int place;                 /* in its channel's order, or -1 */
    int serial;                /* the same, but never changes */
    int port;                  /* where its end will be told */
    bool calling;              /* the submitting call has not returned, or not begun */
    bool direct;               /* that call has moved bytes itself */
    bool idle;                 /* it found nothing there, and was no operation */
    bool lent;                 /* some of its pages were */
    bool bound;                /* it is azc_send_bound, or another to the bound port: */
    bool sizes_told;           /* ... azc_set_sizes was called */
    bool sizes_late;           /* ... but azc_cancel before or meanwhile */
    bool asks_room, must_wait; /* at the instant it got into the queue */
    bool has_room;             /* it was told so */
    bool cancelling;           /* azc_cancel was called for it */
    bool was_waiting;          /* ... while it had no room */
    int promise;               /* ... which said this, when it gave the memory back */
    bool later;                /* ... or that its event will tell */
    uint64_t limit;            /* ... and could copy so much at most */
    bool back;                 /* its memory is the caller's again */
    bool lost;                 /* its memory never will be (AZC_KEPT) */
    int end;
    int status, outcome;
    uint64_t bytes;
    uint64_t final;        /* bytes of it that the reader has */
    uint64_t copied;       /* if it was rescued */
    unsigned char *kept;   /* what it had received, all its memory */
    unsigned char *copy;   /* from which it is to go on, once no call is in the way */
    bool was_moved;        /* ... and perhaps did, or became another message */
    unsigned char *before; /* the memory that it had until then, poisoned */
} op;

struct chan {
    azc_id azc;
    sim_file *file;
    sim_flow *flow;
    int port; /* of those which are in use */
    bool out, opposite, bounced;
    bool lends;       /* AZC_READS */
    uint64_t most;    /* the highest limit that it ever had */
    bool has_bound;   /* an azc_send_bound is in progress */
    bool closing;     /* azc_close or azc_free was called */
    bool close_asked; /* ... and has said that it will be closed */
    int calls;        /* sends and receives in progress */
    bool lost;        /* its number is another channel's: it is called no more */
    bool freed;       /* azc_free was called, */
    bool gone;        /* ... and has returned */
    op *order[OPS];   /* as they were submitted */
    int count, serials;
    int last_end[PORTS_EVER][2]; /* of those that were copied, or lent */
    int error;
    bool torn; /* a message may have been cut off */
    uint64_t immediate;
    uint64_t replaced; /* bytes of slots, to take loans back */
    op *last_receive;  /* that has ended in its own call */
};

extern op ops[OPS];
extern int op_count;
extern chan channels[CHANNELS];
extern int channel_count;

/* The pool that the callers have, if they have one. */
extern azc_id pool;
extern char *pool_memory;
extern size_t slot_bytes, pool_stride;
extern uint64_t sim_twins; /* operations with the bytes of another */

void oracle_begin(void);
op *op_new(chan *channel, int kind, size_t length);
/* The same in a slot of the pool; NULL if none is free. */
op *op_new_in_slot(chan *channel, int kind, size_t length);
/* The same bytes as a send that has not ended, in the same slot, once more. */
op *op_new_twin(chan *channel);
op *op_of(uint64_t token);
/* The operation that this simulated thread submits now, or cancels. */
void op_enters(op *it);
void op_leaves(op *it);
void op_is_cancelled(op *it, bool now);
void op_ends(op *it, int how, const azc_event *event);
void op_has_room(op *it);
/* The caller has the memory again. */
void op_give_back(op *it);
/* A message of other bytes, as long or shorter, that may take its place. */
op op_newer(const op *it);
unsigned char *op_copy(const op *it);
/* It goes on from this memory, which is its own: what it had is the caller's. */
void op_goes_on(op *it, unsigned char *data);
/* Where a batch ends that is cancelled after so many bytes. */
uint64_t op_cut(const op *it, uint64_t bytes);
/* As the helper sees it; NULL once that is gone. */
azc_channel *channel_inside(const chan *channel);
void channel_check(chan *channel);
void channel_check_stats(chan *channel);
/* The pool is closed: all operations with its memory must be over. */
void oracle_close_pool(void);
void oracle_end(void);

#endif
