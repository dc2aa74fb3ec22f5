/* oracle.h - what the driver remembers of each operation, and what must hold.
 *
 * Each message carries bytes made from its token and the offset, so whatever
 * reached a reader can be compared, byte by byte, with what should have.  As soon
 * as the rule of csrc/azc.h gives an operation's memory back to the caller, the
 * memory is poisoned and often freed: a later access shows as a poisoned byte at a
 * reader, or as an error of the address sanitizer.
 *
 * Checked when an operation is submitted
 *   - it waits for room if, and only if, the unsent bytes before it leave none; and
 *     it gets the event AZC_ROOM only when they leave some
 * Checked whenever a channel's lock is taken
 *   - the queue's counters match its list, ended operations have left it, no
 *     operation waits if there is room, and nothing is in flight unless a thread
 *     moves it
 * Checked when an operation ends
 *   - it ends once: by return value or by an event
 *   - status, bytes, outcome and the order of ends are right, and as azc_cancel
 *     said before
 *   - received bytes lie where they should, and no others have changed
 *   - the reader has looked at all its lent pages, unless it was cancelled, closed
 *     or broken; an empty message also waits for those before it
 *   (If several operations have the same slot, its memory is the caller's when the
 *   last of them has ended.)
 * An operation may be moved to a copy of its bytes, or become another message: then
 * its old memory is poisoned, too.
 * Checked of each channel at the end of a seed
 *   - the reader has the messages in the order of submission, each contiguous;
 *     incomplete ones are the last, and a cancelled batch ends with a whole message
 *   - a dropped message left only the bytes that were reported, and a rescued one is
 *     whole
 *   - every error has a cause, and all operations of a channel get the same error
 *   - the counters of azc_get_stats are those of the simulated kernel
 *   - memory that was given back has not been written to
 */
#ifndef SIM_ORACLE_H
#define SIM_ORACLE_H
#include "azc.h"
#include "channel.h"
#include "kernel.h"

enum { OPS = 400, ENDS = 6, CHANNELS = 18, SLOTS = 8, PORTS_EVER = 24 };

enum op_kind { SEND, RECEIVE, CLOSE };
enum op_end { RUNNING, BY_RETURN, BY_EVENT };
enum { NOTHING = -1 }; /* no answer of azc_cancel yet */

typedef struct chan chan;

typedef struct op {
    uint64_t token;
    chan *channel;
    int kind;
    unsigned char *data;
    int slot;         /* of the pool; -1: other memory */
    bool twin;        /* another one has, or had, this memory */
    uint64_t content; /* the token from which its bytes were made */
    size_t length, need;
    uint64_t ends[ENDS];
    int nends;
    size_t bad_from;           /* bytes from here on are unreadable; length: none */
    int place;                 /* in its channel's order, or -1 */
    int serial;                /* its first place, which never changes */
    int port;                  /* the port that reports its end */
    bool calling;              /* its submitting call has not returned, or not begun */
    bool direct;               /* that call has moved bytes itself */
    bool idle;                 /* it found nothing to receive, and was no operation */
    bool lent;                 /* some of its pages were lent */
    bool bound;                /* to the bound port, by azc_send_bound or the like */
    bool sizes_told;           /* azc_set_sizes was called */
    bool sizes_late;           /* but azc_cancel was called before or meanwhile */
    bool asks_room, must_wait; /* at the time when it got into the queue */
    bool has_room;             /* room was reported */
    bool cancelling;           /* azc_cancel was called */
    bool was_waiting;          /* it had no room when it was cancelled */
    int promise;               /* azc_cancel's answer, if it gave memory back */
    bool later;                /* azc_cancel left the answer to the event */
    uint64_t limit;            /* azc_cancel could copy this much at most */
    bool back;                 /* its memory is the caller's again */
    bool lost;                 /* its memory will never be the caller's (AZC_KEPT) */
    int end;
    int status, outcome;
    uint64_t bytes;
    uint64_t final;        /* bytes that the reader has of it */
    uint64_t copied;       /* bytes, if it was rescued */
    unsigned char *kept;   /* its whole memory as it was after a receive */
    unsigned char *copy;   /* to go on from, as soon as no call is in the way */
    bool was_moved;        /* perhaps to the copy, or to another message */
    unsigned char *before; /* its memory before that move, poisoned */
} op;

struct chan {
    azc_id azc;
    sim_file *file;
    sim_flow *flow;
    int port; /* number of the port in use */
    bool out, opposite, bounced;
    bool lends;       /* AZC_READS */
    uint64_t most;    /* its highest limit so far */
    bool has_bound;   /* an azc_send_bound is in progress */
    bool closing;     /* azc_close or azc_free was called */
    bool close_asked; /* azc_close has promised to close it */
    int calls;        /* sends and receives in progress */
    bool lost;        /* its number belongs to another channel: no calls any more */
    bool freed;       /* azc_free was called */
    bool gone;        /* azc_free has returned */
    op *order[OPS];   /* as submitted */
    int count, serials;
    int last_end[PORTS_EVER][2]; /* of copied operations, and of lent ones */
    int error;
    bool torn; /* a message may have been cut off */
    uint64_t immediate;
    uint64_t replaced; /* bytes of slots that replaced lent pages */
};

extern op ops[OPS];
extern int op_count;
extern chan channels[CHANNELS];
extern int channel_count;

/* The callers' pool, if they have one. */
extern azc_id pool;
extern char *pool_memory;
extern size_t slot_bytes, pool_stride;
extern uint64_t sim_twins; /* operations with the same bytes as another */

void oracle_begin(void);
op *op_new(chan *channel, int kind, size_t length);
/* Like op_new, but in a slot of the pool; NULL if none is free. */
op *op_new_in_slot(chan *channel, int kind, size_t length);
/* Sends again the slot of a send that has not ended; NULL if there is none. */
op *op_new_twin(chan *channel);
op *op_of(uint64_t token);
/* The operation that this simulated thread now submits, or cancels. */
void op_enters(op *it);
void op_leaves(op *it);
void op_is_cancelled(op *it, bool now);
void op_ends(op *it, int how, const azc_event *event);
void op_has_room(op *it);
/* Gives the memory back to the caller. */
void op_give_back(op *it);
/* Another message, not longer, that may replace it. */
op op_newer(const op *it);
unsigned char *op_copy(const op *it);
/* It goes on from this memory of its own; its old memory is the caller's. */
void op_goes_on(op *it, unsigned char *data);
/* Where a batch ends that is cancelled after this many bytes. */
uint64_t op_cut(const op *it, uint64_t bytes);
/* The channel inside the helper; NULL once that is gone. */
azc_channel *channel_inside(const chan *channel);
void channel_check(chan *channel);
void channel_check_stats(chan *channel);
/* Closes the pool; all operations with its memory must have ended. */
void oracle_close_pool(void);
void oracle_end(void);

#endif
