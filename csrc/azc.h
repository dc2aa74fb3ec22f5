/* azc.h - the contract of the C helper, read by the compiler and by cffi; ring.h has
 * the other part of it.
 *
 * build_azc.py drops the lines that begin with a hash sign and gives the rest to
 * cffi.  So the only directives here are guards and includes, constants are enum
 * members, and no line of a comment begins with a hash sign.
 *
 * Every function returns >= 0 or -errno.  EINTR never leaves.  All functions
 * may be called from any thread, and cffi calls them without the GIL.
 *
 * The nouns
 *   channel   one fd, one direction, one first-in-first-out queue of operations
 *   operation one message to send, or one receive; named by a token, which the
 *             caller chooses and uses only once
 *   port      tells one event loop (or one waiting thread) of operations that
 *             ended later; its fd is readable while there are events
 *   pool      memory in slots, whose pages may be lent to a reader: then
 *             an operation is over when the reader has read it
 *   relay     moves bytes from one channel to another inside the kernel
 *   ring      one side of records through shared memory; azc_ring.h has its protocol
 *   pump      the threads that finish what a call could not finish at once:
 *             one for all sockets of a direction, one for each busy pipe, tty
 *             or file.  They need neither the loop nor the GIL.  What a loop
 *             receives itself while it is awake (azc_port_watch) is theirs when it
 *             is late.
 *
 * Channels, ports, pools, relays and rings are named by numbers that are never used again.
 * So a call that comes too late, from another thread or a finalizer, finds neither freed
 * memory nor another object: it returns -ESHUTDOWN, and in a forked child -ECHILD.
 *
 * The one rule of memory: the bytes of an operation are borrowed from the call
 * that submits it until one of these:
 *   - that call returns anything but -EINPROGRESS and -EBUSY
 *   - the port tells the end of that token
 *   - azc_cancel returns anything but AZC_LATER
 *   - azc_move_to_copy returns 0 or 1 for it, or the port tells AZC_COPIED: from
 *     then on it borrows other memory
 */
#ifndef AZC_H
#define AZC_H
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

typedef uint64_t azc_id; /* 0 names nothing */

enum {
    AZC_IN = 1,         /* the channel receives */
    AZC_OUT = 2,        /* the channel sends */
    AZC_OWN = 4,        /* a pipe end we made: non-blocking, ours alone; or a
                        * socket that may be made non-blocking */
    AZC_UNTRUSTED = 8,  /* calls on this fd may block: leave them to a pump */
    AZC_READS = 16,     /* with AZC_OWN: the peer only read()s, so a pool's pages
                        * may be lent to it, by a pipe or a UNIX socket */
    AZC_LENDS_ALL = 32, /* with AZC_READS: all other memory, too; what is unread
                         * when its operation ends early stays in the pipe, and
                         * whoever opened the channel must take it out there */
};

/* What azc_cancel did, and an event's outcome if its status is not 0. */
enum {
    AZC_DROPPED = 0, /* event.sent of it are out; no more will be */
    AZC_RESCUED = 1, /* the unsent rest was copied and will follow */
    AZC_LATER = 2,   /* a system call is using the buffer: wait for the event */
    AZC_OVER = 3,    /* it has ended before, or was never submitted */
    AZC_UNKNOWN = 4, /* at least event.sent are out; a system call that had
                      * more of them has not returned */
    AZC_REFUSED = 5, /* its memory cannot be read; the channel goes on */
    AZC_KEPT = 6,    /* its pages could not be taken back from the reader, who
                      * may look at them for ever: never use them again */
};

/* The status of an event that does not end its operation. */
enum {
    AZC_ROOM = 1,   /* the operation is within the channel's limit now */
    AZC_COPIED = 2, /* it reads from the copy now: see azc_move_to_copy */
};

enum { AZC_MOST_FDS = 253 }; /* of one message; the kernel's own limit */

/* Open files that travel with bytes over a Unix socket.  The memory is borrowed as the
 * bytes are.  The files are its owner's: those to be sent until they are closed by
 * azc_close_fds, and those that have come from then on. */
typedef struct azc_fds {
    int32_t count;   /* of those below: to be sent, or come */
    int32_t room;    /* how many are expected; a few more may come */
    int32_t cut_off; /* 1: more came, and all of them were closed */
    int32_t fds[AZC_MOST_FDS];
} azc_fds;

/* What has become of an operation.  The bytes of one that are out are `sent` in all of
 * the helper; of a receive, those that have come. */
typedef struct azc_event {
    uint64_t sequence; /* of the port's events */
    uint64_t token;
    uint64_t sent;  /* bytes of this operation: that are out, or have come */
    int32_t status; /* AZC_ROOM, 0, or -errno; see azc_sendv and azc_recv */
    int32_t outcome;
} azc_event;

typedef struct azc_stats {
    uint64_t bytes;        /* moved through the channel so far */
    uint64_t messages;     /* operations (messages of a batch) completed */
    uint64_t calls;        /* system calls that moved or tried to move bytes */
    uint64_t waits;        /* of those, how many met a full or empty fd */
    uint64_t immediate;    /* operations that the call itself finished */
    uint64_t rescued;      /* bytes copied because a send was cancelled */
    uint64_t lent;         /* of the bytes, how many went as lent pages */
    uint64_t queued_bytes; /* still to be moved, within the limit, now */
    uint64_t queued;       /* operations in the queue, within the limit, now */
    uint64_t waiting;      /* operations that wait for room, now */
    uint64_t leftover;     /* bytes that came and no receive has asked for */
    int32_t error;         /* 0, or the -errno that broke the channel */
    int32_t lends;         /* 1 if a pool's next bytes would be lent */
} azc_stats;

int azc_port_open(azc_id *port);
int azc_port_fd(azc_id port);
/* Lets the port's loop receive what has come itself: returns an fd, which it watches to
 * call azc_port_move.  A pump takes the place of a loop that is late.
 *   -EOPNOTSUPP  in the portable build; then the pump receives everything */
int azc_port_watch(azc_id port);
/* Receives what has come, for half a millisecond or so.  1: look for events. */
int azc_port_move(azc_id port);
/* Drops the events up to the sequence number `recorded`, which acknowledges them,
 * and returns the oldest of the others, up to max.  Each is returned again and
 * again until it is acknowledged, so an interrupted caller loses none. */
int azc_port_take(azc_id port, uint64_t recorded, azc_event *events, int max);
/* 1 while an operation, or an event that was not acknowledged, belongs to it; else 0. */
int azc_port_is_busy(azc_id port);
/* -EBUSY: it is, and stays open. */
int azc_port_close(azc_id port);

/* A channel over fd, which it owns from now on (also its closing), unless the call
 * fails: as long as the number has the same device and inode.  A child that others
 * fork has a copy until it calls exec.  flags: AZC_IN or AZC_OUT, and others above.
 *   -EINVAL  not one direction    -ENOMEM, -EMFILE  as usual    Freed by azc_free. */
int azc_open(int fd, int flags, azc_id *channel);
/* As azc_open, over the one fd in fds; if it succeeds, none is left in it. */
int azc_open_from(azc_fds *fds, int flags, azc_id *channel);

/* The channel of the opposite direction over the same fd (a socket's, say).
 * The fd is closed with the later of the two. */
int azc_open_opposite(azc_id channel, azc_id *opposite);

/* How many bytes may be queued: see AZC_ROOM.  An empty queue has room for a
 * message of any size. */
int azc_set_limit(azc_id channel, uint64_t bytes);

/* For azc_send_bound: the port and the token of the next message that cannot be
 * finished at once, and how many sends may finish at once before one returns 1. */
int azc_bind_port(azc_id channel, azc_id port, uint64_t token, unsigned budget);

/* Sends the n bytes at data, after all that was sent before: one message, or several in
 * one block.
 *   0             all is out
 *   1             the same, and the fairness budget is spent: yield to the loop.
 *                 (A send counts once, and once more for each 4 KiB)
 *   -EINPROGRESS  queued: an event with the token will come
 *   -EBUSY        only if ask_room: as azc_sendv
 *   -ESTALE       nothing was done: another token is bound, or none
 *   -ESHUTDOWN    azc_close was called       -ECHILD  we are a forked child
 *   other         the error that broke the channel earlier
 * The event's status: 0, -ESHUTDOWN (closed meanwhile), -ECANCELED (azc_cancel),
 * -EFAULT with AZC_REFUSED, or the error that broke the channel.
 * Unless all is out, the token is bound no more: what calls this before another is bound (a
 * signal's handler, a finalizer) cannot have the same. */
int azc_send_bound(azc_id channel, uint64_t token, const void *data, size_t n,
                   int messages, int ask_room);
/* The sizes of several messages, if that was -EINPROGRESS.  Until then they are one, and
 * still are if the sum is another (-EINVAL). */
int azc_set_sizes(azc_id channel, uint64_t token, const uint64_t *sizes, int nsizes);

/* What one of many channels has got that are sent the same messages. */
typedef struct azc_tally {
    uint64_t messages; /* that were out at once */
    uint64_t bytes;    /* of these messages */
    uint64_t age_ns;   /* of the last of them, when it was out */
    int32_t away;      /* 1: nothing is sent there */
    int32_t result;    /* of the last call: see azc_send_to_all */
} azc_tally;

/* The operation with this token is the one that the channel is to have ready. */
typedef struct azc_seat {
    azc_id channel;
    uint64_t token;
    azc_tally *tally;
} azc_seat;

/* The same message, of count pieces (of which an empty one may cost a system call), to
 * each of n seats; made at since_ns, by the monotonic clock.  A result is azc_send_bound's,
 * but 0 for 1; -ESTALE also where it is away.  So two seats may have one token.
 * Returns how many are not 0, and stores which. */
int azc_send_to_all(const azc_seat *seats, int n, const struct iovec *vec, int count,
                    uint64_t since_ns, int *which);

/* As azc_send_bound for count pieces, with any port and token.  sizes holds the lengths of
 * the messages in a batch: a cancelled batch ends after the message in progress.
 * nsizes of 0 means one message.  vec and sizes are copied.
 *   -EBUSY        only if ask_room: queued beyond the limit.  An event AZC_ROOM
 *                 tells when it is within, before that of its end
 *   -EINVAL       the pieces and the sizes have different sums */
int azc_sendv(azc_id channel, azc_id port, uint64_t token, const struct iovec *vec,
              int count, const uint64_t *sizes, int nsizes, int ask_room);

/* Receives at least need and at most n bytes; and with fds, of which the need is 1, the
 * files that come with them.
 *   >= 0  that many; fewer than need means the end of the stream
 *   -EINPROGRESS and the rest: as azc_sendv; an event may have status 0 and
 *   fewer bytes than need, at the end of the stream. */
ssize_t azc_recv(azc_id channel, azc_id port, uint64_t token, void *data, size_t n,
                 size_t need, azc_fds *fds);

/* Receives what is there, n bytes at most, if no receive is queued: without a token, and
 * without waiting, but for the next piece of need bytes that have begun to come.  Returns
 * how many, and stores it in *received if any have come.  The rest, the end of the stream
 * and errors are for azc_recv. */
ssize_t azc_recv_now(azc_id channel, void *data, size_t n, size_t need,
                     uint64_t *received);

/* As azc_recv with a need of n.  Once all n bytes are there, and before that is told,
 * then(with) is called by the thread that has received the last of them.  What it
 * uses is borrowed as data is. */
ssize_t azc_recv_then(azc_id channel, azc_id port, uint64_t token, void *data, size_t n,
                      void (*then)(void *with), void *with);

/* As azc_sendv, for one message of n bytes, 1 at least.  The fds go with its
 * first byte.
 *   -ETOOMANYREFS  (also of an event, with AZC_REFUSED) too many are on their way */
int azc_send_fds(azc_id channel, azc_id port, uint64_t token, const void *data,
                 size_t n, azc_fds *fds);

/* Stores duplicates of count fds, closed on exec.  0, or -EBADF, -EMFILE, -EINVAL (too
 * many): then none are stored. */
int azc_dup_fds(azc_fds *fds, const int *from, int count);
/* Stores the ends of a new pipe, one in each.  Both are closed on exec, and never 0, 1
 * or 2, which a daemon may have free.  0, or -EMFILE, -ENFILE: then none are stored. */
int azc_pipe(azc_fds *from, azc_fds *into);
/* Closes the fds; there are none in it afterwards. */
void azc_close_fds(azc_fds *fds);

/* Gives the buffers of an operation back before its end.  If more than limit bytes
 * are unsent they are not copied, and the channel breaks with -ECANCELED.
 *   AZC_OVER   the channel is gone, or does not know the token.  Take the events
 *              of the port first: its own may be there.  If it was the last
 *              receive that ended in its own call, *event tells how
 *   others     as above: an event with this token comes, or is there already */
int azc_cancel(azc_id channel, uint64_t token, uint64_t limit, azc_event *event);

/* Copies the pieces of a message, one after the other. */
int azc_copy_message(void *to, const struct iovec *vec, int count);

/* Gives the buffers of n operations back that carry the same message, and lets them
 * go on: from the total bytes at copy, which are those of the message.  One of which
 * nothing is out yet becomes the message of vec instead, if count is not 0.  The copy
 * and vec's memory are borrowed by each operation as its buffers were.  Without a copy
 * (NULL) the others keep their buffers.  results[i]:
 *   0            it reads from the copy now
 *   1            it is the other message now
 *   -EINPROGRESS a system call is using its buffers: an event AZC_COPIED tells when
 *                it reads from the copy, unless that of its end comes instead
 *   other        it is over; its event comes, or is there already */
int azc_move_to_copy(const azc_id *channels, const uint64_t *tokens, int n,
                     const void *copy, uint64_t total, const struct iovec *vec,
                     int count, int *results);

/* How a relay moves bytes, and the answers of azc_relay_ask. */
enum {
    AZC_BY_COPY = 0,     /* through memory of its own */
    AZC_BY_SENDFILE = 1, /* from a file */
    AZC_BY_SPLICE = 2,   /* from or to a pipe */
    AZC_BY_PIPE = 3,     /* from a socket, through a pipe of its own */
};

typedef struct azc_relay_request {
    azc_id source, sink; /* channels */
    azc_id port;         /* as for azc_sendv */
    uint64_t token;
    uint64_t nbytes;   /* how many are to be moved at most, with those of first */
    const void *first; /* goes out before those of the source; copied */
    size_t nfirst;
    int once;          /* it is over as soon as the source is empty, after some bytes */
    int completes;     /* when it is cancelled, what has begun goes on: relay.c */
    uint64_t expected; /* bytes there are, for azc_unsent; 0: not known */
} azc_relay_request;

typedef struct azc_relay_state {
    uint64_t taken; /* bytes from the source, first's included */
    uint64_t sent;  /* bytes to the sink */
    int32_t lane;
    int32_t began; /* 1: first is its own; 0: it has moved nothing so far */
} azc_relay_state;

/* Moves bytes from one channel to the other, as one message, until the source ends or
 * nbytes are moved; in a thread of its own.  Both channels' queues wait for it, and it
 * for what was queued before.
 *   -EINPROGRESS  an event with this token will come.  Stop it by azc_cancel of the
 *                 sink's channel; then what was taken from the source is out
 *                 (AZC_DROPPED) or follows (AZC_RESCUED), or all does that is
 *                 to be moved, if it completes
 *   -EAGAIN       there is no thread to be had
 *   others        *failed is AZC_IN or AZC_OUT if they are the source's or the sink's
 * An event with a status and AZC_REFUSED means that the sink can go on: the source has
 * failed, or was closed.  If the sink breaks, what was taken and not delivered comes
 * with the source's next receive. */
int azc_relay_open(const azc_relay_request *wanted, azc_id *relay, int *failed);
int azc_relay_ask(azc_id relay, azc_relay_state *state);
/* Gives the number back; the relay goes on until its end. */
int azc_relay_free(azc_id relay);

/* Closes the fd; in another thread if that may take long and a thread can be had.
 * What is queued ends with -ESHUTDOWN, in order.  With port 0 there is no event.
 *   -EINPROGRESS  an event with this token will come, or is there already
 *   1             closed (only with port 0)
 *   -ENOMEM       not closed: call it with port 0
 *   -EALREADY     called before */
int azc_close(azc_id channel, azc_id port, uint64_t token);

/* Gives the number back.  Closes first, if azc_close was not called. */
int azc_free(azc_id channel);

/* A pool of slots, each of so many bytes, in memory of its own.  Views of a
 * slot may be sent and changed like any other memory.  Before azc_pool_close
 * every operation with its memory must be over. */
int azc_pool_open(size_t slot_bytes, int slots, azc_id *pool);
/* (the slot behind the last is the end of the memory) */
void *azc_pool_slot(azc_id pool, int slot);
int azc_pool_close(azc_id pool);
/* 1 if *at was `from` and is `to` now, in one step. */
int azc_exchange(uint64_t *at, uint64_t from, uint64_t to);
/* What *at is, which other threads exchange: and what they had done before is seen. */
uint64_t azc_look(const uint64_t *at);

/* Its fd; negative once that is closed. */
int azc_fd(azc_id channel);
int azc_shutdown(azc_id channel);
int azc_get_stats(azc_id channel, azc_stats *stats);

/* At interpreter exit: closes every channel and waits up to ms milliseconds until
 * no thread reads borrowed memory, which is about to be freed.  Or -ETIMEDOUT. */
int azc_stop(int ms);

/* Bytes that are queued in all channels of this process. */
uint64_t azc_unsent(void);

#endif
