/* channel.h - what the C files share: operations, queues, channels, pumps.
 *
 * Who owns what
 *   An operation (azc_op) belongs to its channel's queue until it ends, then to
 *   its port's list until it is drained (or to the submitting call, if that
 *   call still runs).  Exactly one of them frees it.
 *   The bytes of an operation are the caller's, borrowed, unless op->rescue is
 *   set: then they are the operation's own.
 *   A channel's fd belongs to the channel; whoever drives it last closes it.
 *
 * Locks, always taken in this order
 *   channel->lock  its queue and state        (never held in a system call
 *                                              that moves bytes)
 *   shared->lock   which pumps serve all sockets
 *   pump->lock     its lists of channels
 *   port->lock     its list of ended operations
 *   pools_lock     where pools are (pool.c)
 *
 * Driving.  At most one thread at a time makes system calls on a channel; it
 * sets channel->driving under the lock, lets go of the lock for each call, and
 * does what was asked for meanwhile (cancel, close) when it is back.
 *
 * The life of a channel
 *
 *   OPEN --(error)--> BROKEN --+
 *     |                        +--(azc_close)--> CLOSING --> CLOSED
 *     +------------------------+        at once, or when the driver is back
 *   any --(fork, in the child)--> DEAD
 */
#ifndef AZC_CHANNEL_H
#define AZC_CHANNEL_H
#include <stdatomic.h>

#include "azc.h"
#include "registry.h"
#include "sys.h"

enum { VEC_INLINE = 4, VEC_MAX = 1024 };

#ifndef AZC_LOANS_MAX /* the simulation's are fewer, and near the last number */
#define AZC_LOANS_MAX  256
#define AZC_FIRST_LOAN 0
#endif

typedef struct azc_op azc_op;
struct azc_op {
    azc_op *next;
    azc_port *port; /* who hears of the end; NULL: nobody */
    uint64_t token;
    uint64_t total; /* bytes in vec */
    uint64_t need;  /* it is over once this many were moved */
    uint64_t done;  /* moved so far */
    uint64_t end;   /* the queue's accepted offset when it was all in */
    int status;
    int outcome;
    bool submitting; /* the call that made it still runs and will free it */
    bool ended;
    uint64_t in_flight; /* bytes that a system call has right now */
    bool lent; /* the reader may still look at some of its pages */
    bool cancelled; /* ... and it is to be cancelled afterwards */
    uint64_t rescue_limit;
    azc_op *notice; /* the node that will tell of the cancelling */
    void *rescue; /* the copied rest, to be freed */
    struct iovec *vec, first[VEC_INLINE];
    int count, at; /* vec[at] is the first with bytes left, advanced in place */
    uint64_t into; /* bytes of vec[at] that were moved */
    uint64_t *ends; /* of a batch: where each message ends */
    int nends;
};

azc_op *azc__op_new(const struct iovec *vec, int count, const uint64_t *sizes,
                    int nsizes);
void azc__op_free(azc_op *op);
size_t azc__op_detach(azc_op *op);
bool azc__op_truncate(azc_op *op);
uint64_t azc__op_messages(const azc_op *op);
ssize_t azc__op_rescue(azc_op *op, uint64_t limit);

/* queue.c.  head..cursor: with the kernel; cursor..tail: still to be moved. */
typedef struct azc_queue {
    azc_op *head, *tail, *cursor;
    uint64_t accepted; /* bytes the kernel has taken, ever */
    uint64_t bytes;    /* still to be moved */
    uint64_t ops;
} azc_queue;

void azc__queue_push(azc_queue *queue, azc_op *op);
void azc__queue_push_first(azc_queue *queue, azc_op *op);
int azc__queue_gather(azc_queue *queue, struct iovec *vec, int max_ops,
                      uint64_t max_bytes, size_t lend_from, bool *lend);
void azc__queue_accept(azc_queue *queue, uint64_t n, bool lent);
azc_op *azc__queue_consume(azc_queue *queue, uint64_t upto);
azc_op *azc__queue_find(azc_queue *queue, uint64_t token);
void azc__queue_remove(azc_queue *queue, azc_op *op);

/* pool.c: memory whose pages may be lent. */
bool azc__pool_lends(const void *from, size_t n);
size_t azc__pool_detach(const void *at, const void **slot);
void azc__pool_fork_lock(void);
void azc__pool_fork_unlock(void);

/* port.c */
void azc__port_hold(azc_port *port);
void azc__port_drop(azc_port *port);
void azc__port_post(azc_port *port, azc_op *op);

/* pace.c: the piece that a pipe's reader gets on with best. */
enum { PACES = 2, SHORTEST_PIECE = 8 << 10 };

typedef enum { RESTING, SETTLING, MEASURED } azc_pace_part;

typedef struct azc_pace {
    int now, favourite;
    int wins; /* of the favourite's rival, in a row */
    azc_pace_part part;
    unsigned lost;  /* by its rival, since it is the favourite */
    double to_beat; /* nanoseconds a byte */
    uint64_t since; /* the clock's start; 0: it stands still */
    uint64_t spent; /* nanoseconds, in this part, */
    uint64_t bytes; /* and what they were spent on */
} azc_pace;

size_t azc__pace_piece(const azc_pace *pace);
void azc__pace_start(azc_pace *pace);
void azc__pace_stop(azc_pace *pace);
void azc__pace_moved(azc_pace *pace, uint64_t bytes);

/* lanes.c: one way to move bytes. */
typedef struct azc_lane {
    ssize_t (*move)(azc_channel *channel, struct iovec *vec, int count);
    uint64_t chunk;  /* bytes a move */
    uint64_t direct; /* bytes that a submitting thread may move itself */
    size_t lend_from; /* bytes that a piece must have to be lent */
    bool polled;     /* the fd tells when it is ready; else it always is */
    bool bounced;    /* the call may last, so it gets a copy of the bytes */
    bool shared;     /* many channels of this kind share one pump */
    bool paced;      /* the moves are cut into pieces, see pace.c */
} azc_lane;

const azc_lane *azc__lane_for(const struct stat *st, int fd, int flags);
const azc_lane *azc__lane_waiting(void);
size_t azc__lane_bounce_size(void);
ssize_t azc__lane_fill(azc_channel *channel, const struct iovec *vec,
                       int count);

typedef struct azc_pump azc_pump;

/* lend.c: what a socket was lent, a loan for each system call. */
enum { LOANS_MAX = AZC_LOANS_MAX }; /* not settled; what is more is copied */

typedef struct azc_loans {
    uint64_t made, settled; /* all below settled are over; never wraps */
    bool no_room; /* the kernel had none for the last: the next call copies */
    uint64_t from[LOANS_MAX]; /* where in the stream each of the others begins */
} azc_loans;

/* An fd, closed when the last of its channels is. */
typedef struct azc_file {
    atomic_int refs;
    atomic_bool lost; /* the number belongs to another file now */
    atomic_bool lends; /* its error queue has or may have something to tell */
} azc_file;

enum azc_state { OPEN, BROKEN, CLOSING, CLOSED, DEAD };

struct azc_channel {
    pthread_mutex_t lock;
    azc_registered registered;
    atomic_int refs; /* the caller's, and the pump's */
    azc_file *file;
    atomic_int fd; /* -1 once closed */
    int flags;
    dev_t device;
    ino_t inode;
    const azc_lane *lane;
    azc_pace pace;
    bool lends; /* a pool's pages are lent, until the kernel refuses */
    azc_loans *loans; /* of a socket; NULL: none are made */
    uint64_t read; /* no lent page below this offset is looked at any more */
    unsigned nap_us; /* until that is asked for again; 0: the fd will tell */
    unsigned more_calls; /* of the move going on, after its first */
    bool met_full; /* ... which got on until then */
    atomic_bool hurry; /* ... for whose end a cancel or a close is waiting */
    bool in_caller; /* ... made in a thread that is the program's, */
    uint64_t late;  /* ... who wants it back at this time; 0: at the end */
    uint64_t full_at; /* stats.bytes when the fd was full, the last time */
    bool crowded; /* no core is left for a pump beside us and the peer */
    char *bounce; /* of a lane that works on copies */
    size_t kept_at, kept; /* received into the bounce, not yet asked for */
    azc_queue queue;
    enum azc_state state;
    int error;     /* why it is BROKEN */
    bool driving;
    bool armed;    /* the pump will drive it once the fd is ready */
    bool watched;  /* ... or once the fd has something to tell of loans */
    bool woken;    /* ... and that has just been */
    bool rested;   /* it was woken for nothing, and has paused since */
    int starved;   /* times in a row that the kernel was out of memory */
    bool known;    /* the pump's poller has heard of this fd */
    azc_port *home; /* of azc_send_home: the caller keeps it open */
    uint64_t home_token;
    uint64_t turn, spent; /* calls at home that may end at once, and did */
    azc_pump *pump;
    azc_channel *pump_next, *leaving_next; /* in lists of the pump's */
    bool pump_listed;
    azc_op *close_op; /* the node that will tell of the closing */
    azc_stats stats;
};

static inline bool azc__outward(const azc_channel *channel) {
    return channel->flags & AZC_OUT;
}

/* From here on, unless it says otherwise, the channel's lock is held by the
 * caller; and where a function lets go of it, it is held again on return. */

/* channel.c */
int azc__prepare_bounce(azc_channel *channel);
bool azc__was_replaced(azc_channel *channel);
void azc__finish_close(azc_channel *channel); /* lets go of the lock */
void azc__channel_unref(azc_channel *channel); /* called without the lock */

/* cancel.c: how operations end. */
void azc__end(azc_channel *channel, azc_op *op, int status);
void azc__end_one(azc_channel *channel, azc_op *op, int status);
void azc__end_list(azc_channel *channel, azc_op *op, int status);
void azc__end_all(azc_channel *channel, int status);
void azc__break(azc_channel *channel, int error);
void azc__settle(azc_channel *channel);
void azc__settle_cancelled(azc_channel *channel, azc_op *op);

/* lend.c */
void azc__lend_begin(azc_channel *channel);
size_t azc__lend_from(const azc_channel *channel);
ssize_t azc__lend(azc_channel *channel, struct iovec *vec,
                  int count); /* called without the lock */
ssize_t azc__weigh_loan(azc_channel *channel, ssize_t r, bool lent);
bool azc__is_owed(const azc_channel *channel);
int azc__tally(azc_channel *channel, int drove); /* lets go of the lock */

/* drive.c.  What made a drive stop: */
enum {
    DROVE_DRY,     /* nothing is left to be moved */
    DROVE_BLOCKED, /* the fd is full, or empty */
    DROVE_BUDGET,  /* others want their turn, or the submitter has had his */
    DROVE_LENT,    /* all is out, but some is lent */
    DROVE_STARVED, /* the kernel is out of memory: try again a little later */
    DROVE_DISTURBED, /* blocked, but the fd reports what is for another */
};
int azc__drive(azc_channel *channel, uint64_t budget, bool direct);
void azc__hand_over(azc_channel *channel, int drove);
void azc__channel_resume(azc_channel *channel); /* called without the lock */

/* pump.c */
int azc__pump_arm(azc_channel *channel, int drove);
void azc__pump_kick(azc_channel *channel);
void azc__pump_leave(azc_channel *channel);
void azc__pump_detach(azc_channel *channel, bool closed);

/* registry.c */
bool azc__channel_hold(azc_channel *channel);
int azc__registry_channels(azc_channel **channels, int max);
void azc__channel_fork_child(azc_channel *channel);
void azc__pump_fork_child(azc_pump *pump);
void azc__port_fork_child(azc_port *port);
void azc__pump_fork_lock(void);
void azc__pump_fork_unlock(void);

/* Deliberate faults, compiled in only for the tests that must catch them. */
#ifdef AZC_SABOTAGE
enum {
    SABOTAGE_ORDER = 1,
    SABOTAGE_TAIL = 2,
    SABOTAGE_RESCUE = 4,
    SABOTAGE_IDENTITY = 8,
    SABOTAGE_LOAN = 16,
    SABOTAGE_DETACH = 32,
    SABOTAGE_GAP = 64,
};
extern int azc_sabotage;
#define SABOTAGED(what) (azc_sabotage & SABOTAGE_##what)
#else
#define SABOTAGED(what) 0
#endif

#endif
