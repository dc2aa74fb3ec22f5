/* ending.c - how operations end: done, cancelled, or with their channel. */
#include "ending.h"

#include <errno.h>

#include "sabotage.h"

static int end(azc_channel *channel, azc_op *op, int status, int outcome) {
    if (status < 0 && op->in_flight) outcome = AZC_UNKNOWN;
    if (op->lent && azc__op_detach(op) < 0) outcome = AZC_KEPT;
    if (op->hold) op->hold->lost(op->hold, azc__outward(channel), status);
    op->status = status;
    op->outcome = outcome;
    op->ended = true;
    if (!azc__outward(channel))
        channel->stats.messages += status == 0;
    else if (status == 0 || op->sent) /* not an empty one that was dropped */
        channel->stats.messages += azc__op_messages(op);
    if (!op->submitting) {
        azc__note_post(op->note, op->sent, status, outcome);
        azc__op_free(op);
    }
    return outcome;
}

static void end_list(azc_channel *channel, azc_op *op, int status) {
    while (op) {
        azc_op *next = op->next;
        end(channel, op, status, AZC_DROPPED);
        op = next;
    }
}

int azc__end_one(azc_channel *channel, azc_op *op, int status, int outcome) {
    azc__queue_remove(&channel->queue, op);
    outcome = end(channel, op, status, outcome);
    azc__admit_waiting(channel);
    return outcome;
}

void azc__end_consumed(azc_channel *channel) {
    uint64_t upto = channel->lender.read;
    end_list(channel, azc__queue_consume(&channel->queue, upto), 0);
    azc__admit_waiting(channel);
}

void azc__end_all(azc_channel *channel, int status) {
    end_list(channel, azc__queue_take_all(&channel->queue), status);
}

/* While a system call is using borrowed memory no operation may end: so the driver
 * breaks the channel after that call.  (This also applies to the source of a relay that
 * is being closed, so that the relay learns of the error.) */
void azc__break(azc_channel *channel, int error) {
    bool driven = channel->state == CLOSING && channel->in_call;
    if (channel->state != OPEN && !driven) return;
    channel->error = channel->error ? channel->error : error;
    if (channel->in_call) {
        azc__interrupt(channel);
        return;
    }
    channel->state = BROKEN;
    azc__end_all(channel, channel->error);
}

void azc__admit_waiting(azc_channel *channel) {
    azc_op *op;
    while ((op = azc__queue_admit(&channel->queue)))
        if (op->asks_room) azc__note_post(op->note, 0, AZC_ROOM, AZC_DROPPED);
    if (!channel->queue.cursor) channel->starved_since = 0;
}

/* ---- the fd's number -------------------------------------------------- */

bool azc__still_ours(const azc_channel *channel) {
    struct stat st;
    if (SABOTAGED(IDENTITY)) return true;
    return azc_sys.identify(channel->fd, &st) == 0 && st.st_dev == channel->device &&
           st.st_ino == channel->inode;
}

bool azc__was_replaced(azc_channel *channel) {
    if (channel->fd < 0 || azc__still_ours(channel)) return false;
    channel->file->lost = true; /* not ours to close either */
    azc__break(channel, -EBADF);
    return true;
}

/* ---- cancelled ------------------------------------------------------- */

/* Completes the message in progress from a copy.  Its event is posted now; the operation
 * goes on without a note until its bytes are out. */
static int rescue(azc_channel *channel, azc_op *op, uint64_t limit) {
    azc__queue_truncate(&channel->queue, op);
    ssize_t r = azc__op_rescue(op, limit);
    if (r < 0) {
        azc__break(channel, r == -ENOBUFS ? -ECANCELED : (int)r);
        return AZC_LATER; /* its event reports how it ended */
    }
    channel->stats.rescued += (uint64_t)r;
    azc__note_post(op->note, op->sent, -ECANCELED, AZC_RESCUED);
    op->note = NULL;
    if (op->sent == op->total) azc__queue_advance(&channel->queue, 0, false);
    azc__end_consumed(channel);
    return AZC_RESCUED;
}

/* Completes the message from the caller's copy; its note stays. */
static int go_on_from_copy(azc_channel *channel, azc_op *op) {
    ssize_t r = azc__op_go_on_from(op, op->copy + op->sent);
    op->copy = NULL;
    if (r < 0) {
        azc__break(channel, (int)r);
        return (int)r;
    }
    channel->stats.rescued += (uint64_t)r;
    return 0;
}

static int cancel_now(azc_channel *channel, azc_op *op, uint64_t limit) {
    bool begun = azc__outward(channel) && (op->sent || op->in_flight);
    op->cancelled = false;
    op->copy = NULL;
    if (begun && channel->state == OPEN) return rescue(channel, op, limit);
    int outcome = azc__end_one(channel, op, -ECANCELED, AZC_DROPPED);
    return outcome == AZC_KEPT ? AZC_LATER : outcome;
}

/* (an operation that is still being submitted is left to azc__apply_cancel_of) */
static azc_op *next_put_off(const azc_queue *queue, bool copied) {
    azc_op *op = queue->head;
    while (op && (op->submitting || !(copied ? op->copy != NULL : op->cancelled)))
        op = op->next;
    return op;
}

static void apply_copies(azc_channel *channel) {
    azc_op *op;
    while (channel->state == OPEN && (op = next_put_off(&channel->queue, true)))
        if (go_on_from_copy(channel, op) == 0)
            azc__note_post(op->note, op->sent, AZC_COPIED, 0);
    azc__end_consumed(channel);
}

void azc__apply_cancels(azc_channel *channel) {
    bool any = false, copies = false;
    for (azc_op *op = channel->queue.head; op; op = op->next) {
        if (!op->in_flight && op->sent < op->need) break;
        op->in_flight = 0;
        any = any || op->cancelled;
        copies = copies || op->copy;
    }
    if (copies) apply_copies(channel);
    azc_op *op;
    while (any && channel->state == OPEN && (op = next_put_off(&channel->queue, false)))
        cancel_now(channel, op, op->rescue_limit);
}

void azc__apply_cancel_of(azc_channel *channel, azc_op *op) {
    if (op->cancelled)
        cancel_now(channel, op, op->rescue_limit);
    else if (op->copy)
        apply_copies(channel);
}

bool azc__let_go(azc_channel *channel, azc_op *op) {
    bool goes_on = op->hold && op->hold->completes && op->sent;
    if (!goes_on || channel->state != OPEN || channel->error) return false;
    azc__note_post(op->note, op->sent, -ECANCELED, AZC_RESCUED);
    op->note = NULL;
    op->cancelled = channel->stop_early = false;
    return true;
}

/* A cancel does not wait for a system call that uses the operation's memory, for a relay,
 * or for the `then` of a receive: it is put off until that is over. */
static bool put_off(azc_channel *channel, const azc_op *op) {
    bool bounced = channel->lane->bounced && !op->hold;
    if (op->in_then) return true;
    if (!(op->in_flight || op->submitting) || bounced) return false;
    azc__interrupt(channel);
    return true;
}

int azc_cancel(azc_id id, uint64_t token, uint64_t limit, azc_event *event) {
    if (event) memset(event, 0, sizeof *event);
    azc_channel *channel = azc__find(id);
    if (!channel) return AZC_OVER;
    azc_op *op = azc__queue_find(&channel->queue, token);
    int r = AZC_OVER;
    if (!op) {
        if (event && channel->last.token == token) *event = channel->last;
    } else if (azc__let_go(channel, op)) {
        r = AZC_RESCUED; /* (its driver is not interrupted) */
    } else if (put_off(channel, op)) {
        op->cancelled = true;
        op->rescue_limit = limit;
        r = AZC_LATER;
    } else {
        r = cancel_now(channel, op, limit);
    }
    azc__leave(channel);
    return r;
}

ssize_t azc_copy(void *to, const void *from, size_t n) {
    return azc_sys.copy(to, from, n);
}

int azc_copy_message(void *to, const struct iovec *vec, int count) {
    char *at = to;
    for (int i = 0; i < count; i++) {
        if (vec[i].iov_len) memcpy(at, vec[i].iov_base, vec[i].iov_len);
        at += vec[i].iov_len;
    }
    return 0;
}

static int move_to_copy(azc_channel *channel, azc_op *op, const char *copy,
                        const struct iovec *vec, int count) {
    bool begun = op->sent || op->in_flight;
    if (!copy && begun) return 0;
    if (put_off(channel, op)) {
        op->copy = copy;
        return SABOTAGED(COPY) ? 0 : -EINPROGRESS;
    }
    if (count && count <= VEC_INLINE && !begun) {
        azc__queue_replace(&channel->queue, op, vec, count);
        azc__admit_waiting(channel);
        return 1;
    }
    if (!copy) return 0;
    op->copy = copy;
    int r = go_on_from_copy(channel, op);
    if (r == 0) azc__end_consumed(channel);
    return r;
}

int azc_move_to_copy(const azc_id *channels, const uint64_t *tokens, int n,
                     const void *copy, uint64_t total, const struct iovec *vec,
                     int count, int *results) {
    for (int i = 0; i < n; i++) {
        azc_channel *channel = azc__find(channels[i]);
        results[i] = -ESHUTDOWN;
        if (!channel) continue;
        azc_op *op = azc__queue_find(&channel->queue, tokens[i]);
        if (op && op->total == total)
            results[i] = move_to_copy(channel, op, copy, vec, count);
        azc__leave(channel);
    }
    return 0;
}
