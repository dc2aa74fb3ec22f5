/* cancel.c - how operations end: done, cancelled, or with their channel.
 *
 * A cancel takes effect at once, unless a system call has the operation's
 * memory right now: then the driver does it when it is back (azc__settle).
 */
#include <errno.h>

#include "channel.h"

/* ---- how an operation ends ------------------------------------------- */

/* Buffers are the caller's again when: the event is drained (or, for an
 * operation whose submitting call still runs, when that returns). */
void azc__end(azc_channel *channel, azc_op *op, int status) {
    op->status = status;
    op->ended = true;
    op->in_flight = 0;
    if (op->lent) azc__op_detach(op);
    if (!azc__outward(channel))
        channel->stats.messages += status == 0;
    else if (status == 0 || op->done) /* not an empty one that was dropped */
        channel->stats.messages += azc__op_messages(op);
    if (op->submitting) return;
    if (op->port)
        azc__port_post(op->port, op);
    else
        azc__op_free(op);
}

void azc__end_list(azc_channel *channel, azc_op *op, int status) {
    while (op) {
        azc_op *next = op->next;
        azc__end(channel, op, status);
        op = next;
    }
}

/* Every operation hears of the end, in order. */
void azc__end_all(azc_channel *channel, int status) {
    azc_op *all = channel->queue.head;
    channel->queue.head = channel->queue.tail = channel->queue.cursor = NULL;
    channel->queue.bytes = channel->queue.ops = 0;
    azc__end_list(channel, all, status);
}

void azc__end_one(azc_channel *channel, azc_op *op, int status) {
    azc__queue_remove(&channel->queue, op);
    azc__end(channel, op, status);
}

void azc__break(azc_channel *channel, int error) {
    if (channel->state != OPEN) return;
    channel->state = BROKEN;
    channel->error = error;
    azc__end_all(channel, error);
}

/* ---- cancelling ------------------------------------------------------ */

/* Makes the message in progress the operation's own; the caller has asked for
 * its memory back.  Returns AZC_RESCUED or -errno (the channel is broken). */
static int rescue(azc_channel *channel, azc_op *op, uint64_t limit) {
    uint64_t before = op->total;
    azc__op_truncate(op);
    channel->queue.bytes -= before - op->total;
    ssize_t r = azc__op_rescue(op, limit);
    if (r < 0) {
        if (op->lent) azc__op_detach(op); /* a closing one ends only later */
        azc__break(channel, -ECANCELED);
        return -ENOBUFS;
    }
    channel->stats.rescued += (uint64_t)r;
    if (op->done == op->total) {
        azc__queue_accept(&channel->queue, 0, false);
        azc__end_list(channel,
                      azc__queue_consume(&channel->queue, channel->read), 0);
    }
    return AZC_RESCUED;
}

/* Ends the caller's part in op, which no system call has.  The event tells
 * what was done; op may live on, without a port, until its bytes are out. */
static int cancel_now(azc_channel *channel, azc_op *op, uint64_t limit,
                      azc_event *event) {
    *event = (azc_event){.token = op->token,
                         .bytes = op->done,
                         .status = -ECANCELED,
                         .outcome = AZC_DROPPED};
    op->port = NULL;
    if (!azc__outward(channel) || (op->done == 0 && !op->in_flight)) {
        azc__end_one(channel, op, -ECANCELED);
        return AZC_DROPPED;
    }
    event->outcome = rescue(channel, op, limit);
    return event->outcome;
}

/* A cancel had to wait for the system call that is now over. */
void azc__settle_cancelled(azc_channel *channel, azc_op *op) {
    azc_op *notice = op->notice;
    azc_port *port = op->port;
    azc_event event;
    op->notice = NULL;
    op->cancelled = false;
    cancel_now(channel, op, op->rescue_limit, &event);
    notice->token = event.token;
    notice->done = event.bytes;
    notice->outcome = event.outcome;
    notice->status = event.outcome < 0 ? event.outcome : -ECANCELED;
    azc__port_post(port, notice);
}

/* One that is still being submitted waits for the end of that call. */
static azc_op *next_cancelled(azc_queue *queue) {
    bool moved = true; /* and if it was not lent, it is over anyway */
    azc_op *op = queue->head;
    for (; op; op = op->next) {
        if (op == queue->cursor) moved = false;
        if (op->cancelled && !op->submitting && (op->lent || !moved)) break;
    }
    return op;
}

/* After a system call: no operation is in flight any more. */
void azc__settle(azc_channel *channel) {
    bool any = false;
    for (azc_op *op = channel->queue.head; op; op = op->next) {
        if (!op->in_flight && op->done < op->need) break;
        op->in_flight = 0;
        any = any || op->cancelled;
    }
    azc_op *op;
    while (any && channel->state == OPEN &&
           (op = next_cancelled(&channel->queue)))
        azc__settle_cancelled(channel, op);
}

int azc_cancel(azc_channel *channel, uint64_t token, uint64_t limit,
               azc_event *event) {
    azc_port *port = NULL;
    int r = -ENOENT;
    pthread_mutex_lock(&channel->lock);
    azc_op *op =
        channel->state == DEAD ? NULL : azc__queue_find(&channel->queue, token);
    bool held = op && (op->in_flight || op->submitting);
    if (held && !channel->lane->bounced) {
        if (!op->notice) op->notice = azc__op_new(NULL, 0, NULL, 0);
        op->cancelled = op->notice != NULL;
        op->rescue_limit = limit;
        channel->hurry = true;
        r = AZC_LATER;
    } else if (op) {
        port = op->port;
        r = cancel_now(channel, op, limit, event);
    }
    pthread_mutex_unlock(&channel->lock);
    if (port) azc__port_drop(port);
    return r;
}
