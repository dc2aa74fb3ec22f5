/* azc.h - the contract of the C helper, read by the compiler and by cffi.
 *
 * ring.h has the contract of the rings.  build_azc.py drops the lines that begin with a
 * hash sign and gives the rest to cffi.  So the only directives here are guards and
 * includes, constants are enum members, and no comment line begins with a hash sign.
 *
 * A function that returns a number returns >= 0 or -errno, and never -EINTR.  All may be
 * called from any thread, and cffi calls them without the GIL.
 *
 * The nouns
 *   channel   one fd, one direction, one first-in-first-out queue of operations
 *   operation one message to send, or one receive; named by a token, which the
 *             caller chooses and uses only once
 *   port      reports to one event loop (or one waiting thread) the operations
 *             that end later; its fd is readable while there are events
 *   pool      memory in slots, whose pages may be lent to a reader: then
 *             an operation is over when the reader has read it
 *   relay     moves bytes from one channel to another, inside the kernel if possible
 *   ring      one side of records through shared memory; azc_ring.h has its protocol
 *   pump      the threads that finish what a call could not finish at once:
 *             one for all sockets of a direction, one for each busy pipe, tty
 *             or file.  They need neither the loop nor the GIL.  A loop may receive
 *             by itself (azc_port_watch); the pump takes over when the loop is late.
 *
 * Channels, ports, pools, relays and rings are named by numbers that are never used again.
 * So a call that comes too late, from another thread or a finalizer, finds neither freed
 * memory nor another object: it returns -ESHUTDOWN, and in a forked child -ECHILD
 * (azc_pool_slot: NULL; azc_cancel: AZC_OVER).
 *
 * The one rule of memory: the bytes of an operation are borrowed from the call
 * that submits it until one of these:
 *   - that call returns anything but -EINPROGRESS and -EBUSY
 *   - the port reports the end of that token
 *   - azc_cancel returns anything but AZC_LATER
 *   - azc_move_to_copy returns 1 for it, or 0 if it was given a copy, or the port
 *     reports AZC_COPIED: from then on it borrows other memory
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
    AZC_OWN = 4,        /* we may make it non-blocking: a pipe end that we made or
                        * opened, or a socket */
    AZC_UNTRUSTED = 8,  /* calls on this fd may block: leave them to a pump */
    AZC_READS = 16,     /* with AZC_OWN: the peer only read()s, so a pool's pages
                        * may be lent to it, by a pipe or a UNIX socket */
    AZC_LENDS_ALL = 32, /* with AZC_READS: lends all other memory, too; what is
                         * unread when its operation ends early stays in the pipe,
                         * and the caller must take it out of there */
};

/* What azc_cancel did, and an event's outcome if its status is not 0. */
enum {
    AZC_DROPPED = 0, /* event.sent bytes are out; no more will be */
    AZC_RESCUED = 1, /* the unsent part was copied and will follow */
    AZC_LATER = 2,   /* a system call is using the buffer: wait for the event */
    AZC_OVER = 3,    /* it had ended before, or was never submitted */
    AZC_UNKNOWN = 4, /* at least event.sent bytes are out; a system call that is
                      * sending more of them has not returned */
    AZC_REFUSED = 5, /* its memory cannot be used; the channel goes on */
    AZC_KEPT = 6,    /* its pages could not be taken back from the reader, who
                      * may look at them for ever: never use them again */
};

/* The status of an event that does not end its operation. */
enum {
    AZC_ROOM = 1,   /* the operation is within the channel's limit now */
    AZC_COPIED = 2, /* the operation uses the copy now: see azc_move_to_copy */
};

enum { AZC_MOST_FDS = 253 }; /* of one message; the kernel's own limit */

/* Open files that travel with bytes over a UNIX socket.  The struct is borrowed as the
 * bytes are.  Its owner owns the files in it, and closes them with azc_close_fds: those
 * that were sent, and those that were received. */
typedef struct azc_fds {
    int32_t count;   /* files below: to be sent, or received */
    int32_t room;    /* files that are expected; a few more may come */
    int32_t cut_off; /* 1: too many came, and all of them were closed */
    int32_t fds[AZC_MOST_FDS];
} azc_fds;

/* How an operation ended, or where it stands.  In all of the helper, `sent` means the
 * bytes of an operation that are out; for a receive, those that have come. */
typedef struct azc_event {
    uint64_t sequence; /* its number among the port's events */
    uint64_t token;
    uint64_t sent;  /* bytes of this operation that are out, or have come */
    int32_t status; /* AZC_ROOM, AZC_COPIED, 0, or -errno: see azc_sendv and azc_recv */
    int32_t outcome;
} azc_event;

typedef struct azc_stats {
    uint64_t bytes;        /* moved through the channel so far */
    uint64_t messages;     /* operations (messages of a batch) completed */
    uint64_t calls;        /* system calls that moved or tried to move bytes */
    uint64_t waits;        /* of those, how many met a full or empty fd */
    uint64_t immediate;    /* operations that their submitting call finished */
    uint64_t rescued;      /* bytes copied so that their memory was free early */
    uint64_t lent;         /* of the bytes, how many went as lent pages */
    uint64_t queued_bytes; /* still to be moved, within the limit, now */
    uint64_t queued;       /* operations in the queue, within the limit, now */
    uint64_t waiting;      /* operations that wait for room, now */
    uint64_t leftover;     /* bytes that came before a receive asked for them */
    int32_t error;         /* 0, or the -errno that broke the channel */
    int32_t lends;         /* 1 if a pool's next bytes would be lent */
} azc_stats;

int azc_port_open(azc_id *port);
int azc_port_fd(azc_id port);
/* Lets the port's loop receive by itself: returns an fd; while it is readable the loop
 * calls azc_port_move.  A pump takes the place of a loop that is late.
 *   -EOPNOTSUPP  in the portable build; then the pump receives everything */
int azc_port_watch(azc_id port);
/* Receives what has come, for about half a millisecond.  1: there may be events. */
int azc_port_move(azc_id port);
/* Acknowledges and drops the events up to the sequence number `recorded`, and returns
 * the oldest of the others, up to max.  An event is returned again until it is
 * acknowledged, so an interrupted caller loses none. */
int azc_port_take(azc_id port, uint64_t recorded, azc_event *events, int max);
/* 1 while the port has an operation or an event that was not acknowledged; else 0. */
int azc_port_is_busy(azc_id port);
/* -EBUSY: the port is busy, and stays open. */
int azc_port_close(azc_id port);

/* Opens a channel over fd.  Unless this fails the channel owns fd, and closes it if the
 * number still has the same device and inode then.  A child that was made without the
 * handlers of pthread_atfork (vfork) has a copy of fd until it calls exec.  flags: AZC_IN
 * or AZC_OUT, with any of the other flags above.  azc_free frees the channel.
 *   -EINVAL  no direction, or both    -EBADF, -ENOMEM  as usual */
int azc_open(int fd, int flags, azc_id *channel);
/* As azc_open, over the only fd in fds, which is taken out of it on success. */
int azc_open_from(azc_fds *fds, int flags, azc_id *channel);

/* Opens the channel of the opposite direction over the same fd (a socket's, say).
 * The fd is closed with the last of the two. */
int azc_open_opposite(azc_id channel, azc_id *opposite);

/* Sets how many bytes may be queued, and one message for each KiB of them: see AZC_ROOM.
 * An empty queue has room for a message of any size. */
int azc_set_limit(azc_id channel, uint64_t bytes);

/* Sets, for azc_send_bound, the port and the token of the next message that cannot be
 * finished at once, and how many sends may finish at once before one returns 1. */
int azc_bind_port(azc_id channel, azc_id port, uint64_t token, unsigned budget);

/* Sends the n bytes at data, after all that was sent before: one message, or several in
 * one block.
 *   0             all is out
 *   1             all is out, and the fairness budget is spent: yield to the loop.
 *                 (A send counts 1, and 1 more for each 4 KiB)
 *   -EINPROGRESS  queued: an event with the token will come
 *   -EBUSY        only if ask_room: as azc_sendv
 *   -ESTALE       nothing was done: another token is bound, or none
 *   -ESHUTDOWN    azc_close was called       -ECHILD  we are a forked child
 *   other         the error that broke the channel earlier
 * The event's status: 0, -ESHUTDOWN (closed meanwhile), -ECANCELED (azc_cancel),
 * -EFAULT with AZC_REFUSED, or the error that broke the channel.
 * Unless all is out, the token is no longer bound.  So no other message can get it from a
 * signal handler or finalizer that sends before the next azc_bind_port. */
int azc_send_bound(azc_id channel, uint64_t token, const void *data, size_t n,
                   int messages, int ask_room);
/* Sets the sizes of several messages whose azc_send_bound returned -EINPROGRESS.
 * Without this, or if the sum of the sizes is wrong (-EINVAL), they are cancelled as
 * one message. */
int azc_set_sizes(azc_id channel, uint64_t token, const uint64_t *sizes, int nsizes);

/* What azc_send_to_all has sent to one channel. */
typedef struct azc_tally {
    uint64_t messages; /* how many were out at once */
    uint64_t bytes;    /* in these messages */
    uint64_t age_ns;   /* of the last of them, when it was out */
    int32_t away;      /* 1: send nothing there */
    int32_t result;    /* of the last call: see azc_send_to_all */
} azc_tally;

/* A channel, and the token that has to be bound there (azc_bind_port). */
typedef struct azc_seat {
    azc_id channel;
    uint64_t token;
    azc_tally *tally;
} azc_seat;

/* Sends one message, of count pieces (an empty one may cost a system call), to each of n
 * seats.  The message was made at since_ns, on the monotonic clock.  Each result is that
 * of azc_send_bound, but 0 instead of 1, and -ESTALE for a seat that is away.  Two seats
 * may have the same token.  Returns how many results are not 0, and stores their seats. */
int azc_send_to_all(const azc_seat *seats, int n, const struct iovec *vec, int count,
                    uint64_t since_ns, int *which);

/* As azc_send_bound for count pieces, with any port and token.  sizes holds the lengths of
 * the messages in a batch: a cancelled batch ends after the message in progress.
 * nsizes of 0 means one message.  vec and sizes are copied.
 *   -EBUSY        only if ask_room: queued beyond the limit.  An event AZC_ROOM
 *                 comes once it is within
 *   -EINVAL       the pieces and the sizes have different sums */
int azc_sendv(azc_id channel, azc_id port, uint64_t token, const struct iovec *vec,
              int count, const uint64_t *sizes, int nsizes, int ask_room);

/* Receives at least need and at most n bytes; with fds, for which need is 1, also the
 * files that come with the bytes.
 *   >= 0  the bytes received; fewer than need means the end of the stream
 *   -EINPROGRESS and the others: as azc_sendv; at the end of the stream an event
 *   has status 0 and fewer bytes than need
 *   -EFAULT (also of an event, with AZC_REFUSED) data cannot be written */
ssize_t azc_recv(azc_id channel, azc_id port, uint64_t token, void *data, size_t n,
                 size_t need, azc_fds *fds);

/* If no receive is queued, receives the bytes that are there, n at most, without a
 * token.  If some of need bytes have come it asks a few times for the next piece; else
 * it does not wait.  Returns how many bytes came, and stores that in *received unless
 * it is 0.  The end of the stream and an error of the fd are left to azc_recv. */
ssize_t azc_recv_now(azc_id channel, void *data, size_t n, size_t need,
                     uint64_t *received);

/* As azc_recv with a need of n.  The thread that receives the last of the n bytes calls
 * then(with), before the end is reported.  The memory that `then` uses is borrowed as
 * data is. */
ssize_t azc_recv_then(azc_id channel, azc_id port, uint64_t token, void *data, size_t n,
                      void (*then)(void *with), void *with);

/* As azc_sendv, for one message of n bytes, 1 at least.  The fds go with its
 * first byte.
 *   -ETOOMANYREFS  (also of an event, with AZC_REFUSED) too many fds are in flight */
int azc_send_fds(azc_id channel, azc_id port, uint64_t token, const void *data,
                 size_t n, azc_fds *fds);

/* Stores duplicates of count fds, closed on exec.  0, or -EBADF, -EMFILE, -EINVAL (too
 * many): then none are stored. */
int azc_dup_fds(azc_fds *fds, const int *from, int count);
/* Stores the ends of a new pipe, one in each.  Both are closed on exec, and never 0, 1
 * or 2, which a daemon may have closed.  0, or -EMFILE, -ENFILE: none are stored. */
int azc_pipe(azc_fds *from, azc_fds *into);
/* Closes the fds, and sets their count to 0. */
void azc_close_fds(azc_fds *fds);

/* Gives the buffers of an operation back before its end.  The rest of a message that has
 * begun is copied; if it is longer than limit bytes the channel breaks with -ECANCELED.
 *   AZC_OVER   the channel is gone, or does not know the token.  Take the port's
 *              events first: the operation's may be there.  If it was the last
 *              operation that ended in its own call, *event says how it ended (not
 *              of an azc_send_bound that was out at once)
 *   others     see AZC_DROPPED; an event with this token comes, or is there already */
int azc_cancel(azc_id channel, uint64_t token, uint64_t limit, azc_event *event);

/* Copies n bytes; -EFAULT if one of the two cannot be read, or written. */
ssize_t azc_copy(void *to, const void *from, size_t n);
/* Copies the pieces of a message, one after the other. */
int azc_copy_message(void *to, const struct iovec *vec, int count);

/* Gives back the buffers of n operations that carry one message of total bytes, and lets
 * them go on from copy, which has the same bytes.  If count is 1 to 4, an operation that
 * has not begun becomes the message of vec instead.  Each operation borrows copy and
 * vec's memory as it did its buffers.  Without a copy (NULL), one that has begun keeps
 * its buffers.  results[i]:
 *   0            it uses the copy now (without one: its buffers)
 *   1            it is the message of vec now
 *   -EINPROGRESS a system call is using its buffers: the event AZC_COPIED, or the
 *                event of the end, says when the call no longer uses them
 *   other        it is over; its event comes, or is there already */
int azc_move_to_copy(const azc_id *channels, const uint64_t *tokens, int n,
                     const void *copy, uint64_t total, const struct iovec *vec,
                     int count, int *results);

/* How a relay moves bytes: azc_relay_state.lane. */
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
    uint64_t nbytes;   /* the most bytes to move, those of first included */
    const void *first; /* bytes that go out before the source's; copied */
    size_t nfirst;
    int once;          /* end when some bytes were moved and the source is empty */
    int completes;     /* once begun, go on to the end even if cancelled: relay.c */
    uint64_t expected; /* bytes that it will move, for azc_unsent; 0: not known */
} azc_relay_request;

typedef struct azc_relay_state {
    uint64_t taken; /* bytes from the source, first's included */
    uint64_t sent;  /* bytes to the sink */
    int32_t lane;
    int32_t began; /* 1: its turn has come, and first counts as taken */
} azc_relay_state;

/* Moves bytes from one channel to the other in a thread of its own, as one message, until
 * the source ends or nbytes are moved.  The relay waits for what both channels had queued
 * before, and later operations wait for the relay.
 *   -EINPROGRESS  an event with this token will come.  azc_cancel of the sink's channel
 *                 stops the relay; then what was taken from the source is out
 *                 (AZC_DROPPED) or follows (AZC_RESCUED).  If it completes,
 *                 AZC_RESCUED means that all the rest follows
 *   -EAGAIN       no thread could be started
 *   others        *failed is AZC_IN or AZC_OUT if the source or the sink is to blame
 * An event with a status and AZC_REFUSED means that the source has failed or was closed,
 * and the sink can go on.  If the sink breaks, what was taken and not delivered comes
 * with the source's next receive. */
int azc_relay_open(const azc_relay_request *wanted, azc_id *relay, int *failed);
int azc_relay_ask(azc_id relay, azc_relay_state *state);
/* Gives the number back; the relay goes on until its end. */
int azc_relay_free(azc_id relay);

/* Closes the fd; in another thread if that may take long and a thread can be started.
 * What is queued ends with -ESHUTDOWN, in order.  With port 0 there is no event.
 *   -EINPROGRESS  an event with this token will come, or is there already
 *   1             closed (only with port 0)
 *   -ENOMEM       not closed: call it with port 0
 *   -EALREADY     called before */
int azc_close(azc_id channel, azc_id port, uint64_t token);

/* Gives the number back; closes the channel first if azc_close was not called. */
int azc_free(azc_id channel);

/* Opens a pool of slots, of slot_bytes each, in memory of its own.  Views of a
 * slot may be sent and changed like any other memory.  Before azc_pool_close
 * every operation with the pool's memory must be over. */
int azc_pool_open(size_t slot_bytes, int slots, azc_id *pool);
/* The slot's address; that of the slot after the last is the end of the memory. */
void *azc_pool_slot(azc_id pool, int slot);
int azc_pool_close(azc_id pool);
/* Sets *at to `to` if it is `from`, atomically; 1 if it did. */
int azc_exchange(uint64_t *at, uint64_t from, uint64_t to);
/* Returns *at, which other threads exchange; what they stored before that is seen. */
uint64_t azc_look(const uint64_t *at);

/* The channel's fd; negative once it is closed. */
int azc_fd(azc_id channel);
int azc_shutdown(azc_id channel);
int azc_get_stats(azc_id channel, azc_stats *stats);

/* At interpreter exit: closes every channel and waits until no thread uses borrowed
 * memory, which is about to be freed; after ms milliseconds returns -ETIMEDOUT. */
int azc_stop(int ms);

/* Bytes that the channels of this process have not sent yet. */
uint64_t azc_unsent(void);

#endif
