/* queue.h - one fd's queue of operations, first in, first out, by byte offsets.
 *
 * No system calls and no locks: the channel's lock is held by the caller.
 *
 *   head .......... cursor .......... first_waiting .... tail
 *    | with the reader | to be moved,  | to be moved,
 *    |                 | within limit  | have no room yet
 *
 * advance(n)     the kernel has taken n more bytes: operations are advanced in
 *                place, and the cursor passes each that is sent as a whole
 * consume(upto)  the reader has read all bytes below this offset: the operations
 *                before the cursor that end there are over
 * admit()        there is room for the first operation that waits
 *
 * There is room for `limit` bytes, and for one operation for each KiB of the limit.
 * Copied bytes are consumed as soon as they are sent, so without loans head is
 * cursor.  An operation with lent pages stays until the reader has read it.  An
 * empty queue has room for any operation, so the cursor never waits for room.
 */
#ifndef AZC_QUEUE_H
#define AZC_QUEUE_H
#include "op.h"

typedef struct azc_queue {
    azc_op *head, *tail, *cursor, *first_waiting;
    uint64_t limit;   /* the most `bytes`; and for each KiB of it one operation */
    uint64_t sent;    /* bytes of all operations, ever: the cursor's offset */
    uint64_t bytes;   /* still to be moved, within the limit */
    uint64_t ops;     /* how many operations there are */
    uint64_t waiting; /* how many of them have no room yet */
    bool lends_all;   /* any memory may be lent, not only a pool's */
} azc_queue;

/* Puts an operation at the end.  False: it has no room yet. */
bool azc__queue_push(azc_queue *queue, azc_op *op);
/* Puts an operation at the cursor: some of it was moved before it was queued. */
void azc__queue_push_first(azc_queue *queue, azc_op *op);
/* Returns the next operation that waited and has room now, or NULL. */
azc_op *azc__queue_admit(azc_queue *queue);
/* May this piece be lent, with lend_from as for azc__queue_gather? */
bool azc__queue_lends(const azc_queue *queue, const struct iovec *piece,
                      size_t lend_from);
int azc__queue_gather(azc_queue *queue, struct iovec *vec, int max_ops,
                      uint64_t max_bytes, size_t lend_from, bool *lend);
void azc__queue_advance(azc_queue *queue, uint64_t n, bool lent);
/* Returns the next operation whose bytes are to be moved.  NULL: there is none, or a
 * hold comes first, whose relay moves bytes. */
azc_op *azc__queue_next(const azc_queue *queue);
azc_op *azc__queue_consume(azc_queue *queue, uint64_t upto);
azc_op *azc__queue_find(const azc_queue *queue, uint64_t token);
void azc__queue_remove(azc_queue *queue, azc_op *op);
/* Makes an operation of which nothing is sent yet another message. */
void azc__queue_replace(azc_queue *queue, azc_op *op, const struct iovec *vec,
                        int count);
/* Empties the queue; returns all operations as a list, in order. */
azc_op *azc__queue_take_all(azc_queue *queue);
/* Ends a batch after the message in progress, as azc__op_truncate. */
void azc__queue_truncate(azc_queue *queue, azc_op *op);

#endif
