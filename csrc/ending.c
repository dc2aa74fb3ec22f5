/* ending.c - how operations end: done, cut off, or with their channel. */
#include "ending.h"

/* Lent pages that cannot be taken back stay with the reader. */
static bool stay_lent(azc_op *op) { return op->lent && azc__op_detach(op) < 0; }

int azc__end(azc_channel *channel, azc_op *op, int status, int outcome) {
    if (status < 0 && op->in_flight) outcome = AZC_UNKNOWN;
    if (stay_lent(op)) outcome = AZC_KEPT;
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
        azc__end(channel, op, status, AZC_DROPPED);
        op = next;
    }
}

int azc__end_one(azc_channel *channel, azc_op *op, int status, int outcome) {
    azc__queue_remove(&channel->queue, op);
    outcome = azc__end(channel, op, status, outcome);
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

/* While a system call is using borrowed memory no operation may end: then the driver
 * breaks the channel after that call. */
void azc__break(azc_channel *channel, int error) {
    if (channel->state != OPEN) return;
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
