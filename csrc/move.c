/* move.c - moves bytes, one system call after the other.
 *
 * A driver (see channel.h) is a caller's thread with bytes that are in no queue (attempt)
 * or were just queued (drive), a pump or a loop (resume), or a relay, which makes calls
 * of its own (passing.c).  This file handles counting, full fds and errors for all.
 */
#include "move.h"

#include <errno.h>

#include "ending.h"
#include "loop.h"

enum {
    PUMP_BUDGET = 1 << 20,   /* bytes of one socket before the pump's next one */
    CHECK_EVERY = 1 << 20,   /* bytes, until the fd's number is checked again */
    STARVED_PAUSE_US = 5000, /* until the next try, if memory is lacking */
    DEVICE_PAUSE_US = 5000,  /* for an fd that cannot be polled */
    PATIENCE_NS = 2000000000,
};

/* ---- one move -------------------------------------------------------- */

void azc__count(azc_channel *channel, ssize_t r) {
    bool was_full = r == -EAGAIN || channel->stopped_by == -EAGAIN;
    channel->stats.calls += 1 + channel->extra_calls;
    /* (a receive that asks again has met an empty socket) */
    channel->stats.waits += was_full + !!channel->wanted * channel->extra_calls;
    channel->extra_calls = 0;
    if (r > 0) channel->stats.bytes += (uint64_t)r;
    if (r >= 0 || r == -EAGAIN) channel->starved_since = 0;
}

/* Releases the lock during the system call.  A cancel waits for a call that uses borrowed
 * memory (in_call), but not for one that uses the copy in the bounce. */
static ssize_t move(azc_channel *channel, struct iovec *vec, int pieces, bool lend) {
    channel->stop_early = false;
    channel->in_call = !channel->lane->bounced;
    azc__unlock(channel);
    ssize_t r = lend ? azc__lend(channel, vec, pieces)
                     : channel->lane->move(channel, vec, pieces);
    azc__lock(channel);
    channel->in_call = false;
    if (lend) r = azc__lend_result(channel, r);
    azc__count(channel, r);
    return r;
}

/* ---- errors ---------------------------------------------------------- */

/* The kernel has no memory, or we have no pump.  True: try again later.  After
 * PATIENCE_NS it breaks the channel. */
static bool keep_trying(azc_channel *channel, int error) {
    uint64_t now = azc_sys.now_ns();
    if (!channel->starved_since) channel->starved_since = now;
    if (now - channel->starved_since < PATIENCE_NS) return true;
    azc__break(channel, error);
    return false;
}

/* The kernel, or this pipe, does not know RWF_NOWAIT. */
static int change_lane(azc_channel *channel) {
    if (channel->lane == &azc__lane_waiting || channel->no_nowait) return -EOPNOTSUPP;
    if (channel->flags & AZC_OWN) {
        channel->no_nowait = true;
        return 0;
    }
    channel->lane = &azc__lane_waiting;
    return azc__prepare_bounce(channel);
}

/* Handles -errno from a lane, and returns why to stop; DROVE_BUDGET: go on as long as the
 * channel is open. */
static enum azc_drove handle_error(azc_channel *channel, int error, int *max_ops) {
    const azc_op *op = channel->queue.cursor;
    bool outward = azc__outward(channel);
    bool waits = channel->lane == &azc__lane_waiting;
    switch (-error) {
    case EINTR:
        return DROVE_BUDGET;
    case EAGAIN:
        return DROVE_BLOCKED;
    case ENOMEM:
    case ENOBUFS:
        return keep_trying(channel, error) ? DROVE_STARVED : DROVE_BUDGET;
    case EOPNOTSUPP:
        error = change_lane(channel);
        if (error == 0) return DROVE_BUDGET;
        break;
    case EFAULT: /* one at a time, to find out which message it was */
        if (!op || (outward && *max_ops == 1 && op->sent)) break;
        if (*max_ops == 1)
            azc__end_one(channel, channel->queue.cursor, error, AZC_REFUSED);
        *max_ops = 1;
        return DROVE_BUDGET;
    case ETOOMANYREFS:
        if (!op || !op->fds) break;
        azc__end_one(channel, channel->queue.cursor, error, AZC_REFUSED);
        return DROVE_BUDGET;
    case EIO: /* a pty whose other side is closed: the end of the stream */
        if (outward || !waits) break;
        if (op) azc__end_one(channel, channel->queue.cursor, 0, AZC_DROPPED);
        return DROVE_BUDGET;
    }
    azc__break(channel, error);
    return DROVE_BUDGET;
}

enum azc_drove azc__handle_error(azc_channel *channel, int error) {
    int max_ops = 1;
    return handle_error(channel, error, &max_ops);
}

/* ---- an attempt ------------------------------------------------------ */

/* Does what other threads asked for while the lock was released. */
static void catch_up(azc_channel *channel) {
    if (channel->error) azc__break(channel, channel->error);
    if (channel->state == CLOSING) azc__finish_close(channel);
}

ssize_t azc__attempt(azc_channel *channel, const struct iovec *vec, int count) {
    struct iovec pieces[VEC_INLINE]; /* a copy, since a move changes it */
    memcpy(pieces, vec, (size_t)count * sizeof *vec);
    channel->driving = channel->in_caller = true;
    ssize_t r = move(channel, pieces, count, false);
    channel->driving = false;
    return r;
}

void azc__finish_attempt(azc_channel *channel, ssize_t r) {
    if (r >= 0) r = channel->stopped_by;
    channel->stopped_by = 0;
    if (r < 0 && channel->state == OPEN) azc__handle_error(channel, (int)r);
    catch_up(channel);
}

/* ---- driving --------------------------------------------------------- */

/* Copies the leftover in the bounce to the receives in the queue; a relay takes it by
 * itself.  Returns the number of bytes, or -EFAULT. */
static ssize_t deliver_leftover(azc_channel *channel) {
    const azc_queue *queue = &channel->queue;
    ssize_t delivered = 0;
    azc_op *op;
    while (channel->leftover && (op = azc__queue_next(queue)) &&
           op != queue->first_waiting) {
        struct iovec *piece = &op->vec[op->at];
        size_t n = op->at < op->count ? piece->iov_len : 0;
        if (n > channel->leftover) n = channel->leftover;
        const char *from = channel->bounce + channel->leftover_at;
        if (n && azc_sys.copy(piece->iov_base, from, n) < 0)
            return delivered ? delivered : -EFAULT;
        channel->leftover_at += n;
        channel->leftover -= n;
        delivered += (ssize_t)n;
        azc__queue_advance(&channel->queue, n, false);
    }
    return delivered;
}

static ssize_t receive_bounced(azc_channel *channel) {
    struct iovec vec = {channel->bounce, BOUNCE_CHUNK};
    ssize_t r = move(channel, &vec, 1, false);
    if (r <= 0) return r;
    channel->leftover_at = 0;
    channel->leftover = (size_t)r;
    return deliver_leftover(channel);
}

/* Moves the next pieces of the queue, and sets *pieces to their number. */
static ssize_t move_queued(azc_channel *channel, int max_ops, uint64_t max_bytes,
                           int *pieces) {
    struct iovec vec[VEC_MAX];
    bool lend;
    azc_op *op = channel->queue.cursor;
    size_t lend_from = op->fds ? 0 : azc__lend_from(channel, op->total);
    *pieces =
        azc__queue_gather(&channel->queue, vec, max_ops, max_bytes, lend_from, &lend);
    if (*pieces && channel->lane->bounced) {
        ssize_t n = azc__lane_fill(channel, vec, *pieces);
        if (n < 0) return n;
        vec[0] = (struct iovec){channel->bounce, (size_t)n};
    }
    int offered = channel->lane->bounced && *pieces ? 1 : *pieces;
    channel->fds = op->fds;
    bool asks_on = !azc__outward(channel) && !op->then;
    channel->wanted = asks_on ? op->need - op->sent : 0;
    ssize_t r = offered ? move(channel, vec, offered, lend) : 0;
    if (r > 0 && channel->fds) op->fds = NULL; /* they went, or came */
    channel->fds = NULL;
    channel->wanted = 0;
    if (r >= 0) azc__queue_advance(&channel->queue, (uint64_t)r, lend);
    return r;
}

/* Calls the `then` of the receives that are complete.  As in a system call, no operation
 * of the channel may end meanwhile, except one that is cancelled. */
static void finish_received(azc_channel *channel) {
    azc_op *op = channel->queue.head;
    for (; op != channel->queue.cursor; op = op->next) {
        if (!op->then) continue;
        channel->in_call = op->in_then = true;
        azc__unlock(channel);
        op->then(op->with);
        azc__lock(channel);
        channel->in_call = op->in_then = false;
    }
}

/* One step.  Returns the bytes moved, or -errno when driving must stop. */
static ssize_t step(azc_channel *channel, int max_ops, uint64_t max_bytes) {
    bool inward = !azc__outward(channel);
    int pieces = 1;
    ssize_t r;
    if (channel->leftover)
        r = deliver_leftover(channel);
    else if (inward && channel->lane->bounced)
        r = receive_bounced(channel);
    else
        r = move_queued(channel, max_ops, max_bytes, &pieces);
    bool end = r == 0 && pieces && inward && !channel->leftover;
    const azc_op *blamed = channel->queue.cursor;
    if (inward) finish_received(channel);
    azc__end_consumed(channel); /* before a cancel, which may break the channel */
    azc__apply_cancels(channel);
    if ((r == -EFAULT || r == -ETOOMANYREFS) && blamed != channel->queue.cursor)
        r = -EINTR; /* the message to blame was cancelled: go on */
    if (end && azc__queue_next(&channel->queue))
        azc__end_one(channel, channel->queue.cursor, 0, AZC_DROPPED);
    return r;
}

/* Asks how far the reader of lent pages is, and ends the operations that it has read. */
static void check_loans(azc_channel *channel) {
    int r = azc__lender_ask(channel);
    azc__was_replaced(channel); /* if so, another file has answered */
    if (r < 0)
        azc__break(channel, r);
    else
        azc__end_consumed(channel);
}

/* Every CHECK_EVERY bytes, or before each move that may block: is the number no longer
 * our file's?  A caller's thread leaves that to the pump. */
static bool is_lost(azc_channel *channel, uint64_t spent, uint64_t *check_at) {
    if (channel->in_caller) return false;
    if (spent < *check_at && !channel->lane->bounced) return false;
    *check_at = spent + CHECK_EVERY;
    return azc__was_replaced(channel);
}

/* Moves until nothing is left, the fd is full or empty, or the budget is spent. */
static enum azc_drove move_all(azc_channel *channel, uint64_t budget) {
    int max_ops = azc__outward(channel) ? VEC_MAX : 1;
    uint64_t spent = 0, check_at = 0;
    while (channel->state == OPEN && azc__queue_next(&channel->queue)) {
        if (is_lost(channel, spent, &check_at)) break;
        if (spent >= budget || (channel->in_caller && !channel->lane->direct))
            return DROVE_BUDGET;
        uint64_t most = channel->lane->chunk;
        if (most > budget - spent) most = budget - spent;
        ssize_t r = step(channel, max_ops, most);
        if (channel->error) break;
        if (r >= 0) spent += (uint64_t)r;
        if (r >= 0) r = channel->stopped_by;
        channel->stopped_by = 0;
        if (r == 0) continue;
        enum azc_drove drove = handle_error(channel, (int)r, &max_ops);
        if (drove != DROVE_BUDGET) return drove;
    }
    return DROVE_BUDGET;
}

enum azc_drove azc__drive(azc_channel *channel, uint64_t budget, bool in_caller) {
    channel->driving = true;
    channel->in_caller = in_caller;
    enum azc_drove drove = move_all(channel, budget);
    bool asks = !in_caller || channel->lane->shared; /* (no reader holds a socket up) */
    if (asks && azc__has_loans(channel)) check_loans(channel);
    channel->driving = false;
    catch_up(channel);
    return drove;
}

bool azc__begin_turn(azc_channel *channel, azc_op *hold) {
    if (!hold || channel->queue.head != hold || channel->driving ||
        channel->state != OPEN || channel->error)
        return false;
    channel->driving = channel->in_call = true;
    channel->in_caller = false;
    channel->stop_early = hold->cancelled;
    channel->stopped_by = 0;
    hold->in_flight = 1; /* so that a cancel is put off */
    return true;
}

void azc__end_turn(azc_channel *channel) {
    channel->driving = channel->in_call = false;
    catch_up(channel);
    azc__hand_to_pump(channel, DROVE_BUDGET);
}

/* ---- later ----------------------------------------------------------- */

/* Is anything queued that no pump will resume yet?  (A hold at the head is the work of
 * its relay.) */
static bool has_work(const azc_channel *channel) {
    const azc_op *first = channel->queue.head;
    return channel->state == OPEN && first && !first->hold && !channel->pumping.armed;
}

static void resume(azc_id id);

static int arm(azc_channel *channel, enum azc_drove drove, bool checked) {
    if (!azc__queue_next(&channel->queue)) { /* all is out, but some pages are lent */
        if (!channel->lender.full) {
            azc__pump_nap(channel, channel->lender.nap_us);
            return 0; /* not armed, so that a new message can arm it */
        }
        drove = DROVE_BLOCKED; /* the socket will report it */
    }
    if (drove == DROVE_STARVED) {
        azc__pump_nap(channel, STARVED_PAUSE_US);
    } else if (drove == DROVE_BUDGET && channel->lane->shared &&
               azc__outward(channel)) {
        /* It may take more now, but epoll waits until it has much room. */
        azc__pump_kick(channel);
    } else if (channel->lane->polled && !channel->leftover) {
        /* A number that was not checked in this turn may be another channel's by now:
         * arming it would take that channel's place in the poller. */
        bool replaced = !checked && azc__was_replaced(channel);
        int r = replaced ? 0 : azc__pump_poll(channel);
        if (r < 0 && r != -EPERM) return r;
        /* The poller refuses such files, so try again without it. */
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

/* Tries again to find a pump for all that have none; true if some still have none. */
static bool hand_over_again(void) {
    bool more = false;
    azc_channel *channel;
    for (uint32_t i = 0; (channel = azc__handle_next(&azc__channels, &i));) {
        bool idle = !channel->pumping.pump && !channel->driving;
        if (idle && has_work(channel)) {
            azc__hand_to_pump(channel, DROVE_BLOCKED);
            more = more || !channel->pumping.pump;
        }
        azc__leave(channel);
    }
    return more;
}

/* There was no fd, thread or memory for a pump or its poller.  The pump tries again
 * later; if there is none, the loop that waits for the message does. */
static void wait_for_pump(azc_channel *channel, int error) {
    if (!keep_trying(channel, error)) return;
    if (channel->pumping.pump) {
        azc__pump_nap(channel, STARVED_PAUSE_US);
        channel->pumping.armed = true;
    } else {
        azc__port_retry(channel->last_port, hand_over_again);
    }
}

static void hand_over(azc_channel *channel, enum azc_drove drove, bool checked) {
    const azc_op *first = channel->queue.head;
    if (first && first->hold) first->hold->wake(first->hold);
    if (!has_work(channel)) return;
    int r = channel->pumping.pump ? 0 : azc__pump_attach(channel, resume);
    if (r == 0) r = arm(channel, drove, checked);
    if (r < 0)
        wait_for_pump(channel, r);
    else if (drove != DROVE_STARVED)
        channel->starved_since = 0;
}

void azc__hand_to_pump(azc_channel *channel, enum azc_drove drove) {
    hand_over(channel, drove, false);
}

/* The pump or the loop calls this when the fd is ready, or a nap is over.  The budget is
 * limited if it serves other channels, too, or must ask what became of loans. */
static void resume(azc_id id) {
    azc_channel *channel = azc__find(id);
    if (!channel) return;
    channel->pumping.armed = false;
    if (!channel->driving && channel->state == CLOSING) {
        azc__finish_close(channel);
    } else if (!channel->driving && has_work(channel)) {
        bool alone = !channel->lane->shared && !channel->lender.lends;
        uint64_t budget = alone ? UINT64_MAX : PUMP_BUDGET;
        hand_over(channel, azc__drive(channel, budget, false), true);
    }
    azc__leave(channel);
}

int azc_port_move(azc_id port) {
    int r = azc__loop_move(port, resume);
    return r < 0 ? r : azc__port_is_signalled(port);
}

/* Channels that waited in the poller of the port's loop wait in the pump's from now on. */
int azc_port_close(azc_id port) {
    int r = azc__port_close(port);
    if (r < 0 || !azc__loop_close(port)) return r;
    azc_channel *channel;
    for (uint32_t i = 0; (channel = azc__handle_next(&azc__channels, &i));) {
        if (channel->pumping.pump && channel->pumping.loop == port)
            azc__pump_kick(channel);
        azc__leave(channel);
    }
    return 0;
}
