/* drive.c - moves what is queued, one system call after the other.
 *
 * The rule of driving is in channel.h.
 */
#include <errno.h>
#include <string.h>

#include "channel.h"

enum {
    PUMP_TURN = 1 << 20, /* bytes, before another socket has its turn */
    CHECK_EVERY = 1 << 20, /* bytes, or a move, before the fd is looked at */
    STARVED_LIMIT = 400, /* tries, 5 ms apart, while the kernel has no memory */
};

/* Hands what was received into the bounce to whoever asks for it. */
static uint64_t deliver_kept(azc_channel *channel) {
    uint64_t delivered = 0;
    while (channel->kept && channel->queue.cursor) {
        azc_op *op = channel->queue.cursor;
        struct iovec *piece = &op->vec[op->at];
        size_t n = op->at < op->count ? piece->iov_len : 0;
        if (n > channel->kept) n = channel->kept;
        if (n) memcpy(piece->iov_base, channel->bounce + channel->kept_at, n);
        channel->kept_at += n;
        channel->kept -= n;
        delivered += n;
        azc__queue_accept(&channel->queue, n, false);
    }
    return delivered;
}

/* One system call, without the lock.  Sets count to the pieces offered. */
static ssize_t call_lane(azc_channel *channel, int max_ops, uint64_t max_bytes,
                         int *count) {
    struct iovec vec[VEC_MAX];
    bool bounced_in = channel->lane->bounced && !azc__outward(channel);
    bool lend = false;
    if (bounced_in) {
        vec[0] = (struct iovec){channel->bounce, azc__lane_bounce_size()};
        *count = 1;
    } else {
        *count = azc__queue_gather(&channel->queue, vec, max_ops, max_bytes,
                                   azc__lend_from(channel), &lend);
    }
    if (!*count) { /* empty messages only */
        azc__queue_accept(&channel->queue, 0, false);
        return 0;
    }
    const azc_lane *lane = channel->lane;
    if (lane->bounced && azc__outward(channel)) {
        ssize_t n = azc__lane_fill(channel, vec, *count);
        if (n < 0) return n;
        vec[0] = (struct iovec){channel->bounce, (size_t)n};
        *count = 1;
    }
    channel->hurry = false;
    pthread_mutex_unlock(&channel->lock);
    ssize_t r = lend ? azc__lend(channel, vec, *count)
                     : lane->move(channel, vec, *count);
    pthread_mutex_lock(&channel->lock);
    r = azc__weigh_loan(channel, r, lend);
    channel->stats.calls += 1 + channel->more_calls;
    channel->more_calls = 0;
    if (r > 0) channel->stats.bytes += (uint64_t)r;
    if (r > 0 && bounced_in) {
        channel->kept_at = 0;
        channel->kept = (size_t)r;
        r = (ssize_t)deliver_kept(channel);
    } else if (r >= 0) {
        azc__queue_accept(&channel->queue, (uint64_t)r, lend);
    }
    return r;
}

/* One step.  Returns the bytes moved, or -errno when driving must stop. */
static ssize_t step(azc_channel *channel, int max_ops, uint64_t max_bytes) {
    int count = 0;
    ssize_t r = channel->kept ? (ssize_t)deliver_kept(channel)
                              : call_lane(channel, max_ops, max_bytes, &count);
    bool end = r == 0 && count && !azc__outward(channel) && !channel->kept;
    const azc_op *blamed = channel->queue.cursor;
    azc__settle(channel);
    if (r == -EFAULT && blamed != channel->queue.cursor)
        r = -EINTR; /* whose memory was bad was cancelled: ask again */
    azc__end_list(channel, azc__queue_consume(&channel->queue, channel->read),
                  0);
    if (end && channel->queue.cursor)
        azc__end_one(channel, channel->queue.cursor, 0);
    return r;
}

/* What to do about -errno from a lane.  Returns 0 to go on, else -errno. */
static int weigh_error(azc_channel *channel, int error, int *max_ops) {
    azc_op *op = channel->queue.cursor;
    switch (-error) {
    case EINTR:
        return 0;
    case EAGAIN:
#if EWOULDBLOCK != EAGAIN
    case EWOULDBLOCK:
#endif
        channel->stats.waits++;
        channel->full_at = channel->stats.bytes;
        return -EAGAIN;
    case ENOMEM:
    case ENOBUFS:
        if (++channel->starved < STARVED_LIMIT) return -ENOMEM;
        break;
    case EOPNOTSUPP: /* a FIFO does not know RWF_NOWAIT */
        if (channel->lane == azc__lane_waiting()) break;
        channel->lane = azc__lane_waiting();
        error = azc__prepare_bounce(channel);
        if (error == 0) return 0;
        break;
    case EFAULT: /* whose memory was it?  Ask with one message at a time. */
        if (!op || !azc__outward(channel)) break;
        if (*max_ops > 1) {
            *max_ops = 1;
            return 0;
        }
        if (op->done) break;
        azc__end_one(channel, op, -EFAULT);
        return 0;
    case EIO: /* a pty whose other side is closed has come to its end */
        if (azc__outward(channel) || channel->lane != azc__lane_waiting())
            break;
        if (op) azc__end_one(channel, op, 0);
        return 0;
    }
    azc__break(channel, error);
    return error;
}

/* Moves bytes until nothing is left, the fd blocks or the budget is spent.
 * The lock is held on entry and on return, but not throughout. */
int azc__drive(azc_channel *channel, uint64_t budget, bool direct) {
    uint64_t spent = 0;
    int outcome = DROVE_DRY, max_ops = azc__outward(channel) ? VEC_MAX : 1;
    uint64_t check_at = 0;
    channel->driving = true;
    channel->in_caller = direct;
    if (channel->lane->paced && !direct) azc__pace_start(&channel->pace);
    while (channel->state == OPEN && channel->queue.cursor) {
        if (!direct && (spent >= check_at || channel->lane->bounced)) {
            check_at = spent + CHECK_EVERY;
            if (azc__was_replaced(channel)) break;
        }
        if (spent >= budget || (direct && !channel->lane->direct)) {
            outcome = DROVE_BUDGET;
            break;
        }
        uint64_t most = channel->lane->chunk;
        if (most > budget - spent) most = budget - spent;
        ssize_t r = step(channel, max_ops, most);
        if (r >= 0) {
            spent += (uint64_t)r;
            channel->starved = 0;
            if (!channel->met_full) continue;
            channel->met_full = false;
            r = -EAGAIN;
        }
        int error = weigh_error(channel, (int)r, &max_ops);
        if (error == 0) continue;
        outcome = error == -ENOMEM ? DROVE_STARVED : DROVE_BLOCKED;
        break;
    }
    if (azc__is_owed(channel)) {
        if (!direct)
            outcome = azc__tally(channel, outcome);
        else if (outcome == DROVE_DRY)
            outcome = DROVE_LENT;
    }
    channel->driving = false;
    if (!channel->queue.cursor) azc__pace_stop(&channel->pace);
    if (channel->state == CLOSING) azc__finish_close(channel);
    return outcome;
}

/* Is there something to do about this channel, sooner or later? */
static bool is_wanted(const azc_channel *channel) {
    return (channel->state == OPEN && channel->queue.head) ||
           azc__is_owed(channel);
}

/* Sees to it that what is left will be driven later. */
void azc__hand_over(azc_channel *channel, int drove) {
    if (channel->armed || !is_wanted(channel)) return;
    if (!channel->queue.cursor) drove = DROVE_LENT;
    int r = azc__pump_arm(channel, drove);
    if (r < 0) azc__break(channel, r);
}

/* Drives in the pump's turn, which ends only where others wait for theirs or for
 * what was lent.  An error queue wakes the receiver too: if that was all, it
 * lets the sender see to it first. */
static int take_turn(azc_channel *channel) {
    uint64_t before = channel->stats.bytes;
    bool rested = channel->rested;
    bool alone = !channel->lane->shared && !channel->lends;
    int drove = azc__drive(channel, alone ? UINT64_MAX : PUMP_TURN, false);
    channel->rested = false;
    if (drove != DROVE_BLOCKED || channel->state != OPEN || rested ||
        azc__outward(channel) || !channel->file->lends ||
        channel->stats.bytes != before)
        return drove;
    channel->rested = true;
    return DROVE_DISTURBED;
}

/* Called by the pump when the fd is ready, or was kicked. */
void azc__channel_resume(azc_channel *channel) {
    pthread_mutex_lock(&channel->lock);
    bool woken = channel->watched;
    channel->armed = channel->watched = false;
    if (!channel->driving) {
        channel->woken = woken;
        if (channel->state == CLOSING) {
            azc__finish_close(channel);
        } else if (is_wanted(channel)) {
            azc__hand_over(channel, take_turn(channel));
        }
    }
    pthread_mutex_unlock(&channel->lock);
}
