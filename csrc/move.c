/* move.c - the only place that moves bytes, one system call after the other.
 *
 * Whoever drives (the rule is in channel.h) goes through move(): a caller's thread
 * with a message that is in no queue (attempt) or just was put there (drive), and
 * the pump (resume).  So counting, what a full fd means and the meaning of an error
 * are the same for all.
 */
#include "move.h"

#include <errno.h>
#include <string.h>

#include "cancel.h"
#include "ending.h"

enum {
    PUMP_TURN = 1 << 20,     /* bytes, before another socket has its turn */
    CHECK_EVERY = 1 << 20,   /* bytes, or a move, before the fd is looked at */
    STARVED_PAUSE_US = 5000, /* between two tries, */
    DEVICE_PAUSE_US = 5000,  /* also of what nobody tells when it is ready */
};

#define PATIENCE_NS UINT64_C(2000000000) /* with a kernel that has no memory */

/* ---- one move -------------------------------------------------------- */

static void count(azc_channel *channel, ssize_t r) {
    bool was_full = r == -EAGAIN || channel->met == -EAGAIN;
    channel->stats.calls += 1 + channel->more_calls;
    channel->stats.waits += was_full;
    channel->more_calls = 0;
    if (r > 0) channel->stats.bytes += (uint64_t)r;
    if (r >= 0 || r == -EAGAIN) channel->starved_since = 0;
    azc__writer_moved(&channel->writer, r > 0 ? (uint64_t)r : 0, was_full);
}

/* The lock is let go of.  In the meantime the bytes are the kernel's, or those of
 * a copy: then nobody has to wait for them. */
static ssize_t move(azc_channel *channel, struct iovec *vec, int pieces,
                    bool lend) {
    channel->hurry = false;
    channel->in_call = !channel->lane->bounced;
    azc__unlock(channel);
    ssize_t r = lend ? azc__lend(channel, vec, pieces)
                     : channel->lane->move(channel, vec, pieces);
    azc__lock(channel);
    channel->in_call = false;
    if (lend) r = azc__lend_weigh(channel, r);
    count(channel, r);
    return r;
}

/* ---- errors ---------------------------------------------------------- */

/* The kernel had no memory, or we no pump: breaks the channel after a while. */
static bool is_patient(azc_channel *channel, int error) {
    uint64_t now = azc_sys.now_ns();
    if (!channel->starved_since) channel->starved_since = now;
    if (now - channel->starved_since < PATIENCE_NS) return true;
    azc__break(channel, error);
    return false;
}

/* It is the memory of the message in turn that cannot be read. */
static int refuse_message(azc_channel *channel) {
    azc_op *op = channel->queue.cursor;
    azc__end_one(channel, op, -EFAULT, AZC_REFUSED);
    return 0;
}

/* RWF_NOWAIT is not known: older kernels, or a FIFO. */
static int change_lane(azc_channel *channel) {
    if (channel->flags & AZC_OWN) {
        channel->no_nowait = true;
        return 0;
    }
    channel->lane = azc__lane_waiting();
    return azc__prepare_bounce(channel);
}

/* What to do about -errno from a lane.  Returns 0 to go on, else -errno. */
static int weigh_error(azc_channel *channel, int error, int *max_ops) {
    const azc_op *op = channel->queue.cursor;
    bool outward = azc__outward(channel);
    bool waits = channel->lane == azc__lane_waiting();
    switch (-error) {
    case EINTR:
        return 0;
    case EAGAIN:
#if EWOULDBLOCK != EAGAIN
    case EWOULDBLOCK:
#endif
        return -EAGAIN;
    case ENOMEM:
    case ENOBUFS:
        return is_patient(channel, error) ? -ENOMEM : error;
    case EOPNOTSUPP:
        if (waits || channel->no_nowait) break;
        error = change_lane(channel);
        if (error == 0) return 0;
        break;
    case EFAULT: /* whose memory was it?  Ask with one message at a time. */
        if (!op || !outward) break;
        if (*max_ops == 1 && op->done) break;
        if (*max_ops == 1) return refuse_message(channel);
        *max_ops = 1;
        return 0;
    case EIO: /* a pty whose other side is closed has come to its end */
        if (outward || !waits) break;
        if (op) azc__end_one(channel, channel->queue.cursor, 0, AZC_DROPPED);
        return 0;
    }
    azc__break(channel, error);
    return error;
}

/* ---- an attempt ------------------------------------------------------ */

/* What was asked for while the lock was let go of. */
static void catch_up(azc_channel *channel) {
    if (channel->error) azc__break(channel, channel->error);
    if (channel->state == CLOSING) azc__finish_close(channel);
}

ssize_t azc__attempt(azc_channel *channel, const void *data, size_t n) {
    struct iovec vec = {(void *)(uintptr_t)data, n};
    bool instead_of_pump = channel->lane->paced && n > channel->lane->direct;
    if (instead_of_pump) {
        azc__pace_start(&channel->pace);
        azc__writer_start(&channel->writer);
    }
    channel->driving = channel->in_caller = true;
    ssize_t r = move(channel, &vec, 1, false);
    channel->driving = false;
    if (instead_of_pump) {
        azc__writer_stop(&channel->writer);
        if (r == (ssize_t)n) azc__pace_stop(&channel->pace);
    }
    return r;
}

void azc__weigh_attempt(azc_channel *channel, ssize_t r) {
    int max_ops = 1;
    if (r >= 0) r = channel->met;
    channel->met = 0;
    if (r < 0 && channel->state == OPEN) weigh_error(channel, (int)r, &max_ops);
    catch_up(channel);
}

/* ---- driving --------------------------------------------------------- */

/* Hands what was received into the bounce to whoever asks for it. */
static uint64_t deliver_kept(azc_channel *channel) {
    const azc_queue *queue = &channel->queue;
    uint64_t delivered = 0;
    while (channel->kept && queue->cursor && queue->cursor != queue->line) {
        azc_op *op = queue->cursor;
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

static ssize_t receive_bounced(azc_channel *channel) {
    struct iovec vec = {channel->bounce, azc__lane_bounce_size()};
    ssize_t r = move(channel, &vec, 1, false);
    if (r <= 0) return r;
    channel->kept_at = 0;
    channel->kept = (size_t)r;
    return (ssize_t)deliver_kept(channel);
}

/* The next pieces of the queue, in one move.  Sets pieces to their number. */
static ssize_t move_queued(azc_channel *channel, int max_ops,
                           uint64_t max_bytes, int *pieces) {
    struct iovec vec[VEC_MAX];
    bool lend = false;
    *pieces = azc__queue_gather(&channel->queue, vec, max_ops, max_bytes,
                                azc__lend_from(channel), &lend);
    if (*pieces && channel->lane->bounced) {
        ssize_t n = azc__lane_fill(channel, vec, *pieces);
        if (n < 0) return n;
        vec[0] = (struct iovec){channel->bounce, (size_t)n};
    }
    int offered = channel->lane->bounced && *pieces ? 1 : *pieces;
    ssize_t r = offered ? move(channel, vec, offered, lend) : 0;
    if (r >= 0) azc__queue_accept(&channel->queue, (uint64_t)r, lend);
    return r;
}

/* One step.  Returns the bytes moved, or -errno when driving must stop. */
static ssize_t step(azc_channel *channel, int max_ops, uint64_t max_bytes) {
    bool inward = !azc__outward(channel);
    int pieces = 1;
    ssize_t r;
    if (channel->kept)
        r = (ssize_t)deliver_kept(channel);
    else if (inward && channel->lane->bounced)
        r = receive_bounced(channel);
    else
        r = move_queued(channel, max_ops, max_bytes, &pieces);
    bool end = r == 0 && pieces && inward && !channel->kept;
    const azc_op *blamed = channel->queue.cursor;
    azc__end_consumed(channel); /* first: a cancel may break the channel */
    azc__apply_cancels(channel);
    if (r == -EFAULT && blamed != channel->queue.cursor)
        r = -EINTR; /* whose memory was bad was cancelled: ask again */
    if (end && channel->queue.cursor)
        azc__end_one(channel, channel->queue.cursor, 0, AZC_DROPPED);
    return r;
}

/* Looks how far a reader of lent pages is, and ends what it has read. */
static enum azc_drove look_at_loans(azc_channel *channel,
                                    enum azc_drove drove) {
    int r = azc__lender_ask(channel);
    if (channel->state != OPEN || azc__was_replaced(channel)) return drove;
    if (r < 0) {
        azc__break(channel, r);
        return drove;
    }
    azc__end_consumed(channel);
    if (channel->queue.cursor) return drove == DROVE_DRY ? DROVE_BUDGET : drove;
    return azc__is_owed(channel) ? DROVE_LENT : DROVE_DRY;
}

/* One file's number is looked at once a CHECK_EVERY, or before each move that may
 * last; a caller's thread leaves that to the pump. */
static bool is_lost(azc_channel *channel, uint64_t spent, uint64_t *check_at) {
    if (channel->in_caller) return false;
    if (spent < *check_at && !channel->lane->bounced) return false;
    *check_at = spent + CHECK_EVERY;
    return azc__was_replaced(channel);
}

/* Until nothing is left, the fd blocks or the budget is spent. */
static enum azc_drove move_all(azc_channel *channel, uint64_t budget) {
    int max_ops = azc__outward(channel) ? VEC_MAX : 1;
    uint64_t spent = 0, check_at = 0;
    while (channel->state == OPEN && channel->queue.cursor) {
        if (is_lost(channel, spent, &check_at)) break;
        if (spent >= budget || (channel->in_caller && !channel->lane->direct))
            return DROVE_BUDGET;
        uint64_t most = channel->lane->chunk;
        if (most > budget - spent) most = budget - spent;
        ssize_t r = step(channel, max_ops, most);
        if (channel->error) break;
        if (r >= 0) spent += (uint64_t)r;
        if (r >= 0) r = channel->met;
        channel->met = 0;
        if (r == 0) continue;
        int error = weigh_error(channel, (int)r, &max_ops);
        if (error < 0) return error == -ENOMEM ? DROVE_STARVED : DROVE_BLOCKED;
    }
    return DROVE_DRY;
}

static enum azc_drove drive(azc_channel *channel, uint64_t budget,
                            bool in_caller) {
    channel->driving = true;
    channel->in_caller = in_caller;
    if (channel->lane->paced && !in_caller) azc__pace_start(&channel->pace);
    enum azc_drove drove = move_all(channel, budget);
    if (azc__is_owed(channel)) {
        if (!in_caller)
            drove = look_at_loans(channel, drove);
        else if (drove == DROVE_DRY)
            drove = DROVE_LENT;
    }
    channel->driving = false;
    if (!channel->queue.cursor) azc__pace_stop(&channel->pace);
    catch_up(channel);
    return drove;
}

enum azc_drove azc__drive(azc_channel *channel, uint64_t budget) {
    return drive(channel, budget, true);
}

/* ---- later ----------------------------------------------------------- */

/* Is there something to do about this channel, sooner or later? */
static bool is_wanted(const azc_channel *channel) {
    return channel->state == OPEN && channel->queue.head &&
           !channel->pumping.armed;
}

static void resume(azc_id id);

/* A number that was lost is found out here, by whoever waits for it.  (It may be
 * another channel's by now, whose place in the poller would be taken.) */
static int await_fd(azc_channel *channel) {
    if (azc__was_replaced(channel)) return 0;
    int r = azc__pump_poll(channel);
    if (r != -ENOENT) return r;
    channel->pumping.known = false; /* closed, and made anew from a duplicate */
    return azc__pump_poll(channel);
}

static int arm(azc_channel *channel, enum azc_drove drove) {
    if (drove == DROVE_LENT) { /* not armed: a new message must be, at once */
        azc__pump_nap(channel, channel->lender.nap_us);
        return 0;
    }
    if (drove == DROVE_STARVED) {
        azc__pump_nap(channel, STARVED_PAUSE_US);
    } else if (channel->lane->polled && !channel->kept) {
        int r = await_fd(channel);
        if (r < 0 && r != -EPERM) return r;
        /* Nobody tells when it is ready; a device may say that it is not. */
        if (r == -EPERM && drove == DROVE_BLOCKED)
            azc__pump_nap(channel, DEVICE_PAUSE_US);
        else if (r == -EPERM)
            azc__pump_kick(channel);
    } else if (drove == DROVE_BLOCKED) {
        azc__pump_nap(channel, DEVICE_PAUSE_US);
    } else {
        azc__pump_kick(channel);
    }
    channel->pumping.armed = true;
    return 0;
}

/* Tries again for all that are without a pump; true if some still are. */
static bool serve_unserved(void) {
    bool more = false;
    for (uint32_t i = 0; i < azc__channels.used; i++) {
        azc_channel *channel = azc__handle_lock_at(&azc__channels, i);
        if (!channel) continue;
        bool unserved = !channel->pumping.pump && !channel->driving;
        if (unserved && is_wanted(channel)) {
            azc__hand_over(channel, DROVE_BLOCKED);
            more = more || !channel->pumping.pump;
        }
        azc__leave(channel);
    }
    return more;
}

/* No fd, thread or memory is left for a pump, or its poller.  That will pass: the
 * loop that waits for the message is asked to try again. */
static void wait_for_pump(azc_channel *channel, int error) {
    if (!is_patient(channel, error)) return;
    if (channel->pumping.pump) {
        azc__pump_nap(channel, STARVED_PAUSE_US);
        channel->pumping.armed = true;
    } else {
        azc__port_nudge(channel->last_port, serve_unserved);
    }
}

void azc__hand_over(azc_channel *channel, enum azc_drove drove) {
    if (!is_wanted(channel)) return;
    if (!channel->queue.cursor) drove = DROVE_LENT;
    int r = channel->pumping.pump ? 0 : azc__pump_attach(channel, resume);
    if (r == 0) r = arm(channel, drove);
    if (r < 0)
        wait_for_pump(channel, r);
    else if (drove != DROVE_STARVED)
        channel->starved_since = 0;
}

/* Called by the pump when the fd is ready, or it is time to look.  A turn ends only
 * where others wait for theirs, or for what was lent. */
static void resume(azc_id id) {
    azc_channel *channel = azc__find(id);
    if (!channel) return;
    channel->pumping.armed = false;
    if (!channel->driving && channel->state == CLOSING) {
        azc__finish_close(channel);
    } else if (!channel->driving && is_wanted(channel)) {
        bool alone = !channel->lane->shared && !channel->lender.lends;
        uint64_t budget = alone ? UINT64_MAX : PUMP_TURN;
        azc__hand_over(channel, drive(channel, budget, false));
    }
    azc__leave(channel);
}
