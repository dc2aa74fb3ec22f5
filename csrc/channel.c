/* channel.c - one fd, one direction: submit, drive, cancel, close.
 *
 * The states and the rule of driving are in channel.h.  The short cut of a
 * submitting thread (move at once, no pump) is allowed only when nothing is
 * queued and nobody drives, so the queue alone decides the order.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "channel.h"

enum {
    PUMP_TURN = 1 << 20, /* bytes, before another socket has its turn */
    CHECK_EVERY = 256 << 10, /* bytes, before the fd is looked at again */
    NAP_MIN_US = 50, /* while a reader has lent pages, */
    NAP_MAX_US = 2000, /* and when it is slow */
    STARVED_LIMIT = 400, /* tries, 5 ms apart, while the kernel has no memory */
};

static bool outward(const azc_channel *channel) {
    return channel->flags & AZC_OUT;
}

/* ---- the life of a channel ------------------------------------------- */

int azc_portable(void) {
#ifdef AZC_PORTABLE
    return 1;
#else
    return 0;
#endif
}

static int prepare_fd(azc_channel *channel) {
    struct stat st;
    int r = azc_sys.fstat(channel->fd, &st);
    if (r < 0) return r;
    channel->device = st.st_dev;
    channel->inode = st.st_ino;
    channel->lane = azc__lane_for(&st, channel->fd, channel->flags);
    /* A pipe that pages were lent to knows RWF_NOWAIT no more. */
    channel->lends = channel->lane->paced && channel->flags & AZC_READS &&
                     channel->flags & AZC_OWN;
    channel->nap_us = NAP_MIN_US;
#ifdef SO_NOSIGPIPE
    int on = 1;
    if (S_ISSOCK(st.st_mode))
        setsockopt(channel->fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
    return 0;
}

/* The number may have been closed and given to another file behind our back. */
static bool still_ours(const azc_channel *channel) {
    struct stat st;
    if (SABOTAGED(IDENTITY)) return true;
    return azc_sys.fstat(channel->fd, &st) == 0 &&
           st.st_dev == channel->device && st.st_ino == channel->inode;
}

/* The lane's copy buffer, or the error that there is none. */
static int prepare_bounce(azc_channel *channel) {
    if (!channel->lane->bounced || channel->bounce) return 0;
    channel->bounce = azc_sys.allocate(azc__lane_bounce_size());
    return channel->bounce ? 0 : -ENOMEM;
}

static int open_over(azc_file *file, int fd, int flags, azc_channel **out) {
    azc_channel *channel = azc_sys.allocate(sizeof *channel);
    if (!channel) return -ENOMEM;
    memset(channel, 0, sizeof *channel);
    channel->file = file;
    channel->fd = fd;
    channel->flags = flags;
    channel->refs = 1;
    int r = prepare_fd(channel);
    if (r == 0) r = prepare_bounce(channel);
    if (r < 0) {
        azc_sys.release(channel);
        return r;
    }
    file->refs++;
    pthread_mutex_init(&channel->lock, NULL);
    azc__register(REGISTERED_CHANNEL, &channel->registered, channel);
    *out = channel;
    return 0;
}

int azc_open(int fd, int flags, azc_channel **out) {
    int direction = flags & (AZC_IN | AZC_OUT);
    if (direction != AZC_IN && direction != AZC_OUT) return -EINVAL;
    azc_file *file = azc_sys.allocate(sizeof *file);
    if (!file) return -ENOMEM;
    atomic_init(&file->refs, 0);
    atomic_init(&file->lost, false);
    int r = open_over(file, fd, flags, out);
    if (r < 0) azc_sys.release(file);
    return r;
}

int azc_open_opposite(azc_channel *channel, azc_channel **out) {
    int fd = channel->fd;
    if (fd < 0) return -EBADF;
    return open_over(channel->file, fd, channel->flags ^ (AZC_IN | AZC_OUT),
                     out);
}

/* The last channel over the fd closes it, unless the number is lost. */
static void close_file(azc_file *file, int fd) {
    if (--file->refs) return;
    if (!file->lost) azc_sys.close(fd);
    azc_sys.release(file);
}

/* False if the last holder is just letting go. */
bool azc__channel_hold(azc_channel *channel) {
    int refs = atomic_load(&channel->refs);
    while (refs > 0) {
        if (atomic_compare_exchange_weak(&channel->refs, &refs, refs + 1))
            return true;
    }
    return false;
}

void azc__channel_unref(azc_channel *channel) {
    if (--channel->refs) return;
    azc__unregister(&channel->registered);
    pthread_mutex_destroy(&channel->lock);
    azc_sys.release(channel->bounce);
    azc_sys.release(channel);
}

/* ---- how an operation ends ------------------------------------------- */

/* Buffers are the caller's again when: the event is drained (or, for an
 * operation whose submitting call still runs, when that returns). */
static void end_op(azc_channel *channel, azc_op *op, int status) {
    op->status = status;
    op->ended = true;
    op->in_flight = 0;
    if (op->lent) azc__op_detach(op);
    if (!outward(channel))
        channel->stats.messages += status == 0;
    else if (status == 0 || op->done) /* not an empty one that was dropped */
        channel->stats.messages += azc__op_messages(op);
    if (op->submitting) return;
    if (op->port)
        azc__port_post(op->port, op);
    else
        azc__op_free(op);
}

static void end_list(azc_channel *channel, azc_op *op, int status) {
    while (op) {
        azc_op *next = op->next;
        end_op(channel, op, status);
        op = next;
    }
}

/* Every operation hears of the end, in order. */
static void end_all(azc_channel *channel, int status) {
    azc_op *all = channel->queue.head;
    channel->queue.head = channel->queue.tail = channel->queue.cursor = NULL;
    channel->queue.bytes = channel->queue.ops = 0;
    end_list(channel, all, status);
}

static void end_one(azc_channel *channel, azc_op *op, int status) {
    azc__queue_remove(&channel->queue, op);
    end_op(channel, op, status);
}

static void break_channel(azc_channel *channel, int error) {
    if (channel->state != OPEN) return;
    channel->state = BROKEN;
    channel->error = error;
    end_all(channel, error);
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
        break_channel(channel, -ECANCELED);
        return -ENOBUFS;
    }
    channel->stats.rescued += (uint64_t)r;
    if (op->done == op->total) {
        azc__queue_accept(&channel->queue, 0, false);
        end_list(channel,
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
    if (!outward(channel) || (op->done == 0 && !op->in_flight)) {
        end_one(channel, op, -ECANCELED);
        return AZC_DROPPED;
    }
    event->outcome = rescue(channel, op, limit);
    return event->outcome;
}

/* A cancel had to wait for the system call that is now over. */
static void settle_cancelled(azc_channel *channel, azc_op *op) {
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
static void settle(azc_channel *channel) {
    bool any = false;
    for (azc_op *op = channel->queue.head; op; op = op->next) {
        if (!op->in_flight && op->done < op->need) break;
        op->in_flight = 0;
        any = any || op->cancelled;
    }
    azc_op *op;
    while (any && channel->state == OPEN &&
           (op = next_cancelled(&channel->queue)))
        settle_cancelled(channel, op);
}

int azc_cancel(azc_channel *channel, uint64_t token, uint64_t limit,
               azc_event *event) {
    azc_port *port = NULL;
    int r = -ENOENT;
    pthread_mutex_lock(&channel->lock);
    azc_op *op = channel->state == DEAD
                     ? NULL
                     : azc__queue_find(&channel->queue, token);
    bool held = op && (op->in_flight || op->submitting);
    if (held && !channel->lane->bounced) {
        if (!op->notice) op->notice = azc__op_new(NULL, 0, NULL, 0);
        op->cancelled = op->notice != NULL;
        op->rescue_limit = limit;
        r = AZC_LATER;
    } else if (op) {
        port = op->port;
        r = cancel_now(channel, op, limit, event);
    }
    pthread_mutex_unlock(&channel->lock);
    if (port) azc__port_drop(port);
    return r;
}

/* ---- closing --------------------------------------------------------- */

/* The lock is let go of while the fd is closed: that can last (a pipe whose
 * reader sits inside its own system call, a socket that lingers). */
static void finish_close(azc_channel *channel) {
    int fd = channel->fd;
    azc_op *notice = channel->close_op;
    channel->state = CLOSED;
    channel->close_op = NULL;
    end_all(channel, -ESHUTDOWN);
    if (!channel->file->lost && !still_ours(channel))
        channel->file->lost = true; /* not ours to close */
    azc__pump_leave(channel);
    channel->fd = -1;
    pthread_mutex_unlock(&channel->lock);
    close_file(channel->file, fd);
    if (notice) azc__port_post(notice->port, notice);
    pthread_mutex_lock(&channel->lock);
}

int azc_close(azc_channel *channel, azc_port *port, uint64_t token) {
    azc_op *notice = NULL;
    if (azc__is_dead(&channel->registered)) return 1;
    if (port) {
        notice = azc__op_new(NULL, 0, NULL, 0);
        if (!notice) return -ENOMEM;
        notice->token = token;
        notice->port = port;
        azc__port_hold(port);
    }
    pthread_mutex_lock(&channel->lock);
    int r = -EALREADY;
    if (channel->state == OPEN || channel->state == BROKEN) {
        bool threaded = channel->pump && !channel->lane->shared;
        channel->state = CLOSING;
        if (channel->lane->bounced) end_all(channel, -ESHUTDOWN);
        if (channel->driving || threaded) {
            channel->close_op = notice;
            notice = NULL;
            r = -EINPROGRESS;
            if (threaded) azc__pump_kick(channel);
        } else {
            finish_close(channel);
            r = 1;
        }
    }
    pthread_mutex_unlock(&channel->lock);
    if (notice) {
        azc__op_free(notice);
        azc__port_drop(port);
    }
    return r;
}

void azc_free(azc_channel *channel) {
    if (azc__is_dead(&channel->registered)) return;
    pthread_mutex_lock(&channel->lock);
    bool closed = channel->state == CLOSED;
    pthread_mutex_unlock(&channel->lock);
    azc__pump_detach(channel, closed);
    azc__channel_unref(channel);
}

int azc_fd(azc_channel *channel) { return channel->fd; }

int azc_shutdown(azc_channel *channel) {
    pthread_mutex_lock(&channel->lock);
    int r = channel->state == OPEN ? azc_sys.shutdown(channel->fd) : -ESHUTDOWN;
    pthread_mutex_unlock(&channel->lock);
    return r;
}

int azc_get_stats(azc_channel *channel, azc_stats *stats) {
    if (azc__is_dead(&channel->registered)) return -ECHILD;
    pthread_mutex_lock(&channel->lock);
    *stats = channel->stats;
    stats->queued = channel->queue.ops;
    stats->queued_bytes = channel->queue.bytes;
    stats->error = channel->error;
    stats->lends = channel->lends;
    stats->threaded = channel->pump && !channel->lane->shared;
    pthread_mutex_unlock(&channel->lock);
    return 0;
}

/* Does the number belong to another file now?  Then not one byte may go there. */
static bool was_replaced(azc_channel *channel) {
    if (still_ours(channel)) return false;
    channel->file->lost = true; /* not ours to close either */
    break_channel(channel, -EBADF);
    return true;
}

/* ---- lending --------------------------------------------------------- */

/* What came of lending.  A kernel that refuses is never asked again. */
static ssize_t weigh_loan(azc_channel *channel, ssize_t r) {
    if (r > 0) channel->stats.lent += (uint64_t)r;
    if (r != -EINVAL && r != -EPERM && r != -ENOSYS && r != -EFAULT) return r;
    channel->lends = false;
    return -EINTR;
}

/* How many bytes the reader has not read, or -EPIPE if there is no reader.
 * The lock is let go of: a reader can hold the question up. */
static ssize_t ask_reader(azc_channel *channel) {
    struct pollfd peer = {channel->fd, 0, 0};
    pthread_mutex_unlock(&channel->lock);
    ssize_t unread = azc_sys.unread(channel->fd);
    if (unread > 0 && azc_sys.poll(&peer, 1, 0) > 0 && peer.revents & POLLERR)
        unread = -EPIPE;
    pthread_mutex_lock(&channel->lock);
    return unread;
}

/* Ends what the reader of lent pages has read by now, and notes when to look
 * again.  Returns why the drive stopped.  Only the pump does this. */
static int tally(azc_channel *channel, int drove) {
    uint64_t accepted = channel->queue.accepted, read = 0;
    ssize_t unread = ask_reader(channel);
    if (channel->state != OPEN || was_replaced(channel)) return drove;
    if (unread < 0) {
        break_channel(channel, (int)unread);
        return drove;
    }
    if ((uint64_t)unread < accepted) read = accepted - (uint64_t)unread;
    if (read > channel->read) {
        channel->read = read;
        channel->nap_us = NAP_MIN_US;
    } else if (channel->nap_us < NAP_MAX_US) {
        channel->nap_us *= 2;
    }
    end_list(channel, azc__queue_consume(&channel->queue, channel->read), 0);
    if (channel->queue.cursor) return drove == DROVE_DRY ? DROVE_BUDGET : drove;
    return channel->queue.head ? DROVE_LENT : DROVE_DRY;
}

/* ---- driving --------------------------------------------------------- */

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
    bool bounced_in = channel->lane->bounced && !outward(channel);
    bool lend = channel->lends;
    if (bounced_in) {
        vec[0] = (struct iovec){channel->bounce, azc__lane_bounce_size()};
        *count = 1;
    } else {
        *count =
            azc__queue_gather(&channel->queue, vec, max_ops, max_bytes, &lend);
    }
    if (!*count) { /* empty messages only */
        azc__queue_accept(&channel->queue, 0, false);
        return 0;
    }
    const azc_lane *lane = channel->lane;
    if (lane->bounced && outward(channel)) {
        ssize_t n = azc__lane_fill(channel, vec, *count);
        if (n < 0) return n;
        vec[0] = (struct iovec){channel->bounce, (size_t)n};
        *count = 1;
    }
    pthread_mutex_unlock(&channel->lock);
    ssize_t r = lend ? azc_sys.lend(channel->fd, vec, *count)
                     : lane->move(channel, vec, *count);
    pthread_mutex_lock(&channel->lock);
    if (lend) r = weigh_loan(channel, r);
    channel->stats.calls += 1 + channel->more_calls;
    channel->more_calls = 0;
    if (r > 0) channel->stats.bytes += (uint64_t)r;
    if (r > 0 && bounced_in) {
        channel->kept_at = 0;
        channel->kept = (size_t)r;
        r = (ssize_t)deliver_kept(channel);
    } else if (r >= 0) {
        azc__queue_accept(&channel->queue, (uint64_t)r, lend);
        if (!lend) azc__pace_moved(&channel->pace, (uint64_t)r);
    }
    return r;
}

/* One step.  Returns the bytes moved, or -errno when driving must stop. */
static ssize_t step(azc_channel *channel, int max_ops, uint64_t max_bytes) {
    int count = 0;
    ssize_t r = channel->kept ? (ssize_t)deliver_kept(channel)
                              : call_lane(channel, max_ops, max_bytes, &count);
    bool end = r == 0 && count && !outward(channel) && !channel->kept;
    const azc_op *blamed = channel->queue.cursor;
    settle(channel);
    if (r == -EFAULT && blamed != channel->queue.cursor)
        r = -EINTR; /* whose memory was bad was cancelled: ask again */
    end_list(channel,
             azc__queue_consume(&channel->queue, channel->read), 0);
    if (end && channel->queue.cursor)
        end_one(channel, channel->queue.cursor, 0);
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
        return -EAGAIN;
    case ENOMEM:
    case ENOBUFS:
        if (++channel->starved < STARVED_LIMIT) return -ENOMEM;
        break;
    case EOPNOTSUPP: /* a FIFO does not know RWF_NOWAIT */
        if (channel->lane == azc__lane_waiting()) break;
        channel->lane = azc__lane_waiting();
        error = prepare_bounce(channel);
        if (error == 0) return 0;
        break;
    case EFAULT: /* whose memory was it?  Ask with one message at a time. */
        if (!op || !outward(channel)) break;
        if (*max_ops > 1) {
            *max_ops = 1;
            return 0;
        }
        if (op->done) break;
        end_one(channel, op, -EFAULT);
        return 0;
    case EIO: /* a pty whose other side is closed has come to its end */
        if (outward(channel) || channel->lane != azc__lane_waiting()) break;
        if (op) end_one(channel, op, 0);
        return 0;
    }
    break_channel(channel, error);
    return error;
}

static uint64_t chunk_of(const azc_channel *channel, bool direct) {
    uint64_t chunk = channel->lane->chunk;
    if (direct || !channel->lane->paced) return chunk;
    uint64_t piece = azc__pace_piece(&channel->pace);
    return piece > chunk ? piece : chunk;
}

/* Moves bytes until nothing is left, the fd blocks or the budget is spent.
 * The lock is held on entry and on return, but not throughout. */
static int drive(azc_channel *channel, uint64_t budget, bool direct) {
    uint64_t spent = 0;
    int outcome = DROVE_DRY, max_ops = outward(channel) ? VEC_MAX : 1;
    uint64_t check_at = 0;
    channel->driving = true;
    if (channel->lane->paced && !direct) azc__pace_start(&channel->pace);
    while (channel->state == OPEN && channel->queue.cursor) {
        if (!direct && (spent >= check_at || channel->lane->bounced)) {
            check_at = spent + CHECK_EVERY;
            if (was_replaced(channel)) break;
        }
        if (spent >= budget || (direct && !channel->lane->direct)) {
            outcome = DROVE_BUDGET;
            break;
        }
        uint64_t most = chunk_of(channel, direct);
        if (most > budget - spent) most = budget - spent;
        ssize_t r = step(channel, max_ops, most);
        if (r >= 0) {
            spent += (uint64_t)r;
            channel->starved = 0;
            continue;
        }
        int error = weigh_error(channel, (int)r, &max_ops);
        if (error == 0) continue;
        outcome = error == -ENOMEM ? DROVE_STARVED : DROVE_BLOCKED;
        break;
    }
    if (channel->state == OPEN && channel->queue.head != channel->queue.cursor) {
        if (!direct)
            outcome = tally(channel, outcome);
        else if (outcome == DROVE_DRY)
            outcome = DROVE_LENT;
    }
    channel->driving = false;
    if (outcome == DROVE_DRY || outcome == DROVE_LENT)
        azc__pace_stop(&channel->pace);
    if (channel->state == CLOSING) finish_close(channel);
    return outcome;
}

/* Sees to it that what is left will be driven later. */
static void hand_over(azc_channel *channel, int drove) {
    if (channel->state != OPEN || !channel->queue.head || channel->armed)
        return;
    int r = azc__pump_arm(channel, drove);
    if (r < 0) break_channel(channel, r);
}

/* Called by the pump when the fd is ready, or was kicked. */
void azc__channel_resume(azc_channel *channel) {
    pthread_mutex_lock(&channel->lock);
    channel->armed = false;
    if (!channel->driving) {
        if (channel->state == CLOSING) {
            finish_close(channel);
        } else if (channel->state == OPEN && channel->queue.head) {
            hand_over(channel, drive(channel, PUMP_TURN, false));
        }
    }
    pthread_mutex_unlock(&channel->lock);
}

/* ---- submitting ------------------------------------------------------ */

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
        bool alone = is_alone(channel);
        op->submitting = true;
        azc__queue_push(&channel->queue, op);
        if (alone)
            drove = drive(channel, channel->lane->direct, true);
        if (!channel->driving) hand_over(channel, drove);
        op->submitting = false;
        over = op->ended;
        if (over && op->status == 0) channel->stats.immediate++;
        if (!over && op->cancelled) settle_cancelled(channel, op);
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

/* One system call for a message that needs no operation if it goes out whole.
 * The lock is let go of meanwhile; returns what the lane did. */
static ssize_t attempt(azc_channel *channel, const void *data, size_t n) {
    struct iovec vec = {(void *)(uintptr_t)data, n};
    channel->driving = true;
    pthread_mutex_unlock(&channel->lock);
    ssize_t r = channel->lane->move(channel, &vec, 1);
    pthread_mutex_lock(&channel->lock);
    channel->driving = false;
    channel->stats.calls += 1 + channel->more_calls;
    channel->more_calls = 0;
    if (r > 0) channel->stats.bytes += (uint64_t)r;
    if (r == -EAGAIN) channel->stats.waits++;
    if (r == (ssize_t)n) {
        channel->queue.accepted += n;
        channel->stats.messages++;
        channel->stats.immediate++;
    }
    if (channel->state == CLOSING) finish_close(channel);
    return r;
}

/* What is left of a message after an attempt goes before all others: they were
 * queued while it was in the kernel. */
static ssize_t enter_begun(azc_channel *channel, const void *data, size_t n,
                           size_t done) {
    struct iovec vec = {(void *)(uintptr_t)data, n};
    azc_op *op = azc__op_new(&vec, 1, NULL, 0);
    int refused = refusal(channel);
    if (op && (done || !refused)) {
        op->token = channel->home_token;
        op->port = channel->home;
        azc__port_hold(op->port);
        if (refused) { /* exactness needs an event */
            op->done = done;
            end_op(channel, op, refused);
        } else {
            azc__queue_push_first(&channel->queue, op);
            azc__queue_accept(&channel->queue, done, false);
        }
        return -EINPROGRESS;
    }
    if (op) azc__op_free(op);
    if (!refused && done) break_channel(channel, -ENOMEM); /* it is torn */
    return refused ? refused : -ENOMEM;
}

ssize_t azc_send_home(azc_channel *channel, const void *data, size_t n) {
    if (azc__is_dead(&channel->registered)) return -ECHILD;
    pthread_mutex_lock(&channel->lock);
    if (channel->state != OPEN || !is_alone(channel) || !n ||
        n > channel->lane->chunk) {
        pthread_mutex_unlock(&channel->lock);
        return azc_send(channel, channel->home, channel->home_token, data, n);
    }
    ssize_t r = attempt(channel, data, n);
    if (r != (ssize_t)n) /* whatever it was, the pump will meet it again */
        r = enter_begun(channel, data, n, r > 0 ? (size_t)r : 0);
    if (!channel->driving) hand_over(channel, DROVE_BLOCKED);
    pthread_mutex_unlock(&channel->lock);
    return r;
}

void azc_set_home(azc_channel *channel, azc_port *port, uint64_t token) {
    channel->home = port;
    channel->home_token = token;
}

ssize_t azc_sendv(azc_channel *channel, azc_port *port, uint64_t token,
                  const struct iovec *vec, int count, const uint64_t *ends,
                  int nends) {
    azc_op *op = azc__op_new(vec, count, ends, nends);
    if (op && nends && ends[nends - 1] != op->total) {
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

/* ---- exit and fork --------------------------------------------------- */

/* Is a thread still inside a system call that has a caller's bytes? */
static bool is_busy(azc_channel *channel) {
    pthread_mutex_lock(&channel->lock);
    bool busy = channel->driving && !channel->lane->bounced;
    pthread_mutex_unlock(&channel->lock);
    return busy;
}

int azc_stop(int ms) {
    enum { MOST = 4096 };
    static azc_channel *channels[MOST];
    uint64_t deadline = azc_sys.now_ns() + (uint64_t)ms * 1000000;
    int count = azc__registry_channels(channels, MOST), busy = 0;
    for (int i = 0; i < count; i++) azc_close(channels[i], NULL, 0);
    do {
        busy = 0;
        for (int i = 0; i < count; i++) busy += is_busy(channels[i]);
        if (busy) poll(NULL, 0, 1);
    } while (busy && azc_sys.now_ns() < deadline);
    for (int i = 0; i < count; i++) azc__channel_unref(channels[i]);
    return busy ? -ETIMEDOUT : count;
}

/* In the child: the lock may be held by a thread that does not exist here. */
void azc__channel_fork_child(azc_channel *channel) {
    pthread_mutex_init(&channel->lock, NULL);
    channel->state = DEAD;
    bool last = channel->fd >= 0 && --channel->file->refs == 0;
    if (last && !channel->file->lost && still_ours(channel))
        azc_sys.close(channel->fd);
    channel->fd = -1;
}
