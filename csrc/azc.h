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
 *   operation one message to send, or one receive; named by a token, which the
 *             caller chooses and never uses for another
 *   port      where one event loop (or one waiting thread) hears of operations
 *             that ended later; its fd becomes readable when there are any
 *   pool      memory in slots, whose pages may be lent to a pipe's reader: then
 *             an operation is over when the reader has read it
 *   pump      the threads that finish what a call could not finish at once:
 *             one for all sockets of a direction, one for each busy pipe, tty
 *             or file.  They need neither the loop nor the GIL.
 *
 * Channels, ports and pools are named by numbers that are never used again, so a
 * call that comes too late, from another thread or a finalizer, meets no freed
 * memory and no successor: it returns -ESHUTDOWN, and in a forked child -ECHILD.
 *
 * The one rule of memory: the bytes of an operation are borrowed from the call
 * that submits it until that call returns >= 0, or returns an error other than
 * -EINPROGRESS and -EBUSY, or the port tells the end of that token, or azc_cancel
 * returns anything but AZC_LATER.
 */
#ifndef AZC_H
#define AZC_H
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

typedef uint64_t azc_id; /* 0 names nothing */

enum {
    AZC_IN = 1,        /* the channel receives */
    AZC_OUT = 2,       /* the channel sends */
    AZC_OWN = 4,       /* a pipe end we made: non-blocking, ours alone */
    AZC_UNTRUSTED = 8, /* no system call on this fd in a caller's thread */
    AZC_READS = 16,    /* with AZC_OWN: the peer only read()s, so a pool's pages
                        * may be lent to it */
};

/* What azc_cancel did, and an event's outcome if its status is not 0. */
enum {
    AZC_DROPPED = 0, /* nothing of it is or will be out, but event.bytes */
    AZC_RESCUED = 1, /* the unsent rest was copied and will follow */
    AZC_LATER = 2,   /* a system call has the buffer: its event will tell */
    AZC_OVER = 3,    /* it is over, or was never begun */
    AZC_UNKNOWN = 4, /* at least event.bytes are out; a system call that had
                      * more of them has not come back */
    AZC_REFUSED = 5, /* it alone: its memory is bad, the channel is well */
    AZC_KEPT = 6,    /* a reader may look at its memory for ever, which could
                      * not be taken back: never use that again */
};

/* An event's status, if that is not the end of the operation. */
enum {
    AZC_ROOM = 1, /* it is within the channel's limit now */
};

/* What has become of an operation. */
typedef struct azc_event {
    uint64_t sequence; /* of the port's events */
    uint64_t token;
    uint64_t bytes; /* bytes of this operation that were moved */
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
    int32_t error;         /* 0, or the -errno that broke the channel */
    int32_t threaded;      /* 1 if a thread of its own serves the channel */
    int32_t lends;         /* 1 if the next bytes of a pool would be lent */
} azc_stats;

/* Which build this is: 1 if portable (poll, pipe and no Linux-only call). */
int azc_portable(void);

int azc_port_open(azc_id *port);
int azc_port_fd(azc_id port);
/* The oldest events, up to max of them, after dropping all up to the sequence
 * number `recorded`: an event stays until the caller says that it has noted it,
 * and is told again until then.  The fd is readable while there are any. */
int azc_port_take(azc_id port, uint64_t recorded, azc_event *events, int max);
/* -EBUSY: operations name it, or events wait there, and it stays open. */
int azc_port_close(azc_id port);

/* A channel over fd, which it owns from now on (also its closing), unless the
 * call fails.  flags: AZC_IN or AZC_OUT, and what else there is above.
 *   -EINVAL  not one direction          -ENOMEM, -EMFILE  as usual
 * Freed by azc_free. */
int azc_open(int fd, int flags, azc_id *channel);

/* The channel of the opposite direction over the same fd (a socket's, say).
 * The fd is closed with the later of the two. */
int azc_open_opposite(azc_id channel, azc_id *opposite);

/* How many bytes may be queued: see AZC_ROOM.  A message of any size has room
 * where there is no other. */
int azc_set_limit(azc_id channel, uint64_t bytes);

/* For azc_send_bound: the port and the token of the next message that cannot be
 * finished at once.  turn: after so many that were, the call returns 1. */
int azc_bind_port(azc_id channel, azc_id port, uint64_t token, unsigned turn);

/* Sends the n bytes at data as one message, after all that was sent before.
 *   0             all is out
 *   1             the same, and it is time to let others run: so many sends (a
 *                 longer one counts for each 4 KiB) have ended at once
 *   -EINPROGRESS  queued: an event with the token of azc_bind_port will come.
 *                 Bind another before the next call
 *   -ESHUTDOWN    azc_close was called       -ECHILD  we are a forked child
 *   other         the error that broke the channel earlier
 * The event's status: 0, -ESHUTDOWN (closed meanwhile), -ECANCELED (azc_cancel),
 * -EFAULT with AZC_REFUSED, or the error that broke the channel. */
int azc_send_bound(azc_id channel, const void *data, size_t n);
/* The same, and -EBUSY as azc_sendv with ask_room. */
int azc_put_bound(azc_id channel, const void *data, size_t n);

/* The same for count messages in one block.  Where each of them ends is told by
 * azc_set_sizes, if the batch was queued; without it they are one message. */
int azc_send_batch(azc_id channel, const void *data, size_t n, int count);
int azc_set_sizes(azc_id channel, uint64_t token, const uint64_t *sizes,
                  int nsizes);

/* The same for count pieces, to any port and under any token.  sizes holds the
 * lengths of the messages in a batch: a cancelled batch ends after the message in
 * progress.  nsizes of 0 means that all is one message.  vec and sizes are copied.
 *   -EBUSY        only if ask_room: queued beyond the limit.  An event AZC_ROOM
 *                 comes before the end, as soon as it is within
 *   -EINVAL       the pieces and the sizes have different sums */
int azc_sendv(azc_id channel, azc_id port, uint64_t token,
              const struct iovec *vec, int count, const uint64_t *sizes,
              int nsizes, int ask_room);

/* Receives at least need and at most n bytes.
 *   >= 0  that many; fewer than need means the end of the stream
 *   -EINPROGRESS and the rest: as azc_sendv; an event may have status 0 and
 *   fewer bytes than need, at the end of the stream. */
ssize_t azc_recv(azc_id channel, azc_id port, uint64_t token, void *data,
                 size_t n, size_t need);

/* Gives the buffers of an operation back before its end.  A rest of more than
 * limit bytes is not copied: it breaks the channel with -ECANCELED.
 *   AZC_OVER   the channel is gone, or does not know the token.  Its event may
 *              still be in the port, and is to be taken first; of a receive that
 *              ended in its own call, and was the last to do so, *event says how
 *   others     as above: an event with this token comes, or is there already */
int azc_cancel(azc_id channel, uint64_t token, uint64_t limit,
               azc_event *event);

/* Closes the fd; if that can take time, in another thread, unless there is none to be
 * had.  What is queued ends with -ESHUTDOWN, in order.
 *   -EINPROGRESS  an event with this token will come, or is there already
 *   1             closed (port was 0: nobody is told)
 *   -ENOMEM       not closed; without a port it will be
 *   -EALREADY     called before */
int azc_close(azc_id channel, azc_id port, uint64_t token);

/* The number names nothing from here on.  Closes first, if nobody has. */
int azc_free(azc_id channel);

/* A pool of slots, each of so many bytes, in memory of its own.  Views of a
 * slot may be sent and changed like any other memory.  Before azc_pool_close
 * every operation with its memory must be over. */
int azc_pool_open(size_t slot_bytes, int slots, azc_id *pool);
void *azc_pool_slot(azc_id pool, int slot);
size_t azc_pool_bytes(azc_id pool);
int azc_pool_close(azc_id pool);

/* Its fd; negative once that is closed. */
int azc_fd(azc_id channel);
int azc_shutdown(azc_id channel);
int azc_get_stats(azc_id channel, azc_stats *stats);

/* Interpreter exit: closes every channel and waits up to ms milliseconds for
 * the threads, so that nobody reads memory which is about to be freed. */
int azc_stop(int ms);

/* Bytes that are queued in all channels of this process. */
uint64_t azc_unsent(void);

#endif
