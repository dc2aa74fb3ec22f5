/* submit.c - the calls that send and receive.
 *
 * A submitting thread may move bytes at once, without a pump, only when nothing is
 * queued and no thread is driving: so the queue alone decides the order.
 */
#include <errno.h>

#include "ending.h"
#include "move.h"

/* May a submitting thread make system calls itself? */
static bool may_send_now(const azc_channel *channel) {
    return !channel->queue.cursor && !channel->driving && channel->lane->direct;
}

/* Returns 1 now and then, so that a caller whose sends never wait yields to its loop. */
static int budget_is_spent(azc_channel *channel, uint64_t n) {
    channel->spent += 1 + (n >> 12);
    if (channel->spent < channel->budget) return 0;
    channel->spent = 0;
    return 1;
}

/* ---- operations ------------------------------------------------------ */

/* A pipe is read faster if one thread writes without a pause.  So if the pump would have
 * to finish a message, it sends the message from the start. */
static bool is_for_pump(const azc_channel *channel, const azc_op *op) {
    return channel->lane->pieces && !channel->lender.lends &&
           op->total > channel->lane->direct;
}

/* Returns what the submitting call returns for an operation that has ended.  If it failed
 * with some bytes out, an event must report how many. */
static ssize_t report(azc_channel *channel, azc_op *op) {
    azc_note *note = op->note;
    ssize_t r = op->status < 0 ? op->status : (ssize_t)op->sent;
    if (op->status < 0 && op->sent) {
        azc__note_post(note, op->sent, op->status, op->outcome);
        r = -EINPROGRESS;
    } else {
        channel->stats.immediate += op->status == 0;
        channel->last = (azc_event){.token = note ? azc__note_token(note) : 0,
                                    .sent = op->sent,
                                    .status = op->status};
        azc__note_free(note);
    }
    azc__op_free(op);
    return r;
}

static ssize_t queue_and_drive(azc_channel *channel, azc_op *op) {
    bool direct = may_send_now(channel) && !is_for_pump(channel, op);
    enum azc_drove drove = DROVE_BUDGET;
    op->submitting = true;
    bool has_room = azc__queue_push(&channel->queue, op);
    if (direct) drove = azc__drive(channel, channel->lane->direct, true);
    if (!channel->driving) azc__hand_to_pump(channel, drove);
    op->submitting = false;
    if (op->ended) return report(channel, op);
    bool must_wait = op->asks_room && !has_room;
    azc__apply_cancel_of(channel, op);
    return must_wait ? -EBUSY : -EINPROGRESS;
}

static ssize_t submit(azc_id id, azc_id port, uint64_t token, azc_op *op) {
    if (!op) return -ENOMEM;
    ssize_t r = azc__note_new(port, token, &op->note);
    azc_channel *channel = r < 0 ? NULL : azc__enter(id);
    if (r == 0) r = channel ? azc__refusal(channel) : azc__why(id);
    if (r < 0) {
        if (channel) azc__leave(channel);
        azc__note_free(op->note);
        azc__op_free(op);
        return r;
    }
    uint64_t total = op->total;
    channel->last_port = port;
    r = queue_and_drive(channel, op);
    if (r >= 0 && azc__outward(channel)) r = budget_is_spent(channel, total);
    azc__leave(channel);
    return r;
}

int azc_sendv(azc_id channel, azc_id port, uint64_t token, const struct iovec *vec,
              int count, const uint64_t *sizes, int nsizes, int ask_room) {
    azc_op *op = azc__op_new(vec, count, sizes, nsizes);
    if (op && nsizes && op->ends[nsizes - 1] != op->total) {
        azc__op_free(op);
        return -EINVAL;
    }
    if (op) op->asks_room = ask_room;
    return (int)submit(channel, port, token, op);
}

static azc_op *one_piece(const void *data, size_t n, size_t need, azc_fds *fds) {
    struct iovec vec = {(void *)(uintptr_t)data, n};
    azc_op *op = azc__op_new(&vec, 1, NULL, 0);
    if (op) op->need = need;
    if (op) op->fds = fds;
    return op;
}

ssize_t azc_recv(azc_id channel, azc_id port, uint64_t token, void *data, size_t n,
                 size_t need, azc_fds *fds) {
    return submit(channel, port, token, one_piece(data, n, need, fds));
}

/* (an error breaks the channel, and the next call says so; but not bad memory, which
 * azc_recv refuses) */
ssize_t azc_recv_now(azc_id id, void *data, size_t n, size_t need, uint64_t *received) {
    const struct iovec piece = {data, n};
    azc_channel *channel = azc__enter(id);
    if (!channel) return azc__why(id);
    ssize_t r = azc__refusal(channel), come = 0;
    bool is_next = may_send_now(channel) && !channel->leftover;
    if (r == 0 && n && is_next && !channel->lane->bounced) {
        const uint64_t most = channel->lane->direct;
        channel->wanted = need < most ? need : most;
        come = azc__attempt(channel, &piece, 1);
        channel->wanted = 0;
        if (come > 0) {
            *received = (uint64_t)come;
            channel->stats.messages++;
            channel->stats.immediate++;
        }
        azc__finish_attempt(channel, come == -EFAULT ? 0 : come);
        azc__hand_to_pump(channel, DROVE_BLOCKED);
    }
    azc__leave(channel);
    if (r == 0 && come > 0) r = come;
    return r;
}

ssize_t azc_recv_then(azc_id channel, azc_id port, uint64_t token, void *data, size_t n,
                      void (*then)(void *with), void *with) {
    azc_op *op = one_piece(data, n, n, NULL);
    if (op) {
        op->then = then;
        op->with = with;
    }
    return submit(channel, port, token, op);
}

/* ---- with open files ---------------------------------------------------- */

int azc_send_fds(azc_id channel, azc_id port, uint64_t token, const void *data,
                 size_t n, azc_fds *fds) {
    return (int)submit(channel, port, token, one_piece(data, n, n, fds));
}

int azc_dup_fds(azc_fds *fds, const int *from, int count) {
    if (count > AZC_MOST_FDS) return -EINVAL;
    for (int i = 0; i < count; i++) {
        int fd = azc_sys.dup(from[i]);
        if (fd < 0) {
            azc_close_fds(fds);
            return fd;
        }
        fds->fds[fds->count++] = fd;
    }
    return 0;
}

int azc_pipe(azc_fds *from, azc_fds *into) {
    int ends[2];
    int r = azc_sys.blocking_pipe(ends);
    if (r < 0) return r;
    r = azc_dup_fds(from, &ends[0], 1);
    if (r == 0) r = azc_dup_fds(into, &ends[1], 1);
    if (r < 0) azc_close_fds(from);
    azc_sys.close(ends[0]);
    azc_sys.close(ends[1]);
    return r;
}

void azc_close_fds(azc_fds *fds) {
    while (fds->count > 0) azc_sys.close(fds->fds[--fds->count]);
}

/* ---- to the bound port: without an operation if all goes out at once --- */

typedef struct message {
    const struct iovec *vec;
    int count;
    size_t n; /* bytes in vec */
    int messages;
} message;

static bool would_be_lent(const azc_channel *channel, const message *it) {
    size_t from = azc__lend_from(channel, it->n);
    for (int i = 0; from && i < it->count; i++)
        if (azc__queue_lends(&channel->queue, &it->vec[i], from)) return true;
    return false;
}

/* A socket takes all that it has room for in one call.  A pipe gets piece after piece,
 * which is the pump's work. */
static bool fits_attempt(const azc_channel *channel, const message *it) {
    return it->n && it->count <= VEC_INLINE && it->n <= channel->lane->offer;
}

/* Queues what an attempt has left, as the spare operation, since the message would be
 * torn if memory ran out now.  It goes before all others, which were queued while the
 * attempt was in the kernel. */
static int queue_rest(azc_channel *channel, const message *it, ssize_t sent) {
    azc_op *op = channel->spare;
    channel->spare = NULL;
    azc__op_fill(op, it->vec, it->count);
    op->messages = it->messages;
    channel->last_port = channel->bound_port;
    if (azc__note_address(op->note, channel->bound_port, channel->bound_token) < 0) {
        azc__note_free(op->note); /* its port was closed */
        op->note = NULL;
    }
    azc__queue_push_first(&channel->queue, op);
    if (sent > 0) azc__queue_advance(&channel->queue, (uint64_t)sent, false);
    return -EINPROGRESS;
}

static int prepare_spare(azc_channel *channel) {
    if (channel->spare) return 0;
    azc_op *op = azc__op_new(NULL, 0, NULL, 0);
    azc_note *note = op ? azc__note_blank() : NULL;
    if (!note) {
        azc_sys.release(op);
        return -ENOMEM;
    }
    op->note = note;
    channel->spare = op;
    return 0;
}

static int queue_all(azc_channel *channel, const message *it, bool ask_room) {
    azc_op *op = azc__op_new(it->vec, it->count, NULL, 0);
    if (!op) return -ENOMEM;
    op->messages = it->messages;
    op->asks_room = ask_room;
    int r = azc__note_new(channel->bound_port, channel->bound_token, &op->note);
    if (r < 0) {
        azc__op_free(op);
        return r;
    }
    channel->last_port = channel->bound_port;
    r = (int)queue_and_drive(channel, op);
    return r >= 0 ? budget_is_spent(channel, it->n) : r;
}

static int attempt(azc_channel *channel, const message *it) {
    int r = prepare_spare(channel);
    if (r < 0) return r;
    ssize_t sent = azc__attempt(channel, it->vec, it->count);
    if (sent == (ssize_t)it->n) {
        channel->queue.sent += it->n;
        channel->stats.messages += (uint64_t)it->messages;
        channel->stats.immediate++;
        r = budget_is_spent(channel, it->n);
    } else {
        r = queue_rest(channel, it, sent);
    }
    azc__finish_attempt(channel, sent);
    azc__hand_to_pump(channel, DROVE_BLOCKED);
    return r;
}

static int send_within(azc_channel *channel, const message *it, bool ask_room) {
    int r = azc__refusal(channel);
    if (r < 0) return r;
    bool at_once = may_send_now(channel) && fits_attempt(channel, it) &&
                   !would_be_lent(channel, it);
    return at_once ? attempt(channel, it) : queue_all(channel, it, ask_room);
}

/* Unbinds the token unless all is out: an event will carry it, so no other message may. */
static int send_bound(azc_id id, uint64_t token, const message *it, bool ask_room) {
    azc_channel *channel = azc__enter(id);
    if (!channel) return azc__why(id);
    bool is_ready = channel->bound_token == token;
    int r = is_ready ? send_within(channel, it, ask_room) : -ESTALE;
    if (is_ready && r < 0) channel->bound_token = 0;
    azc__leave(channel);
    return r;
}

int azc_send_bound(azc_id id, uint64_t token, const void *data, size_t n, int messages,
                   int ask_room) {
    struct iovec piece = {(void *)(uintptr_t)data, n};
    return send_bound(id, token, &(message){&piece, 1, n, messages}, ask_room);
}

int azc_send_to_all(const azc_seat *seats, int n, const struct iovec *vec, int count,
                    uint64_t since_ns, int *which) {
    message it = {vec, count, 0, 1};
    int found = 0;
    for (int i = 0; i < count; i++) it.n += vec[i].iov_len;
    for (int i = 0; i < n; i++) {
        azc_tally *tally = seats[i].tally;
        int r = -ESTALE;
        if (!tally->away) r = send_bound(seats[i].channel, seats[i].token, &it, false);
        tally->result = r > 0 ? 0 : r;
        if (r < 0) {
            which[found++] = i;
            continue;
        }
        tally->messages++;
        tally->bytes += it.n;
        tally->age_ns = azc_sys.now_ns() - since_ns;
    }
    return found;
}

int azc_set_sizes(azc_id id, uint64_t token, const uint64_t *sizes, int nsizes) {
    azc_channel *channel = azc__enter(id);
    if (!channel) return azc__why(id);
    azc_op *op = azc__queue_find(&channel->queue, token);
    int r = op ? azc__op_set_sizes(op, sizes, nsizes) : 0;
    azc__leave(channel);
    return r;
}

int azc_bind_port(azc_id id, azc_id port, uint64_t token, unsigned budget) {
    azc_channel *channel = azc__enter(id);
    if (!channel) return azc__why(id);
    channel->bound_port = port;
    channel->bound_token = token;
    channel->budget = budget;
    azc__leave(channel);
    return 0;
}

int azc_set_limit(azc_id id, uint64_t bytes) {
    azc_channel *channel = azc__enter(id);
    if (!channel) return azc__why(id);
    channel->queue.limit = bytes;
    azc__admit_waiting(channel);
    azc__leave(channel);
    return 0;
}
