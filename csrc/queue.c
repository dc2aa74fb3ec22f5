/* queue.c - one fd's queue of operations, first in, first out, by byte offsets. */
#include "queue.h"

#include "pool.h"
#include "sabotage.h"

enum {
    LEND_CHUNK = 1 << 20, /* bytes lent by one call: what our pipes hold */
    ENOUGH = 1 << 20,     /* bytes that make a call worth its cost */
    A_MESSAGE = 1 << 10,  /* bytes that one takes here and in the caller's memory */
};

/* ---- coming in ------------------------------------------------------- */

/* (op is not yet counted, and the cursor must not wait) */
static bool has_room(const azc_queue *queue, const azc_op *op) {
    uint64_t others = queue->ops - queue->waiting;
    if (SABOTAGED(GATE) || queue->cursor == op) return true;
    if (others >= queue->limit / A_MESSAGE) return false;
    return !queue->bytes || queue->bytes + op->total <= queue->limit;
}

static void append(azc_queue *queue, azc_op *op) {
    if (SABOTAGED(ORDER) && queue->cursor && queue->cursor != queue->tail) {
        op->next = queue->cursor->next; /* overtakes operations not yet begun */
        queue->cursor->next = op;
        return;
    }
    if (queue->tail)
        queue->tail->next = op;
    else
        queue->head = op;
    queue->tail = op;
    if (!queue->cursor) queue->cursor = op;
}

bool azc__queue_push(azc_queue *queue, azc_op *op) {
    append(queue, op);
    bool fits = !queue->first_waiting && has_room(queue, op);
    queue->ops++;
    if (fits) {
        queue->bytes += op->total;
        return true;
    }
    if (!queue->first_waiting) queue->first_waiting = op;
    queue->waiting++;
    return false;
}

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

azc_op *azc__queue_admit(azc_queue *queue) {
    azc_op *op = queue->first_waiting;
    if (!op || !has_room(queue, op)) return NULL;
    queue->first_waiting = op->next;
    queue->waiting--;
    queue->bytes += op->total;
    return op;
}

/* ---- being sent ------------------------------------------------------ */

bool azc__queue_lends(const azc_queue *queue, const struct iovec *piece,
                      size_t lend_from) {
    if (!lend_from || piece->iov_len < lend_from) return false;
    return queue->lends_all || azc__pool_lends(piece->iov_base, piece->iov_len);
}

/* Lists the next bytes to move, of at most max_ops operations, and marks them as in
 * flight.  After ENOUGH bytes no message is added, so that a message that is out need not
 * wait for the next ones.  Returns the number of pieces; 0 if only empty messages come
 * next.  Pieces of at least lend_from bytes are lent if their memory allows it; 0 lends
 * nothing.  *lend says whether the listed ones are.  A message with fds goes alone. */
int azc__queue_gather(azc_queue *queue, struct iovec *vec, int max_ops,
                      uint64_t max_bytes, size_t lend_from, bool *lend) {
    *lend = false;
    int count = 0;
    uint64_t sum = 0;
    for (azc_op *op = queue->cursor; op && max_ops-- > 0 && sum < ENOUGH;
         op = op->next) {
        if (op == queue->first_waiting || op->hold) return count;
        bool alone = op->fds && !SABOTAGED(FILES);
        if (alone && op != queue->cursor) return count;
        for (int i = op->at; i < op->count; i++) {
            if (count == VEC_MAX || !max_bytes) return count;
            size_t n = op->vec[i].iov_len;
            if (azc__queue_lends(queue, &op->vec[i], lend_from) != *lend) {
                if (count) return count; /* one call lends or copies, not both */
                *lend = true;
                max_bytes = LEND_CHUNK;
            }
            if (n > max_bytes) n = max_bytes;
            vec[count++] = (struct iovec){op->vec[i].iov_base, n};
            max_bytes -= n;
            sum += n;
            op->in_flight += n;
        }
        if (alone) return count;
    }
    return count;
}

azc_op *azc__queue_next(const azc_queue *queue) {
    azc_op *op = queue->cursor;
    return op && op->hold ? NULL : op;
}

void azc__queue_advance(azc_queue *queue, uint64_t n, bool lent) {
    while (queue->cursor && queue->cursor != queue->first_waiting) {
        azc_op *op = queue->cursor;
        uint64_t left = op->total - op->sent;
        uint64_t taken = azc__op_advance(op, n);
        op->lent = op->lent || (lent && taken);
        n -= taken;
        queue->sent += taken;
        if (op->sent < op->need) {
            queue->bytes -= taken;
            return;
        }
        queue->bytes -= left;
        op->end = queue->sent;
        queue->cursor = op->next;
    }
}

/* ---- going out ------------------------------------------------------- */

/* Takes out the operations that are over, as a list in order: they are sent as a whole,
 * and their lent pages were read.  An empty message (a flush) waits for all before it. */
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

azc_op *azc__queue_find(const azc_queue *queue, uint64_t token) {
    azc_op *op = queue->head;
    while (op && !(op->note && azc__note_token(op->note) == token)) op = op->next;
    return op;
}

static bool is_waiting(const azc_queue *queue, const azc_op *op) {
    const azc_op *it = queue->first_waiting;
    while (it && it != op) it = it->next;
    return it != NULL;
}

void azc__queue_remove(azc_queue *queue, azc_op *op) {
    azc_op *before = NULL;
    if (is_waiting(queue, op))
        queue->waiting--;
    else
        queue->bytes -= op->total - op->sent;
    for (azc_op *it = queue->head; it != op; it = it->next) before = it;
    if (before)
        before->next = op->next;
    else
        queue->head = op->next;
    if (queue->tail == op) queue->tail = before;
    if (queue->cursor == op) queue->cursor = op->next;
    if (queue->first_waiting == op) queue->first_waiting = op->next;
    queue->ops--;
}

void azc__queue_replace(azc_queue *queue, azc_op *op, const struct iovec *vec,
                        int count) {
    bool counts = !is_waiting(queue, op);
    if (counts) queue->bytes -= op->total;
    azc__op_fill(op, vec, count);
    if (counts) queue->bytes += op->total;
}

azc_op *azc__queue_take_all(azc_queue *queue) {
    azc_op *all = queue->head;
    queue->head = queue->tail = queue->cursor = queue->first_waiting = NULL;
    queue->bytes = queue->ops = queue->waiting = 0;
    return all;
}

void azc__queue_truncate(azc_queue *queue, azc_op *op) {
    uint64_t before = op->total;
    azc__op_truncate(op);
    queue->bytes -= before - op->total;
}
