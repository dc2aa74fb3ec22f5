/* op.h - one message on its way, or one receive.
 *
 * An operation belongs to its channel's queue until it ends (or to the call that
 * submits it, if that still runs).  Its bytes are borrowed from the caller, unless
 * rescue is set: then they are a copy of its own.  Its note reports its end to the
 * caller; without a note no one waits for it.
 */
#ifndef AZC_OP_H
#define AZC_OP_H
#include "azc.h"
#include "port.h"
#include "sys.h"

enum { VEC_INLINE = 4, VEC_MAX = 1024 };

typedef struct azc_op azc_op;

/* A relay's place in a queue.  Its operation has no bytes, and the queue stops there: the
 * relay moves bytes when its turn comes.  Both functions are called with the channel's
 * lock, `wake` only while the operation is in the queue. */
typedef struct azc_hold azc_hold;
struct azc_hold {
    /* Its turn may have come, or it is asked to stop. */
    void (*wake)(azc_hold *hold);
    /* Its operation on the sink (outward) or on the source has ended. */
    void (*lost)(azc_hold *hold, bool outward, int status);
    bool completes; /* once begun it goes on to the end, even if cancelled */
};

struct azc_op {
    azc_op *next;          /* in its queue */
    azc_note *note;        /* NULL: no one waits */
    uint64_t total;        /* bytes in vec */
    uint64_t need;         /* it is over once this many bytes are sent */
    uint64_t sent;         /* bytes that are out; of a receive, have come */
    uint64_t end;          /* the queue's offset after its last byte */
    uint64_t in_flight;    /* bytes that a system call is using */
    uint64_t rescue_limit; /* of a cancel that waits for that call */
    int status, outcome;
    bool submitting; /* the call that made it still runs and will free it */
    bool ended;
    bool asks_room;           /* post AZC_ROOM when it is within the limit */
    bool lent;                /* the reader may still read some of its pages */
    bool cancelled;           /* a cancel is pending until a system call returns */
    const char *copy;         /* the copy to go on from after that call, or NULL */
    azc_hold *hold;           /* or NULL */
    uint64_t expected;        /* of a hold: bytes that it will move, or 0 */
    azc_fds *fds;             /* files that go out or come with it, or NULL */
    void (*then)(void *with); /* called once all is received, before the end */
    void *with;
    bool in_then; /* `then` is running, and uses its memory */
    void *rescue; /* its own copy of the unsent bytes, or NULL */
    struct iovec *vec, first[VEC_INLINE];
    int count, at;  /* vec[at] is the first with bytes left, advanced in place */
    uint64_t into;  /* bytes of vec[at] that are sent */
    uint64_t *ends; /* of a batch: where each message ends */
    int nends;
    int messages;   /* how many it consists of */
    void *own_ends; /* ends, if they have memory of their own */
};

azc_op *azc__op_new(const struct iovec *vec, int count, const uint64_t *sizes,
                    int nsizes);
/* Makes these pieces its bytes, of which none may be sent yet.  More than VEC_INLINE
 * fit only if it was made with as many. */
void azc__op_fill(azc_op *op, const struct iovec *vec, int count);
void azc__op_free(azc_op *op);
/* Sets the lengths of its messages, unless they are known; 0, -ENOMEM, or -EINVAL if
 * their sum is not the total. */
int azc__op_set_sizes(azc_op *op, const uint64_t *sizes, int nsizes);
/* How many of its messages are sent to their ends. */
uint64_t azc__op_messages(const azc_op *op);
/* Notes that n bytes more are sent; returns how many of these were its own. */
uint64_t azc__op_advance(azc_op *op, uint64_t n);
/* Ends a batch after the message in progress. */
void azc__op_truncate(azc_op *op);
/* Takes lent pages back from the reader; returns the bytes copied, or -errno. */
ssize_t azc__op_detach(azc_op *op);
/* Goes on from `rest`, which has the unsent bytes; returns the lent bytes copied, or
 * -errno. */
ssize_t azc__op_go_on_from(azc_op *op, const char *rest);
/* Copies the unsent bytes into memory of its own, and goes on from there; returns the
 * bytes copied (lent ones, too), or -ENOBUFS (more than limit), -ENOMEM, -EFAULT. */
ssize_t azc__op_rescue(azc_op *op, uint64_t limit);

#endif
