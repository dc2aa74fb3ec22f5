/* azc.h - the whole contract of the C helper, read by the compiler and by cffi.
 *
 * One header, read twice.  build_azc.py drops the lines that begin with a hash
 * sign and gives the rest to cffi, so this file keeps to a small language:
 * guards and includes are the only directives, constants are enum members,
 * prototypes only, plain types, and no comment line begins with a hash sign.
 *
 * Every function returns >= 0 or -errno.  EINTR never leaves.  All functions
 * may be called from any thread, and cffi calls them without the GIL.
 *
 * The nouns
 *   channel   one fd, one direction, one first-in-first-out queue of operations
 *   operation one message to send, or one receive; named by a token
 *   port      where one event loop (or one waiting thread) hears of operations
 *             that ended later; its fd becomes readable when there are any
 *   pool      memory in slots, whose pages may be lent to a pipe's reader or a
 *             TCP socket: then an operation is over when the reader has read,
 *             or the peer has acknowledged
 *   pump      the threads that finish what a call could not finish at once:
 *             one for all sockets of a direction, one for each busy pipe, tty
 *             or file.  They need neither the loop nor the GIL.
 *
 * The one rule of memory: the bytes of an operation are borrowed from the call
 * that submits it until that call returns >= 0, or returns an error other than
 * -EINPROGRESS, or the event with its token is drained from the port, or
 * azc_cancel says so.
 */
#ifndef AZC_H
#define AZC_H
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

typedef struct azc_channel azc_channel;
typedef struct azc_port azc_port;
typedef struct azc_pool azc_pool;

enum {
    AZC_IN = 1,         /* the channel receives */
    AZC_OUT = 2,        /* the channel sends */
    AZC_OWN = 4,        /* a pipe end we made: non-blocking, shared with nobody */
    AZC_UNTRUSTED = 8,  /* no system call on this fd in a caller's thread */
    AZC_READS = 16,     /* with AZC_OWN: the peer only read()s, so a pool's pages
                         * may be lent to it */
    AZC_ZEROCOPY = 32,  /* a pool's pages may be lent to this socket, if it is
                         * TCP and the system allows it */
};

/* What would become of the next bytes of a pool. */
enum {
    AZC_LENDS_NOTHING = 0,
    AZC_LENDS_TO_PIPE = 1,   /* vmsplice */
    AZC_LENDS_TO_SOCKET = 2, /* MSG_ZEROCOPY */
};

/* What azc_cancel did. */
enum {
    AZC_DROPPED = 0,  /* not a byte had gone out: no trace of it is left */
    AZC_RESCUED = 1,  /* the unsent rest was copied and will follow */
    AZC_LATER = 2,    /* a system call has the buffer: an event will tell */
};

/* How an operation ended. */
typedef struct azc_event {
    uint64_t token;
    uint64_t bytes;   /* bytes of this operation that were moved */
    int32_t status;   /* 0, or -errno; see azc_send and azc_recv */
    int32_t outcome;  /* of a cancelled one: AZC_DROPPED or AZC_RESCUED */
} azc_event;

typedef struct azc_stats {
    uint64_t bytes;         /* moved through the channel so far */
    uint64_t messages;      /* operations (messages of a batch) completed */
    uint64_t calls;         /* system calls that moved or tried to move bytes */
    uint64_t waits;         /* of those, how many met a full or empty fd */
    uint64_t immediate;     /* operations that were finished by the call itself */
    uint64_t rescued;       /* bytes copied because a send was cancelled */
    uint64_t lent;          /* of the bytes, how many went as lent pages */
    uint64_t queued_bytes;  /* still to be moved, now */
    uint64_t queued;        /* operations in the queue, now */
    int32_t error;          /* 0, or the -errno that broke the channel */
    int32_t threaded;       /* 1 if a thread of its own serves the channel */
    int32_t lends;          /* AZC_LENDS_...: the next bytes of a pool */
} azc_stats;

/* Which build this is: 1 if portable (poll, pipe and no Linux-only call). */
int azc_portable(void);

/* A port.  Freed by azc_port_close, once no operation names it any more. */
int azc_port_open(azc_port **port);
int azc_port_fd(azc_port *port);
/* Takes up to max events; fewer than max means that the port is now empty. */
int azc_port_drain(azc_port *port, azc_event *events, int max);
void azc_port_close(azc_port *port);

/* A channel over fd, which it owns from now on (also its closing), unless the
 * call fails.  flags: AZC_IN or AZC_OUT, and what else there is above.
 *   -EINVAL  not one direction          -ENOMEM, -EMFILE  as usual
 * Freed by azc_free. */
int azc_open(int fd, int flags, azc_channel **channel);

/* The channel of the opposite direction over the same fd (a socket's, say).
 * The fd is closed with the later of the two. */
int azc_open_opposite(azc_channel *channel, azc_channel **opposite);

/* Sends the n bytes at data as one message, after all that was sent before.
 *   n             all is out
 *   -EINPROGRESS  queued: an event with this token will come
 *   -ESHUTDOWN    azc_close was called       -ECHILD  we are a forked child
 *   other         the error that broke the channel earlier
 * The event's status: 0, -ESHUTDOWN (closed meanwhile), -ECANCELED (azc_cancel
 * had to wait), -EFAULT (bad memory, nothing of it was sent, the channel is
 * well) or the error that broke the channel.
 * Buffers are the caller's again when: see the one rule of memory above. */
ssize_t azc_send(azc_channel *channel, azc_port *port, uint64_t token,
                 const void *data, size_t n);

/* The quickest way for small messages: azc_send to the port and under the token
 * that azc_set_home has set, in one thread.  After -EINPROGRESS set another
 * token.
 *   0             all is out
 *   1             the same, and it is others' turn: so many calls (a longer one
 *                 counts for each 4 KiB) have ended at once since the last 1 */
int azc_send_home(azc_channel *channel, const void *data, size_t n);
void azc_set_home(azc_channel *channel, azc_port *port, uint64_t token,
                  unsigned turn);

/* The same for a batch of messages in one block; sizes is copied, if need be. */
int azc_send_batch(azc_channel *channel, const void *data, size_t n,
                   const uint64_t *sizes, int nsizes);

/* As azc_send for count pieces.  sizes holds the lengths of the messages in a
 * batch: a cancelled batch ends after the message in progress.  nsizes of 0
 * means that all is one message.  vec and sizes are copied.
 *   -EINVAL       the pieces and the sizes have different sums */
ssize_t azc_sendv(azc_channel *channel, azc_port *port, uint64_t token,
                  const struct iovec *vec, int count, const uint64_t *sizes,
                  int nsizes);

/* Receives at least need and at most n bytes.
 *   >= 0  that many; fewer than need means the end of the stream
 *   -EINPROGRESS and the rest: as azc_send; an event may have status 0 and
 *   fewer bytes than need, at the end of the stream. */
ssize_t azc_recv(azc_channel *channel, azc_port *port, uint64_t token,
                 void *data, size_t n, size_t need);

/* Gives the buffers of an operation back before its end.
 *   AZC_DROPPED   a send: nothing of it is or will be out; a receive: it is
 *                 over, event->bytes bytes had arrived
 *   AZC_RESCUED   the rest was copied (up to limit bytes) and will be sent
 *   AZC_LATER     not yet: its event will say -ECANCELED and the outcome, or 0
 *                 if it all got out meanwhile.  If the call that submitted it
 *                 still runs, that may return the end instead.
 *   -ENOENT       it has ended already: its event is in the port
 *   -ENOBUFS      more than limit bytes were left: the channel is broken now
 * Buffers are the caller's again when: on return, except after AZC_LATER and
 * -ENOENT (when the event has been drained). */
int azc_cancel(azc_channel *channel, uint64_t token, uint64_t limit,
               azc_event *event);

/* Closes the fd; what is queued ends with -ESHUTDOWN, in order.
 *   1             closed
 *   -EINPROGRESS  a thread has it in hand: an event with this token will come
 *   -EALREADY     called before */
int azc_close(azc_channel *channel, azc_port *port, uint64_t token);

/* Frees a closed channel.  Waits for its thread, which has nothing to do any
 * more; one that a peer holds inside a system call is left behind.  No other
 * call on the channel may be in progress, nor follow. */
void azc_free(azc_channel *channel);

/* A pool of slots, each of so many bytes, in memory of its own.  Views of a
 * slot may be sent and changed like any other memory.  Before azc_pool_close
 * every operation with its memory must be over. */
int azc_pool_open(size_t slot_bytes, int slots, azc_pool **pool);
void *azc_pool_slot(azc_pool *pool, int slot);
size_t azc_pool_bytes(azc_pool *pool);
void azc_pool_close(azc_pool *pool);

int azc_fd(azc_channel *channel);
int azc_shutdown(azc_channel *channel);
int azc_get_stats(azc_channel *channel, azc_stats *stats);

/* Interpreter exit: closes every channel and waits up to ms milliseconds for
 * the threads, so that nobody reads memory which is about to be freed. */
int azc_stop(int ms);

/* os.register_at_fork: the child's channels are dead and its copies of our
 * fds are closed; nothing of the parent is touched. */
void azc_fork_prepare(void);
void azc_fork_parent(void);
void azc_fork_child(void);

#endif
