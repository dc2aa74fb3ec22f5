/* submit.c - sends and receives, as they are called for.
 *
 * The short cut of a submitting thread (move at once, no pump) is allowed only
 * when nothing is queued and nobody drives, so the queue alone decides the
 * order.  A pipe's big message is the pump's all the same, unless that would only
 * be in the way (fits_attempt).
 */
#include <errno.h>

#include "channel.h"

enum {
    KEEPS_UP = 2 << 20, /* bytes since the pipe was full: its reader is fast */
    INSTEAD_OF_PUMP = 8 << 20, /* bytes that mostly take two milliseconds, */
    LATE_NS = 3000000,         /* and after three are the pump's all the same */
};

static int refusal(const azc_channel *channel) {
    switch (channel->state) {
    case OPEN:
        return 0;
    case BROKEN:
        return channel->error;
    case DEAD:
        return -ECHILD;
    default:
        return -ESHUTDOWN;
    }
}

/* What the submitting call returns for an operation that has already ended. */
static ssize_t report(azc_op *op) {
    ssize_t r = op->status < 0 ? op->status : (ssize_t)op->done;
    if (op->status < 0 && op->done) { /* exactness needs an event */
        azc__port_post(op->port, op);
        return -EINPROGRESS;
    }
    azc__port_drop(op->port);
    azc__op_free(op);
    return r;
}

/* True if a submitting thread may go to the kernel at once. */
static bool is_alone(const azc_channel *channel) {
    return !channel->queue.cursor && !channel->driving && channel->lane->direct;
}

/* A pipe that gets all it can take at a time from one thread, without a pause, is
 * read faster: what the pump will have to finish is the pump's from its start. */
static bool is_for_pump(const azc_channel *channel, const azc_op *op) {
    return channel->lane->paced && !channel->lends &&
           op->total > channel->lane->direct;
}

/* Queues op and moves what can be moved now; releases the lock. */
static ssize_t enter(azc_channel *channel, azc_port *port, uint64_t token,
                     azc_op *op) {
    op->token = token;
    op->port = port;
    azc__port_hold(port);
    int refused = refusal(channel);
    bool over = refused != 0;
    if (refused) {
        op->status = refused;
    } else {
        int drove = DROVE_BUDGET;
        bool direct = is_alone(channel) && !is_for_pump(channel, op);
        op->submitting = true;
        azc__queue_push(&channel->queue, op);
        if (direct) drove = azc__drive(channel, channel->lane->direct, true);
        if (!channel->driving) azc__hand_over(channel, drove);
        op->submitting = false;
        over = op->ended;
        if (over && op->status == 0) channel->stats.immediate++;
        if (!over && op->cancelled) azc__settle_cancelled(channel, op);
    }
    pthread_mutex_unlock(&channel->lock);
    return over ? report(op) : -EINPROGRESS;
}

static ssize_t submit(azc_channel *channel, azc_port *port, uint64_t token,
                      azc_op *op) {
    if (!op) return -ENOMEM;
    if (azc__is_dead(&channel->registered)) {
        azc__op_free(op);
        return -ECHILD;
    }
    pthread_mutex_lock(&channel->lock);
    return enter(channel, port, token, op);
}

/* For a message that needs no operation if it goes out whole.  The lock is let go
 * of meanwhile; returns what the lane did. */
static ssize_t attempt(azc_channel *channel, const void *data, size_t n,
                       int messages) {
    struct iovec vec = {(void *)(uintptr_t)data, n};
    bool instead = channel->lane->paced && n > channel->lane->direct;
    if (instead) {
        azc__pace_start(&channel->pace);
        channel->late = azc_sys.now_ns() + LATE_NS;
    }
    channel->driving = channel->in_caller = true;
    channel->hurry = false;
    pthread_mutex_unlock(&channel->lock);
    ssize_t r = channel->lane->move(channel, &vec, 1);
    pthread_mutex_lock(&channel->lock);
    channel->driving = false;
    channel->late = 0;
    if (instead && r == (ssize_t)n) azc__pace_stop(&channel->pace);
    channel->stats.calls += 1 + channel->more_calls;
    channel->more_calls = 0;
    if (r > 0) channel->stats.bytes += (uint64_t)r;
    if (r == -EAGAIN || channel->met_full) {
        channel->stats.waits++;
        channel->full_at = channel->stats.bytes;
    }
    channel->met_full = false;
    if (r == (ssize_t)n) {
        channel->queue.accepted += n;
        channel->stats.messages += (uint64_t)messages;
        channel->stats.immediate++;
    }
    if (channel->state == CLOSING) azc__finish_close(channel);
    return r;
}

/* How many of these messages end within so many bytes. */
static uint64_t messages_within(uint64_t bytes, const uint64_t *sizes,
                                int nsizes) {
    uint64_t messages = 0;
    for (int i = 0; i < nsizes && sizes[i] <= bytes; i++) {
        bytes -= sizes[i];
        messages++;
    }
    return messages;
}

/* What is left of a message after an attempt goes before all others: they were
 * queued while it was in the kernel. */
static ssize_t enter_begun(azc_channel *channel, const void *data, size_t n,
                           size_t done, const uint64_t *sizes, int nsizes) {
    struct iovec vec = {(void *)(uintptr_t)data, n};
    azc_op *op = azc__op_new(&vec, 1, sizes, nsizes);
    int refused = refusal(channel);
    if (op && (done || !refused)) {
        op->token = channel->home_token;
        op->port = channel->home;
        azc__port_hold(op->port);
        if (refused) { /* exactness needs an event */
            op->done = done;
            azc__end(channel, op, refused);
        } else {
            azc__queue_push_first(&channel->queue, op);
            azc__queue_accept(&channel->queue, done, false);
        }
        return -EINPROGRESS;
    }
    if (op)
        azc__op_free(op);
    else if (done)
        channel->stats.messages += messages_within(done, sizes, nsizes);
    if (!refused && done) azc__break(channel, -ENOMEM); /* it is torn */
    return refused ? refused : -ENOMEM;
}

static bool is_to_be_lent(const azc_channel *channel, const void *data,
                          size_t n) {
    size_t from = azc__lend_from(channel);
    return from && n >= from && azc__pool_lends(data, n);
}

/* A socket takes what it has room for, in one call.  A pipe is given piece after
 * piece, as long as its reader keeps up; that is the pump's work, unless it would
 * only take turns with this thread, which has nothing to do but to wait. */
static bool fits_attempt(const azc_channel *channel, size_t n) {
    if (!channel->lane->paced) return n <= channel->lane->chunk;
    if (n <= channel->lane->direct) return true;
    return channel->crowded && n <= INSTEAD_OF_PUMP && !channel->lends &&
           channel->stats.bytes - channel->full_at >= KEEPS_UP;
}

/* Those who never have to wait must let others run once in a while.  Only the
 * home's thread is ever here. */
static int turn_is_over(azc_channel *channel, size_t n) {
    channel->spent += 1 + (n >> 12);
    if (channel->spent < channel->turn) return 0;
    channel->spent = 0;
    return 1;
}

static ssize_t send_home(azc_channel *channel, const void *data, size_t n,
                         const uint64_t *sizes, int nsizes) {
    ssize_t r;
    if (azc__is_dead(&channel->registered)) return -ECHILD;
    pthread_mutex_lock(&channel->lock);
    if (channel->state != OPEN || !is_alone(channel) || !n ||
        !fits_attempt(channel, n) || is_to_be_lent(channel, data, n)) {
        struct iovec vec = {(void *)(uintptr_t)data, n};
        pthread_mutex_unlock(&channel->lock);
        r = azc_sendv(channel, channel->home, channel->home_token, &vec, 1,
                      sizes, nsizes);
    } else {
        r = attempt(channel, data, n, nsizes ? nsizes : 1);
        if (r != (ssize_t)n) /* whatever it was, the pump will meet it again */
            r = enter_begun(channel, data, n, r > 0 ? (size_t)r : 0, sizes,
                            nsizes);
        if (!channel->driving) azc__hand_over(channel, DROVE_BLOCKED);
        pthread_mutex_unlock(&channel->lock);
    }
    return r < 0 ? r : turn_is_over(channel, n);
}

int azc_send_home(azc_channel *channel, const void *data, size_t n) {
    return (int)send_home(channel, data, n, NULL, 0);
}

int azc_send_batch(azc_channel *channel, const void *data, size_t n,
                   const uint64_t *sizes, int nsizes) {
    return (int)send_home(channel, data, n, sizes, nsizes);
}

void azc_set_home(azc_channel *channel, azc_port *port, uint64_t token,
                  unsigned turn) {
    channel->home = port;
    channel->home_token = token;
    channel->turn = turn;
}

ssize_t azc_sendv(azc_channel *channel, azc_port *port, uint64_t token,
                  const struct iovec *vec, int count, const uint64_t *sizes,
                  int nsizes) {
    azc_op *op = azc__op_new(vec, count, sizes, nsizes);
    if (op && nsizes && op->ends[nsizes - 1] != op->total) {
        azc__op_free(op);
        return -EINVAL;
    }
    return submit(channel, port, token, op);
}

ssize_t azc_send(azc_channel *channel, azc_port *port, uint64_t token,
                 const void *data, size_t n) {
    struct iovec vec = {(void *)(uintptr_t)data, n};
    return azc_sendv(channel, port, token, &vec, 1, NULL, 0);
}

ssize_t azc_recv(azc_channel *channel, azc_port *port, uint64_t token,
                 void *data, size_t n, size_t need) {
    struct iovec vec = {data, n};
    azc_op *op = azc__op_new(&vec, 1, NULL, 0);
    if (op) op->need = need;
    return submit(channel, port, token, op);
}
