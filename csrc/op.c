/* op.c - one message on its way, or one receive. */
#include "op.h"

#include <errno.h>

#include "pool.h"
#include "sabotage.h"

static void mark_ends(azc_op *op, const uint64_t *sizes, int nsizes) {
    uint64_t end = 0;
    for (int i = 0; i < nsizes; i++) op->ends[i] = end += sizes[i];
    op->nends = op->messages = nsizes;
}

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
    azc__op_fill(op, vec, count);
    op->messages = 1;
    if (nsizes) {
        op->ends = (uint64_t *)(void *)(after + pieces);
        mark_ends(op, sizes, nsizes);
    }
    return op;
}

void azc__op_fill(azc_op *op, const struct iovec *vec, int count) {
    op->count = 0;
    op->total = 0;
    for (int i = 0; i < count; i++) {
        if (!vec[i].iov_len) continue;
        op->vec[op->count++] = vec[i];
        op->total += vec[i].iov_len;
    }
    op->need = op->total;
}

void azc__op_free(azc_op *op) {
    azc_sys.release(op->rescue);
    azc_sys.release(op->own_ends);
    azc_sys.release(op);
}

int azc__op_set_sizes(azc_op *op, const uint64_t *sizes, int nsizes) {
    uint64_t sum = 0;
    for (int i = 0; i < nsizes; i++) sum += sizes[i];
    if (sum != op->total) return -EINVAL;
    if (op->ends) return 0;
    op->own_ends = op->ends = azc_sys.allocate((size_t)nsizes * sizeof *sizes);
    if (!op->ends) return -ENOMEM;
    mark_ends(op, sizes, nsizes);
    return 0;
}

uint64_t azc__op_messages(const azc_op *op) {
    uint64_t messages = 0;
    if (!op->nends) return op->sent >= op->need ? (uint64_t)op->messages : 0;
    for (int i = 0; i < op->nends; i++) messages += op->ends[i] <= op->sent;
    return messages;
}

uint64_t azc__op_advance(azc_op *op, uint64_t n) {
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
    op->sent += taken;
    if (SABOTAGED(TAIL) && taken && op->sent < op->need) op->sent = op->need;
    return taken;
}

void azc__op_truncate(azc_op *op) {
    int i = 0;
    while (i < op->nends && op->ends[i] < op->sent + op->in_flight) i++;
    if (i == op->nends) return;
    op->total = op->need = op->ends[i];
    op->nends = op->messages = i + 1;
}

/* iov_base has advanced past the bytes that are sent, so the byte before it finds their
 * slot. */
ssize_t azc__op_detach(azc_op *op) {
    ssize_t moved = 0;
    if (SABOTAGED(DETACH)) return 0;
    int begun = op->at + (op->into > 0);
    const void *slot = NULL;
    for (int i = 0; i < begun; i++) {
        ssize_t r = azc__pool_detach((char *)op->vec[i].iov_base - 1, &slot);
        if (r < 0) return r;
        moved += r;
    }
    op->lent = false;
    return moved;
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

/* Lent pages are taken back: the reader keeps them, and the slot gets copies. */
ssize_t azc__op_go_on_from(azc_op *op, const char *rest) {
    ssize_t moved = op->lent ? azc__op_detach(op) : 0;
    if (moved < 0) return moved;
    op->vec[0] = (struct iovec){(void *)(uintptr_t)rest, op->total - op->sent};
    op->count = op->sent < op->total;
    op->at = 0;
    op->into = 0;
    return moved;
}

/* Copies the unsent bytes first: taking lent pages back moves them to other pages. */
ssize_t azc__op_rescue(azc_op *op, uint64_t limit) {
    uint64_t rest = op->total - op->sent;
    if (rest > limit) return -ENOBUFS;
    char *copy = rest ? azc_sys.allocate(rest) : NULL;
    if (rest && !copy) return -ENOMEM;
    ssize_t r = copy_rest(op, copy, rest);
    if (r < 0 || SABOTAGED(RESCUE)) {
        azc_sys.release(copy);
        return r;
    }
    ssize_t moved = azc__op_go_on_from(op, copy);
    if (moved < 0)
        azc_sys.release(copy);
    else
        op->rescue = copy;
    return moved < 0 ? moved : r + moved;
}
