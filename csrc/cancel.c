/* cancel.c - gives an operation's buffers back before its end. */
#include "cancel.h"

#include <errno.h>
#include <string.h>

#include "ending.h"

/* Completes the message in progress from a copy.  The caller is told now, and the
 * operation goes on without a note until its bytes are out. */
static int rescue(azc_channel *channel, azc_op *op, uint64_t limit) {
    azc__queue_truncate(&channel->queue, op);
    ssize_t r = azc__op_rescue(op, limit);
    if (r < 0) {
        azc__break(channel, r == -ENOBUFS ? -ECANCELED : (int)r);
        return AZC_LATER; /* its event tells how it ended */
    }
    channel->stats.rescued += (uint64_t)r;
    azc__note_post(op->note, op->done, -ECANCELED, AZC_RESCUED);
    op->note = NULL;
    if (op->done == op->total) azc__queue_accept(&channel->queue, 0, false);
    azc__end_consumed(channel);
    return AZC_RESCUED;
}

static int cancel_now(azc_channel *channel, azc_op *op, uint64_t limit) {
    bool begun = azc__outward(channel) && (op->done || op->in_flight);
    op->cancelled = false;
    if (begun && channel->state == OPEN) return rescue(channel, op, limit);
    int outcome = azc__end_one(channel, op, -ECANCELED, AZC_DROPPED);
    return outcome == AZC_KEPT ? AZC_LATER : outcome;
}

void azc__apply_cancel_of(azc_channel *channel, azc_op *op) {
    if (op->cancelled) cancel_now(channel, op, op->rescue_limit);
}

/* An operation that is still being submitted waits for the end of that call; one
 * that was moved and not lent is over anyway. */
static azc_op *next_cancelled(const azc_queue *queue) {
    bool moved = true;
    azc_op *op = queue->head;
    for (; op; op = op->next) {
        if (op == queue->cursor) moved = false;
        if (op->cancelled && !op->submitting && (op->lent || !moved)) break;
    }
    return op;
}

void azc__apply_cancels(azc_channel *channel) {
    bool any = false;
    for (azc_op *op = channel->queue.head; op; op = op->next) {
        if (!op->in_flight && op->done < op->need) break;
        op->in_flight = 0;
        any = any || op->cancelled;
    }
    azc_op *op;
    while (any && channel->state == OPEN &&
           (op = next_cancelled(&channel->queue)))
        cancel_now(channel, op, op->rescue_limit);
}

int azc_cancel(azc_id id, uint64_t token, uint64_t limit, azc_event *event) {
    if (event) memset(event, 0, sizeof *event);
    azc_channel *channel = azc__find(id);
    if (!channel) return AZC_OVER;
    azc_op *op = azc__queue_find(&channel->queue, token);
    int r = AZC_OVER;
    if (!op) {
        if (event && channel->last.token == token) *event = channel->last;
    } else if ((op->in_flight || op->submitting) && !channel->lane->bounced) {
        op->cancelled = true;
        op->rescue_limit = limit;
        channel->stop_early = true;
        r = AZC_LATER;
    } else {
        r = cancel_now(channel, op, limit);
    }
    azc__leave(channel);
    return r;
}
