/* relay.c - moves bytes from one channel to another, with a thread of its own. */
#include "relay.h"

#include <errno.h>
#include <string.h>

#include "cancel.h"
#include "ending.h"
#include "move.h"
#include "queue.h"
#include "sabotage.h"

enum {
    CHUNK = 1 << 20,       /* bytes asked for in one call */
    REST_ROOM = 256 << 10, /* bytes that may lie between, in memory */
    PIPE_ROOM = 256 << 10, /* ... or in a pipe */
    LOOK_MS = 1000,        /* how often to look whether the numbers are ours */
    LOOK_EVERY = 1 << 20,  /* ... or after so many bytes */
    PAUSE_US = 2000,       /* until the next try without memory, */
};

#define PATIENCE_NS UINT64_C(2000000000) /* for which it tries */

/* One end. */
typedef struct azc_side {
    azc_id id;
    azc_op *hold; /* NULL once it has ended, */
    int lost;     /* by this error; both under the channel's lock */
    bool turn;    /* the relay drives the channel: */
    azc_channel *channel;
    mode_t mode;  /* what kind of file it is, */
    dev_t device; /* and which */
    ino_t inode;
} azc_side;

struct azc_relay {
    azc_id id;
    azc_side source, sink;
    azc_op *spare;     /* for what is delivered after the relay's end */
    uint64_t limit;    /* bytes to be moved at most */
    bool once;         /* it ends when the source is empty */
    int wake[2];       /* a pipe that wakes the thread */
    int between[2];    /* a pipe for bytes on their way, or -1 */
    size_t in_between; /* bytes in it */
    char *rest;        /* memory for bytes on their way: */
    size_t rest_room, rest_at, rest_bytes;
    uint64_t look_at;       /* when this many were moved, see LOOK_EVERY */
    uint64_t starved_since; /* no memory in the kernel; 0: there is */
    bool ended;             /* the source has no more */
    int error;
    const azc_side *failed; /* which of the two has that error */

    atomic_uint_fast64_t taken, moved;
    atomic_int lane;
    atomic_bool began;

    /* under the lock of its number */
    bool over;  /* the thread is through with it */
    bool freed; /* and so is the program */
};

/* ---- waking ----------------------------------------------------------- */

void azc__relay_wake(azc_relay *relay) { azc_sys.signal(relay->wake[1]); }

void azc__relay_lost(azc_relay *relay, bool outward, int status) {
    azc_side *side = outward ? &relay->sink : &relay->source;
    side->hold = NULL;
    side->lost = status;
    azc__relay_wake(relay);
}

/* Until it is woken, one of the fds is ready, or a second is over. */
static void wait(azc_relay *relay, struct pollfd *fds, nfds_t count) {
    fds[0] = (struct pollfd){relay->wake[0], POLLIN, 0};
    azc_sys.poll(fds, count, LOOK_MS);
    if (fds[0].revents) azc_sys.clear(relay->wake[0]);
}

/* ---- the turn --------------------------------------------------------- */

/* False: the hold has ended. */
static bool try_turn(azc_side *side) {
    azc_channel *channel = azc__find(side->id);
    if (!channel) return false;
    azc_op *hold = side->hold;
    bool ours = hold && channel->queue.head == hold && !channel->driving &&
                channel->state == OPEN && !channel->error;
    if (ours) {
        channel->driving = channel->in_call = true;
        channel->in_caller = false;
        channel->stop_early = hold->cancelled;
        channel->stopped_by = 0;
        channel->extra_calls = 0;
        hold->in_flight = 1; /* so that a cancel asks us */
        side->channel = channel;
        side->turn = true;
    }
    azc__leave(channel);
    return hold != NULL;
}

/* Whether a hold has ended, whose turn may not even have come. */
static bool is_lost(azc_side *side) {
    if (side->turn) return false;
    azc_channel *channel = azc__find(side->id);
    bool lost = !channel || !side->hold;
    if (channel) azc__leave(channel);
    return lost;
}

static bool must_stop(azc_relay *relay) {
    const azc_side *sides[] = {&relay->source, &relay->sink};
    for (int i = 0; i < 2; i++)
        if (sides[i]->turn && atomic_load(&sides[i]->channel->stop_early))
            return true;
    return false;
}

/* Returns with both turns, or as soon as that cannot be any more. */
static void await_turns(azc_relay *relay) {
    while (!must_stop(relay)) {
        bool alive = relay->sink.turn || try_turn(&relay->sink);
        if (alive && relay->sink.turn && try_turn(&relay->source) &&
            relay->source.turn)
            return;
        if (is_lost(&relay->sink) || is_lost(&relay->source)) return;
        struct pollfd woken;
        wait(relay, &woken, 1);
    }
}

/* ---- the ways --------------------------------------------------------- */

static void note_taken(azc_relay *relay, ssize_t n) {
    azc_channel *channel = relay->source.channel;
    uint64_t bytes = n > 0 ? (uint64_t)n : 0;
    atomic_fetch_add(&relay->taken, bytes);
    azc__lock(channel);
    channel->stats.calls++;
    channel->stats.bytes += bytes;
    azc__unlock(channel);
}

static void note_moved(azc_relay *relay, ssize_t n) {
    azc_channel *channel = relay->sink.channel;
    azc__lock(channel);
    channel->stats.calls += 1 + channel->extra_calls;
    channel->extra_calls = 0;
    if (n > 0) {
        uint64_t bytes = (uint64_t)n;
        azc_op *hold = relay->sink.hold;
        hold->done += bytes;
        hold->total += bytes; /* so that none of it seems to be unsent */
        channel->queue.accepted += bytes;
        channel->stats.bytes += bytes;
        atomic_fetch_add(&relay->moved, bytes);
    }
    azc__unlock(channel);
}

static bool is_splicable(const azc_side *side) {
    return S_ISFIFO(side->mode) || S_ISSOCK(side->mode) || S_ISREG(side->mode);
}

/* A socket that blocks would do so in splice, too. */
static bool waits_in_splice(const azc_side *side) {
    return S_ISSOCK(side->mode) && !azc_sys.is_nonblocking(side->channel->fd);
}

bool azc__carries_loans(dev_t device, ino_t inode) {
    bool lends = false;
    for (uint32_t i = 0; i < azc__channels.used && !lends; i++) {
        azc_channel *it = azc__handle_lock_at(&azc__channels, i);
        if (!it) continue;
        lends = azc__outward(it) && it->flags & AZC_READS &&
                it->device == device && it->inode == inode;
        azc__leave(it);
    }
    return lends;
}

static int choose_lane(azc_relay *relay) {
    azc_side *from = &relay->source, *to = &relay->sink;
    if (!is_splicable(from) || !is_splicable(to) || waits_in_splice(from) ||
        waits_in_splice(to))
        return AZC_BY_COPY;
    if (S_ISREG(from->mode) && !S_ISFIFO(to->mode)) return AZC_BY_SENDFILE;
    if (S_ISFIFO(from->mode) &&
        azc__carries_loans(from->channel->device, from->channel->inode))
        return AZC_BY_COPY;
    if (S_ISFIFO(from->mode) || S_ISFIFO(to->mode)) return AZC_BY_SPLICE;
    if (azc_sys.pipe(relay->between) < 0) {
        relay->between[0] = relay->between[1] = -1;
        return AZC_BY_COPY;
    }
    azc_sys.enlarge(relay->between[1], PIPE_ROOM);
    return AZC_BY_PIPE;
}

/* How many bytes may still be taken. */
static size_t wanted(const azc_relay *relay, size_t most) {
    uint64_t left = relay->limit - atomic_load(&relay->taken);
    return left < most ? (size_t)left : most;
}

static ssize_t lane_move(azc_channel *channel, char *data, size_t n) {
    struct iovec piece = {data, n};
    ssize_t r = channel->lane->move(channel, &piece, 1);
    channel->stopped_by = 0;
    return r;
}

/* Into memory. */
static ssize_t take_copy(azc_relay *relay) {
    size_t n = wanted(relay, relay->rest_room);
    ssize_t r = lane_move(relay->source.channel, relay->rest, n);
    relay->rest_at = 0;
    relay->rest_bytes = r > 0 ? (size_t)r : 0;
    return r;
}

static ssize_t put_copy(azc_relay *relay) {
    ssize_t r = lane_move(relay->sink.channel, relay->rest + relay->rest_at,
                          relay->rest_bytes);
    if (r > 0) {
        relay->rest_at += (size_t)r;
        relay->rest_bytes -= (size_t)r;
    }
    return r;
}

/* Into the pipe between. */
static ssize_t take_piped(azc_relay *relay) {
    ssize_t r = azc_sys.splice(relay->source.channel->fd, relay->between[1],
                               wanted(relay, PIPE_ROOM));
    if (r > 0) relay->in_between += (size_t)r;
    return r;
}

static ssize_t put_piped(azc_relay *relay) {
    ssize_t r = azc_sys.splice(relay->between[0], relay->sink.channel->fd,
                               relay->in_between);
    if (r > 0) relay->in_between -= (size_t)r;
    return r;
}

/* From the one to the other in one call. */
static ssize_t move_directly(azc_relay *relay) {
    int from = relay->source.channel->fd, to = relay->sink.channel->fd;
    size_t n = wanted(relay, CHUNK);
    return atomic_load(&relay->lane) == AZC_BY_SENDFILE
               ? azc_sys.sendfile(from, to, n)
               : azc_sys.splice(from, to, n);
}

/* ---- what a call has returned ----------------------------------------- */

/* Which side made a call fail that used both. */
static azc_side *guilty(azc_relay *relay, int error) {
    bool sinks = error == -EPIPE || error == -ENOSPC || error == -EFBIG ||
                 error == -EDQUOT;
    bool sources = S_ISSOCK(relay->source.mode) ||
                   (S_ISREG(relay->source.mode) && error == -EIO);
    return sources && !sinks ? &relay->source : &relay->sink;
}

static bool is_ready(const azc_side *side, short events) {
    struct pollfd it = {side->channel->fd, events, 0};
    return azc_sys.poll(&it, 1, 0) > 0;
}

static void fail(azc_relay *relay, const azc_side *side, int error) {
    relay->error = error;
    relay->failed = side;
}

/* ... or until the sink's reader has left: no call would tell before bytes come. */
static void await_source(azc_relay *relay) {
    if (relay->once && atomic_load(&relay->moved)) {
        relay->ended = true;
        return;
    }
    struct pollfd fds[3] = {[1] = {relay->source.channel->fd, POLLIN, 0},
                            [2] = {relay->sink.channel->fd, 0, 0}};
    wait(relay, fds, 3);
    if (fds[2].revents & (POLLERR | POLLHUP))
        fail(relay, &relay->sink,
             S_ISSOCK(relay->sink.mode) && fds[2].revents & POLLERR
                 ? -ECONNRESET
                 : -EPIPE);
}

static void await_sink(azc_relay *relay) {
    struct pollfd fds[2] = {[1] = {relay->sink.channel->fd, POLLOUT, 0}};
    wait(relay, fds, 2);
}

/* Of a call that used both (NULL), it waits for the side that is not ready. */
static void await_side(azc_relay *relay, azc_side *side) {
    if (!side && !is_ready(&relay->sink, POLLOUT)) side = &relay->sink;
    if (!side && is_ready(&relay->source, POLLIN)) {
        azc_sys.sleep_us(PAUSE_US / 10); /* both are, and yet it cannot */
        return;
    }
    if (!side) side = &relay->source;
    azc__lock(side->channel);
    side->channel->stats.waits++;
    azc__unlock(side->channel);
    relay->look_at = 0;
    if (side == &relay->source)
        await_source(relay);
    else
        await_sink(relay);
}

static bool keep_trying(azc_relay *relay) {
    uint64_t now = azc_sys.now_ns();
    if (!relay->starved_since) relay->starved_since = now;
    if (now - relay->starved_since >= PATIENCE_NS) return false;
    azc_sys.sleep_us(PAUSE_US);
    return true;
}

/* Brings what is in the pipe between into memory. */
static void empty_pipe(azc_relay *relay) {
    while (relay->in_between) {
        struct iovec room = {relay->rest + relay->rest_bytes,
                             relay->in_between};
        ssize_t r = azc_sys.read_file(relay->between[0], &room, 1);
        if (r == -EINTR) continue;
        if (r <= 0) break;
        relay->rest_bytes += (size_t)r;
        relay->in_between -= (size_t)r;
    }
}

/* The kernel does not splice between these two. */
static void copy_instead(azc_relay *relay) {
    relay->rest_at = 0;
    empty_pipe(relay);
    atomic_store(&relay->lane, AZC_BY_COPY);
}

static int change_lane(azc_side *side) {
    azc__lock(side->channel);
    int r = azc__change_lane(side->channel);
    azc__unlock(side->channel);
    return r;
}

/* side is NULL for a call that used both, and spliced says whether a splice failed. */
static void handle_error(azc_relay *relay, azc_side *side, bool spliced,
                         int error) {
    azc_side *blamed = side ? side : guilty(relay, error);
    switch (-error) {
    case EINTR:
        return;
    case EAGAIN:
        await_side(relay, side);
        return;
    case ENOMEM:
    case ENOBUFS:
        if (keep_trying(relay)) return;
        break;
    case EINVAL:
    case ENOSYS:
    case ESPIPE:
    case EOPNOTSUPP:
        if (spliced) {
            copy_instead(relay);
            return;
        }
        if (error == -EOPNOTSUPP && change_lane(blamed) == 0) return;
        break;
    case EIO: /* a pty whose other side is closed: the end of the stream */
        if (blamed == &relay->source && S_ISCHR(blamed->mode)) {
            relay->ended = true;
            return;
        }
        break;
    }
    fail(relay, blamed, error);
}

/* ---- moving ----------------------------------------------------------- */

/* One call.  What lies between goes first. */
static void step(azc_relay *relay) {
    int lane = atomic_load(&relay->lane);
    bool put = relay->rest_bytes || relay->in_between;
    bool spliced = lane != AZC_BY_COPY && !relay->rest_bytes;
    azc_side *side = put ? &relay->sink : &relay->source;
    ssize_t r;
    if (relay->rest_bytes) {
        r = put_copy(relay);
    } else if (put) {
        r = put_piped(relay);
    } else if (lane == AZC_BY_COPY) {
        r = take_copy(relay);
    } else if (lane == AZC_BY_PIPE) {
        r = take_piped(relay);
    } else {
        r = move_directly(relay);
        side = NULL;
    }
    if (side != &relay->sink) note_taken(relay, r);
    if (side != &relay->source) note_moved(relay, r);
    if (r > 0) relay->starved_since = 0;
    if (r == 0 && !put) relay->ended = true;
    if (r < 0) handle_error(relay, side, spliced, (int)r);
}

/* Do the numbers still belong to our files? */
static void look(azc_relay *relay) {
    azc_side *sides[] = {&relay->source, &relay->sink};
    uint64_t moved = atomic_load(&relay->moved);
    if (moved < relay->look_at) return;
    relay->look_at = moved + LOOK_EVERY;
    for (int i = 0; i < 2; i++) {
        azc_channel *channel = sides[i]->channel;
        azc__lock(channel);
        if (azc__was_replaced(channel)) fail(relay, sides[i], -EBADF);
        azc__unlock(channel);
    }
}

static bool is_done(const azc_relay *relay) {
    if (relay->rest_bytes || relay->in_between) return false;
    return relay->ended || atomic_load(&relay->taken) >= relay->limit;
}

/* The error of a source waits until what was taken from it is out. */
static bool has_failed(const azc_relay *relay) {
    bool something = relay->rest_bytes || relay->in_between;
    return relay->error && !(relay->failed == &relay->source && something);
}

/* What an earlier receive has left over goes out before what is in the kernel. */
static void take_leftover(azc_relay *relay) {
    azc_channel *channel = relay->source.channel;
    size_t room = relay->rest_bytes + channel->leftover;
    size_t n = wanted(relay, channel->leftover);
    if (room > relay->rest_room) { /* (give_back may need so much) */
        char *larger = azc_sys.allocate(room);
        if (!larger) {
            fail(relay, &relay->source, -ENOMEM);
            return;
        }
        memcpy(larger, relay->rest, relay->rest_bytes);
        azc_sys.release(relay->rest);
        relay->rest = larger;
        relay->rest_room = room;
    }
    if (!n) return;
    memcpy(relay->rest + relay->rest_bytes,
           channel->bounce + channel->leftover_at, n);
    relay->rest_bytes += n;
    channel->leftover_at += n;
    channel->leftover -= n;
    atomic_fetch_add(&relay->taken, n);
}

static void move(azc_relay *relay) {
    atomic_store(&relay->lane, choose_lane(relay));
    atomic_fetch_add(&relay->taken, relay->rest_bytes);
    atomic_store(&relay->began, true);
    take_leftover(relay);
    while (!is_done(relay) && !has_failed(relay) && !must_stop(relay)) {
        look(relay);
        if (!has_failed(relay)) step(relay);
    }
}

/* ---- the end ---------------------------------------------------------- */

/* Does the sink go on?  Then it gets what lies between. */
static bool goes_on(const azc_relay *relay) {
    azc_channel *channel = relay->sink.channel;
    if (!relay->sink.turn || relay->failed == &relay->sink) return false;
    azc__lock(channel);
    bool open = channel->state == OPEN && !channel->error;
    azc__unlock(channel);
    return open;
}

/* The source's next receive gets what lies between. */
static void give_back(azc_relay *relay, azc_channel *channel) {
    if (!relay->rest_bytes) return;
    memmove(relay->rest, relay->rest + relay->rest_at, relay->rest_bytes);
    if (channel->leftover)
        memcpy(relay->rest + relay->rest_bytes,
               channel->bounce + channel->leftover_at, channel->leftover);
    azc_sys.release(channel->bounce);
    channel->bounce = relay->rest;
    channel->leftover_at = 0;
    channel->leftover += relay->rest_bytes;
    atomic_fetch_sub(&relay->taken, relay->rest_bytes);
    relay->rest = NULL;
    relay->rest_bytes = 0;
}

static void end_turn(const azc_side *side, azc_channel *channel) {
    if (side->turn)
        azc__end_turn(channel);
    else
        azc__hand_to_pump(channel, DROVE_BUDGET);
}

static void end_source(azc_relay *relay, bool delivers) {
    azc_side *side = &relay->source;
    azc_channel *channel = azc__find(side->id);
    if (!channel) return;
    if (side->turn && !delivers) give_back(relay, channel);
    if (side->turn) channel->in_call = false;
    if (!relay->error && side->turn && channel->error)
        fail(relay, side, channel->error); /* another thread has met it */
    if (side->hold) {
        side->hold->in_flight = 0;
        azc__end_one(channel, side->hold, 0, AZC_DROPPED);
    }
    if (relay->failed == side) azc__break(channel, relay->error);
    end_turn(side, channel);
    azc__leave(channel);
}

/* Puts what lies between in front of all others. */
static void deliver(azc_relay *relay, azc_channel *channel) {
    struct iovec rest = {relay->rest + relay->rest_at, relay->rest_bytes};
    azc_op *op = relay->spare;
    azc__op_fill(op, &rest, 1);
    op->messages = 0;
    op->rescue = relay->rest;
    relay->spare = NULL;
    relay->rest = NULL;
    channel->stats.rescued += rest.iov_len;
    azc__queue_push_first(&channel->queue, op);
}

/* What the sink's event tells. */
static int outcome_of(const azc_relay *relay, const azc_op *hold, bool delivers,
                      int *status) {
    const azc_side *source = &relay->source;
    *status = relay->error;
    if (relay->error) return AZC_REFUSED;
    if (hold->cancelled) {
        *status = -ECANCELED;
        return delivers && relay->rest_bytes ? AZC_RESCUED : AZC_DROPPED;
    }
    if (is_done(relay)) return AZC_DROPPED;
    *status = source->lost ? source->lost : -ESHUTDOWN;
    return AZC_REFUSED;
}

/* (one that is closing ends its operations itself) */
static void end_sink(azc_relay *relay, bool delivers) {
    azc_side *side = &relay->sink;
    azc_channel *channel = azc__find(side->id);
    if (!channel) return;
    if (side->turn) channel->in_call = false;
    if (side->hold) side->hold->in_flight = 0;
    if (relay->failed == side) azc__break(channel, relay->error);
    if (channel->error) azc__break(channel, channel->error);
    if (side->hold && channel->state != CLOSING) {
        int status, outcome = outcome_of(relay, side->hold, delivers, &status);
        side->hold->need = side->hold->done;
        azc__end_one(channel, side->hold, status, outcome);
        if (delivers && relay->rest_bytes) deliver(relay, channel);
    }
    end_turn(side, channel);
    azc__leave(channel);
}

static void close_both(int fds[2]) {
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0) azc_sys.close(fds[i]);
    fds[0] = fds[1] = -1;
}

static void release(azc_relay *relay) {
    close_both(relay->wake);
    close_both(relay->between);
    azc_sys.release(relay->rest);
    azc_sys.release(relay->spare);
    azc_sys.release(relay);
}

/* With the lock of its number, which is released. */
static void leave(azc_relay *relay) {
    azc_id id = relay->id;
    if (relay->over && relay->freed) {
        azc__handle_drop(&azc__relays, id);
        release(relay);
    } else {
        azc__handle_unlock(&azc__relays, id);
    }
}

static void *run(void *arg) {
    azc_relay *relay = arg;
    await_turns(relay);
    if (relay->sink.turn && relay->source.turn) move(relay);
    if (relay->in_between) copy_instead(relay);
    if (SABOTAGED(BETWEEN)) relay->rest_bytes = 0;
    bool delivers = goes_on(relay);
    end_source(relay, delivers);
    end_sink(relay, delivers);
    azc__handle_lock(&azc__relays, relay->id);
    close_both(relay->wake);
    close_both(relay->between);
    relay->over = true;
    leave(relay);
    return NULL;
}

/* ---- what is called for ----------------------------------------------- */

static azc_relay *relay_new(size_t first) {
    azc_relay *relay = azc_sys.allocate(sizeof *relay);
    if (!relay) return NULL;
    memset(relay, 0, sizeof *relay);
    relay->wake[0] = relay->wake[1] = -1;
    relay->between[0] = relay->between[1] = -1;
    relay->rest_room = first > REST_ROOM ? first : REST_ROOM;
    relay->rest = azc_sys.allocate(relay->rest_room);
    relay->spare = azc__op_new(NULL, 0, NULL, 0);
    relay->source.hold = azc__op_new(NULL, 0, NULL, 0);
    relay->sink.hold = azc__op_new(NULL, 0, NULL, 0);
    if (!relay->rest || !relay->spare || !relay->source.hold ||
        !relay->sink.hold) {
        azc_sys.release(relay->source.hold);
        azc_sys.release(relay->sink.hold);
        release(relay);
        return NULL;
    }
    return relay;
}

/* The same pipe or file on both sides: it would never end. */
static bool is_onto_itself(const azc_relay *relay, const struct stat *st) {
    const azc_side *sink = &relay->sink;
    return sink->id && (S_ISFIFO(st->st_mode) || S_ISREG(st->st_mode)) &&
           st->st_dev == sink->device && st->st_ino == sink->inode;
}

/* Puts the hold into its queue; 0 or -errno. */
static int queue_hold(azc_relay *relay, azc_side *side, azc_id id,
                      int direction) {
    azc_channel *channel = azc__enter(id);
    if (!channel) return azc__why(id);
    int r = azc__refusal(channel);
    struct stat st;
    if (r == 0 && !(channel->flags & direction)) r = -EINVAL;
    if (r == 0) r = azc_sys.fstat(channel->fd, &st);
    if (r == 0 && is_onto_itself(relay, &st)) r = -EINVAL;
    if (r == 0) {
        side->device = st.st_dev;
        side->inode = st.st_ino;
        side->id = id;
        side->mode = st.st_mode;
        side->hold->relay = relay;
        side->hold->need = UINT64_MAX;
        side->hold->submitting = direction == AZC_OUT;
        azc__queue_push(&channel->queue, side->hold);
    }
    azc__leave(channel);
    return r;
}

/* The source's hold goes again: there is no thread. */
static void drop_hold(azc_side *side) {
    azc_channel *channel = azc__find(side->id);
    if (!channel) return;
    if (side->hold) azc__end_one(channel, side->hold, 0, AZC_DROPPED);
    azc__hand_to_pump(channel, DROVE_BUDGET);
    azc__leave(channel);
}

/* From here on an event tells the end of the sink's hold; or none does, if the call
 * fails (r).  It may have ended before, or been cancelled. */
static void end_submission(azc_relay *relay, azc_op *hold, int r) {
    azc_channel *channel = azc__find(relay->sink.id);
    hold->submitting = false;
    if (r < 0) {
        azc__note_free(hold->note);
        hold->note = NULL;
    }
    if (hold->ended) {
        azc__note_post(hold->note, hold->done, hold->status, hold->outcome);
        azc__op_free(hold);
    } else if (r < 0) {
        azc__end_one(channel, hold, r, AZC_DROPPED);
        azc__hand_to_pump(channel, DROVE_BUDGET);
    } else if (!hold->in_flight) {
        azc__apply_cancel_of(channel, hold);
    }
    if (channel) azc__leave(channel);
}

static int begin(azc_relay *relay, azc_id source, azc_id sink, int *failed) {
    pthread_t thread;
    azc_op *hold = relay->sink.hold;
    *failed = AZC_OUT;
    int r = queue_hold(relay, &relay->sink, sink, AZC_OUT);
    if (r < 0) {
        azc__note_free(hold->note);
        azc_sys.release(hold);
        azc_sys.release(relay->source.hold);
        return r;
    }
    *failed = AZC_IN;
    r = queue_hold(relay, &relay->source, source, AZC_IN);
    if (r < 0) {
        azc_sys.release(relay->source.hold);
    } else {
        *failed = 0;
        r = azc_sys.thread_start(&thread, run, relay);
        if (r == 0) azc_sys.thread_detach(thread);
        if (r < 0) drop_hold(&relay->source);
    }
    end_submission(relay, hold, r);
    return r;
}

int azc_relay_open(const azc_relay_request *wanted, azc_id *out, int *failed) {
    *failed = 0;
    azc_relay *relay = relay_new(wanted->nfirst);
    if (!relay) return -ENOMEM;
    relay->limit = wanted->nbytes;
    relay->once = wanted->once;
    if (wanted->nfirst) memcpy(relay->rest, wanted->first, wanted->nfirst);
    relay->rest_bytes = wanted->nfirst;
    atomic_init(&relay->taken, 0);
    atomic_init(&relay->moved, 0);
    atomic_init(&relay->lane, AZC_BY_COPY);
    atomic_init(&relay->began, false);
    int r = azc_sys.pipe(relay->wake);
    if (r < 0) relay->wake[0] = relay->wake[1] = -1;
    if (r == 0)
        r = azc__note_new(wanted->port, wanted->token, &relay->sink.hold->note);
    if (r == 0) relay->id = azc__handle_new(&azc__relays, relay);
    if (r == 0 && !relay->id) r = -ENOMEM;
    if (r < 0) {
        azc__note_free(relay->sink.hold->note);
        azc_sys.release(relay->sink.hold);
        azc_sys.release(relay->source.hold);
        release(relay);
        return r;
    }
    *out = relay->id;
    r = begin(relay, wanted->source, wanted->sink, failed);
    if (r == 0) return -EINPROGRESS;
    *out = 0;
    azc__handle_lock(&azc__relays, relay->id);
    relay->over = relay->freed = true;
    leave(relay);
    return r;
}

int azc_relay_ask(azc_id id, azc_relay_state *state) {
    azc_relay *relay = azc__handle_lock(&azc__relays, id);
    if (!relay) return azc__handle_why(&azc__relays, id);
    *state = (azc_relay_state){
        .taken = atomic_load(&relay->taken),
        .moved = atomic_load(&relay->moved),
        .lane = atomic_load(&relay->lane),
        .began = atomic_load(&relay->began),
    };
    azc__handle_unlock(&azc__relays, id);
    return 0;
}

int azc_relay_free(azc_id id) {
    azc_relay *relay = azc__handle_lock(&azc__relays, id);
    if (!relay) return azc__handle_why(&azc__relays, id);
    relay->freed = true;
    leave(relay);
    return 0;
}

void azc__relay_fork_child(void *object) {
    azc_relay *relay = object;
    close_both(relay->wake);
    close_both(relay->between);
}
