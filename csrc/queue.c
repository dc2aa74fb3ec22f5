/* queue.c - one fd's first-in-first-out of operations, by byte offsets.
 *
 * No system calls and no locks: the channel's lock is held by the caller.
 *
 *   head ............ cursor ............ tail
 *    | with the kernel  | still to be moved |
 *
 * accept(n)      the kernel has taken n more bytes: operations are advanced in
 *                place, and the cursor passes each that is all in
 * consume(upto)  the kernel needs none of the bytes below this offset any more:
 *                the operations before the cursor that end there are over
 *
 * What was copied is consumed as soon as it is accepted, so without loans head
 * is cursor.  An operation with lent pages stays until the reader has read it.
 */
#include <errno.h>
#include <string.h>

#include "channel.h"

enum {
    LEND_CHUNK = 1 << 20, /* bytes a call: what our pipes hold */
    ENOUGH = 1 << 20, /* bytes, for a call to be worth it */
};

#ifdef AZC_SABOTAGE
int azc_sabotage;
#endif

/* One block of memory holds the operation, its pieces and its ends. */
azc_op *azc__op_new(const struct iovec *vec, int count, const uint64_t *sizes,
                    int nsizes) {
    size_t pieces = count > VEC_INLINE ? (size_t)count * sizeof *vec : 0;
    size_t marks = (size_t)nsizes * sizeof *sizes;
    azc_op *op = azc_sys.allocate(sizeof *op + pieces + marks);
    if (!op) return NULL;
    memset(op, 0, sizeof *op);
    char *after = (char *)(op + 1);
    op->vec = pieces ? (struct iovec *)(void *)after : op->first;
    op->ends = nsizes ? (uint64_t *)(void *)(after + pieces) : NULL;
    for (int i = 0; i < count; i++) {
        if (!vec[i].iov_len) continue;
        op->vec[op->count++] = vec[i];
        op->total += vec[i].iov_len;
    }
    uint64_t end = 0;
    for (int i = 0; i < nsizes; i++) op->ends[i] = end += sizes[i];
    op->nends = nsizes;
    op->need = op->total;
    return op;
}

/* Takes the operation's pages back from the reader.  A piece that was moved, in
 * part or wholly, has advanced in place, so look at the byte before it. */
size_t azc__op_detach(azc_op *op) {
    size_t moved = 0;
    op->lent = false;
    if (SABOTAGED(DETACH)) return 0;
    int begun = op->at + (op->into > 0);
    const void *slot = NULL;
    for (int i = 0; i < begun; i++)
        moved += azc__pool_detach((char *)op->vec[i].iov_base - 1, &slot);
    return moved;
}

void azc__op_free(azc_op *op) {
    if (op->rescue) azc_sys.release(op->rescue);
    if (op->notice) azc_sys.release(op->notice);
    azc_sys.release(op);
}

/* How many messages the operation has carried to their end. */
uint64_t azc__op_messages(const azc_op *op) {
    uint64_t messages = 0;
    if (!op->nends) return op->done >= op->need;
    for (int i = 0; i < op->nends; i++) messages += op->ends[i] <= op->done;
    return messages;
}

/* Ends a batch after the message in progress; says if anything is left. */
bool azc__op_truncate(azc_op *op) {
    for (int i = 0; i < op->nends; i++) {
        if (op->ends[i] < op->done + op->in_flight) continue;
        op->total = op->need = op->ends[i];
        op->nends = i + 1;
        break;
    }
    return op->done < op->total;
}

/* Copies the n bytes that come next. */
static ssize_t copy_rest(const azc_op *op, char *to, uint64_t n) {
    uint64_t copied = 0;
    for (int i = op->at; copied < n; i++) {
        uint64_t step = op->vec[i].iov_len;
        if (step > n - copied) step = n - copied;
        ssize_t r = azc_sys.copy(to + copied, op->vec[i].iov_base, step);
        if (r < 0) return r;
        copied += step;
    }
    return (ssize_t)copied;
}

/* Copies the unsent rest and then takes lent pages back (which may lose what is
 * in them), so that the caller's memory is needed no more.  Returns how many
 * bytes that has copied. */
ssize_t azc__op_rescue(azc_op *op, uint64_t limit) {
    uint64_t rest = op->total - op->done;
    if (rest > limit) return -ENOBUFS;
    char *copy = rest ? azc_sys.allocate(rest) : NULL;
    if (rest && !copy) return -ENOMEM;
    ssize_t r = copy_rest(op, copy, rest);
    if (r < 0) {
        azc_sys.release(copy);
        return r;
    }
    if (op->lent) r += (ssize_t)azc__op_detach(op);
    if (!rest) return r;
    if (SABOTAGED(RESCUE)) {
        azc_sys.release(copy);
        return r;
    }
    op->rescue = copy;
    op->vec = op->first;
    op->vec[0] = (struct iovec){copy, rest};
    op->count = 1;
    op->at = 0;
    op->into = 0;
    return r;
}

void azc__queue_push(azc_queue *queue, azc_op *op) {
    op->next = NULL;
    if (SABOTAGED(ORDER) && queue->cursor && queue->cursor != queue->tail) {
        op->next = queue->cursor->next; /* overtakes those not yet begun */
        queue->cursor->next = op;
    } else {
        if (queue->tail)
            queue->tail->next = op;
        else
            queue->head = op;
        queue->tail = op;
        if (!queue->cursor) queue->cursor = op;
    }
    queue->bytes += op->total;
    queue->ops++;
}

/* For one that began before all those which are still to be moved. */
void azc__queue_push_first(azc_queue *queue, azc_op *op) {
    azc_op **place = &queue->head;
    while (*place != queue->cursor) place = &(*place)->next;
    op->next = queue->cursor;
    *place = op;
    if (!op->next) queue->tail = op;
    queue->cursor = op;
    queue->bytes += op->total;
    queue->ops++;
}

static bool is_lendable(const struct iovec *piece, size_t lend_from) {
    return piece->iov_len >= lend_from &&
           azc__pool_lends(piece->iov_base, piece->iov_len);
}

/* Lists the next bytes to move, of at most max_ops operations, and marks those
 * as in flight; a message that makes ENOUGH of them is the last, so that none
 * waits for those behind it.  Returns the pieces; 0 if only empty messages come
 * next.  A pool's pieces of lend_from bytes or more are to be lent, unless that
 * is 0; *lend says if these are. */
int azc__queue_gather(azc_queue *queue, struct iovec *vec, int max_ops,
                      uint64_t max_bytes, size_t lend_from, bool *lend) {
    *lend = false;
    int count = 0;
    uint64_t sum = 0;
    for (azc_op *op = queue->cursor; op && max_ops-- > 0 && sum < ENOUGH;
         op = op->next) {
        for (int i = op->at; i < op->count; i++) {
            if (count == VEC_MAX || !max_bytes) return count;
            size_t n = op->vec[i].iov_len;
            if (!n) continue;
            if (lend_from && is_lendable(&op->vec[i], lend_from) != *lend) {
                if (count) return count; /* two kinds never in one call */
                *lend = true;
                max_bytes = LEND_CHUNK;
            }
            if (n > max_bytes) n = max_bytes;
            vec[count++] = (struct iovec){op->vec[i].iov_base, n};
            max_bytes -= n;
            sum += n;
            op->in_flight += n;
        }
    }
    return count;
}

/* Moves one operation on by up to n bytes; returns how many it took. */
static uint64_t advance(azc_op *op, uint64_t n) {
    uint64_t taken = 0;
    while (op->at < op->count) {
        struct iovec *piece = &op->vec[op->at];
        uint64_t step = piece->iov_len < n - taken ? piece->iov_len : n - taken;
        piece->iov_base = (char *)piece->iov_base + step;
        piece->iov_len -= step;
        taken += step;
        op->into += step;
        if (piece->iov_len) break;
        op->at++;
        op->into = 0;
    }
    op->done += taken;
    if (SABOTAGED(TAIL) && taken && op->done < op->need) op->done = op->need;
    return taken;
}

void azc__queue_accept(azc_queue *queue, uint64_t n, bool lent) {
    while (queue->cursor) {
        azc_op *op = queue->cursor;
        uint64_t left = op->total - op->done;
        uint64_t taken = advance(op, n);
        op->lent = op->lent || (lent && taken);
        n -= taken;
        queue->accepted += taken;
        if (op->done < op->need) {
            queue->bytes -= taken;
            return;
        }
        queue->bytes -= left;
        op->end = queue->accepted;
        queue->cursor = op->next;
    }
}

/* Takes the operations out that are over, as a list in their order: all of it
 * accepted, and read if it was lent.  An empty message (a flush) waits for all
 * before it. */
azc_op *azc__queue_consume(azc_queue *queue, uint64_t upto) {
    azc_op *first = NULL, **end = &first, **place = &queue->head, *kept = NULL;
    while (*place != queue->cursor) {
        azc_op *op = *place;
        if (op->end <= upto || SABOTAGED(LOAN)) op->lent = false;
        if (op->lent || (!op->total && kept)) {
            kept = op;
            place = &op->next;
            continue;
        }
        *place = op->next;
        *end = op;
        end = &op->next;
        queue->ops--;
    }
    if (!queue->cursor) queue->tail = kept;
    *end = NULL;
    return first;
}

azc_op *azc__queue_find(azc_queue *queue, uint64_t token) {
    azc_op *op = queue->head;
    while (op && (op->token != token || !op->port)) op = op->next;
    return op;
}

void azc__queue_remove(azc_queue *queue, azc_op *op) {
    azc_op *before = NULL;
    for (azc_op *it = queue->head; it != op; it = it->next) before = it;
    if (before)
        before->next = op->next;
    else
        queue->head = op->next;
    if (queue->tail == op) queue->tail = before;
    if (queue->cursor == op) queue->cursor = op->next;
    queue->bytes -= op->total - op->done;
    queue->ops--;
    op->next = NULL;
}
