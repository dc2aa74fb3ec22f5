/* passing.c - how a relay's bytes pass from the source to the sink. */
#include "passing.h"

#include <errno.h>

#include "ending.h"
#include "move.h"

enum {
    CHUNK = 1 << 20,       /* bytes asked for in one call */
    PIPE_ROOM = 256 << 10, /* bytes in a pipe between */
    LOOK_MS = 1000,        /* after which to check that the fds' numbers are ours */
    LOOK_EVERY = 1 << 20,  /* bytes after which to check that, too */
    PAUSE_US = 2000,       /* until the next try, if memory is lacking */
    REST_US = 10000,       /* longest pause after a ready fd refused */
    TERMINAL_ROOM = 256,   /* bytes that a terminal takes at least if it is ready */
};

/* ---- waiting ----------------------------------------------------------- */

void azc__pass_wait(azc_passage *pass, struct pollfd *fds, nfds_t count) {
    fds[0] = (struct pollfd){pass->wake[0], POLLIN, 0};
    azc_sys.poll(fds, count, LOOK_MS);
    if (fds[0].revents) azc_sys.clear(pass->wake[0]);
}

/* An error of the source waits until the bytes taken from it are out. */
static bool waits_for_rest(const azc_passage *pass) {
    bool something = pass->rest_bytes || pass->in_between;
    return pass->failed == &pass->source && something;
}

bool azc__pass_must_stop(azc_passage *pass) {
    const azc_side *sides[] = {&pass->source, &pass->sink};
    for (int i = 0; i < 2; i++)
        if (sides[i]->turn && atomic_load(&sides[i]->channel->stop_early) &&
            !(pass->failed == sides[i] && waits_for_rest(pass)))
            return true;
    return false;
}

/* ---- the lanes -------------------------------------------------------- */

static void note_taken(azc_passage *pass, ssize_t n) {
    azc_channel *channel = pass->source.channel;
    if (n > 0) atomic_fetch_add(&pass->taken, (uint64_t)n);
    azc__lock(channel);
    azc__count(channel, n);
    azc__unlock(channel);
}

static void note_sent(azc_passage *pass, ssize_t n) {
    azc_channel *channel = pass->sink.channel;
    azc__lock(channel);
    azc__count(channel, n);
    if (n > 0) {
        uint64_t bytes = (uint64_t)n;
        azc_op *hold = pass->sink.hold;
        hold->sent += bytes;
        hold->total += bytes; /* so that none of it seems to be unsent */
        channel->queue.sent += bytes;
        if (hold->cancelled) azc__let_go(channel, hold);
        atomic_fetch_add(&pass->sent, bytes);
    }
    azc__unlock(channel);
}

static bool is_splicable(const azc_side *side) {
    return S_ISFIFO(side->mode) || S_ISSOCK(side->mode) || S_ISREG(side->mode);
}

static bool is_blocking(const azc_side *side) {
    return S_ISSOCK(side->mode) && !azc_sys.is_nonblocking(side->channel->fd);
}

/* splice waits for a socket that blocks, even with SPLICE_F_NONBLOCK.  Any owner of the
 * socket may change that. */
static bool waits_in_splice(const azc_passage *pass) {
    return is_blocking(&pass->source) || is_blocking(&pass->sink);
}

static int choose_lane(azc_passage *pass) {
    azc_side *from = &pass->source, *to = &pass->sink;
    if (!azc_sys.splice || !is_splicable(from) || !is_splicable(to) ||
        waits_in_splice(pass))
        return AZC_BY_COPY;
    if (S_ISREG(from->mode) && !S_ISFIFO(to->mode)) return AZC_BY_SENDFILE;
    bool loans = S_ISSOCK(from->mode) && azc_sys.takes_loans(from->channel->fd);
    if ((loans || S_ISFIFO(from->mode)) &&
        !azc__party_join(&pass->party, from->device, loans ? ALL_SOCKETS : from->inode,
                         false))
        return AZC_BY_COPY;
    if (S_ISFIFO(from->mode) || S_ISFIFO(to->mode)) return AZC_BY_SPLICE;
    if (azc_sys.pipe(pass->between) < 0) return AZC_BY_COPY;
    azc_sys.enlarge(pass->between[1], PIPE_ROOM);
    return AZC_BY_PIPE;
}

/* How many bytes may still be taken. */
static size_t wanted(const azc_passage *pass, size_t most) {
    uint64_t left = pass->limit - atomic_load(&pass->taken);
    return left < most ? (size_t)left : most;
}

/* How many of n bytes a ready terminal takes without waiting for its reader.  If it
 * translates line ends and tabs, it may have no room for what follows one. */
static size_t fits_terminal(int fd, const char *data, size_t n) {
    size_t fits = 0;
    if (n > TERMINAL_ROOM) n = TERMINAL_ROOM;
    if (!azc_sys.translates(fd)) return n;
    while (fits < n && (data[fits] < '\b' || data[fits] > '\r')) fits++;
    return fits ? fits : 1;
}

/* A cancel has to wait for a call that blocks.  So the fd must be ready, and the call
 * short. */
static ssize_t lane_move(azc_channel *channel, char *data, size_t n) {
    const azc_lane *lane = channel->lane;
    bool out = azc__outward(channel);
    if (lane->bounced) {
        int r = lane->polled ? 1 : sys_ready(channel->fd, out ? POLLOUT : POLLIN);
        if (r <= 0) return r < 0 ? r : -EAGAIN;
        if (n > lane->chunk) n = lane->chunk;
        if (out && lane == &azc__lane_waiting && S_ISCHR(channel->mode))
            n = fits_terminal(channel->fd, data, n);
    }
    struct iovec piece = {data, n};
    ssize_t r = lane->move(channel, &piece, 1);
    channel->stopped_by = 0;
    return r;
}

static ssize_t take_copy(azc_passage *pass) {
    size_t n = wanted(pass, pass->rest_room);
    ssize_t r = lane_move(pass->source.channel, pass->rest, n);
    pass->rest_at = 0;
    pass->rest_bytes = r > 0 ? (size_t)r : 0;
    return r;
}

static ssize_t put_copy(azc_passage *pass) {
    ssize_t r =
        lane_move(pass->sink.channel, pass->rest + pass->rest_at, pass->rest_bytes);
    if (r > 0) {
        pass->rest_at += (size_t)r;
        pass->rest_bytes -= (size_t)r;
    }
    return r;
}

static ssize_t take_piped(azc_passage *pass) {
    ssize_t r = azc_sys.splice(pass->source.channel->fd, pass->between[1],
                               wanted(pass, PIPE_ROOM));
    if (r > 0) pass->in_between += (size_t)r;
    return r;
}

static ssize_t put_piped(azc_passage *pass) {
    ssize_t r =
        azc_sys.splice(pass->between[0], pass->sink.channel->fd, pass->in_between);
    if (r > 0) pass->in_between -= (size_t)r;
    return r;
}

static ssize_t move_directly(azc_passage *pass) {
    int from = pass->source.channel->fd, to = pass->sink.channel->fd;
    size_t n = wanted(pass, CHUNK);
    return atomic_load(&pass->lane) == AZC_BY_SENDFILE ? azc_sys.sendfile(from, to, n)
                                                       : azc_sys.splice(from, to, n);
}

/* ---- what a call has returned ----------------------------------------- */

/* Guesses which side is to blame for the error of a call that used both. */
static azc_side *guilty(azc_passage *pass, int error) {
    bool sinks =
        error == -EPIPE || error == -ENOSPC || error == -EFBIG || error == -EDQUOT;
    bool sources =
        S_ISSOCK(pass->source.mode) || (S_ISREG(pass->source.mode) && error == -EIO);
    return sources && !sinks ? &pass->source : &pass->sink;
}

static void fail(azc_passage *pass, const azc_side *side, int error) {
    pass->failed = side;
    azc__lock(side->channel);
    azc__break(side->channel, error); /* at the end of its turn */
    azc__unlock(side->channel);
}

/* Waits until the source is ready, or the sink's reader has left, which no call would
 * report before bytes come. */
static void await_source(azc_passage *pass) {
    if (pass->once && atomic_load(&pass->sent)) {
        pass->ended = sys_ready(pass->source.channel->fd, POLLIN) <= 0;
        return;
    }
    struct pollfd fds[3] = {[1] = {pass->source.channel->fd, POLLIN, 0},
                            [2] = {pass->sink.channel->fd, 0, 0}};
    azc__pass_wait(pass, fds, 3);
    if (fds[2].revents & (POLLERR | POLLHUP))
        fail(pass, &pass->sink,
             S_ISSOCK(pass->sink.mode) && fds[2].revents & POLLERR ? -ECONNRESET
                                                                   : -EPIPE);
}

/* A call that used both sides (NULL) does not say which was not ready: wait for the
 * source, and if that was ready for the sink. */
static void await_side(azc_passage *pass, azc_side *side) {
    azc_side *const both[] = {&pass->source, &pass->sink};
    unsigned turn = pass->waits++ % 3;
    if (turn == 2) { /* poll calls both ready: pause a little longer each time */
        unsigned us = PAUSE_US / 30 * pass->waits;
        azc_sys.sleep_us(us < REST_US ? us : REST_US);
        return;
    }
    if (!side) side = both[turn];
    azc__lock(side->channel);
    side->channel->stats.waits++;
    azc__unlock(side->channel);
    pass->look_at = 0;
    struct pollfd fds[2] = {[1] = {pass->sink.channel->fd, POLLOUT, 0}};
    if (side == &pass->source)
        await_source(pass);
    else
        azc__pass_wait(pass, fds, 2);
}

static void empty_pipe(azc_passage *pass) {
    while (pass->in_between) {
        struct iovec room = {pass->rest + pass->rest_bytes, pass->in_between};
        ssize_t r = azc_sys.read(pass->between[0], &room, 1, 0);
        if (r == -EINTR) continue;
        if (r <= 0) break;
        pass->rest_bytes += (size_t)r;
        pass->in_between -= (size_t)r;
    }
}

void azc__pass_by_copy(azc_passage *pass) {
    pass->rest_at = 0;
    empty_pipe(pass);
    atomic_store(&pass->lane, AZC_BY_COPY);
}

static bool is_not_spliced(int error) {
    return error == -EINVAL || error == -ENOSYS || error == -ESPIPE ||
           error == -EOPNOTSUPP;
}

/* side is NULL for a call that used both; spliced: the call was a splice or sendfile. */
static void handle_error(azc_passage *pass, azc_side *side, bool spliced, int error) {
    azc_side *blamed = side ? side : guilty(pass, error);
    if (error == -EAGAIN) {
        await_side(pass, side);
    } else if (spliced && is_not_spliced(error)) {
        azc__pass_by_copy(pass);
    } else if (error == -EIO && blamed == &pass->source && S_ISCHR(blamed->mode)) {
        pass->ended = true; /* a pty whose other side is closed */
    } else {
        azc__lock(blamed->channel);
        enum azc_drove drove = azc__handle_error(blamed->channel, error);
        if (blamed->channel->error) pass->failed = blamed;
        azc__unlock(blamed->channel);
        if (drove == DROVE_STARVED) azc_sys.sleep_us(PAUSE_US);
    }
}

/* ---- moving ----------------------------------------------------------- */

/* Makes one call; bytes that lie between go first. */
static void step(azc_passage *pass) {
    int lane = atomic_load(&pass->lane);
    bool put = pass->rest_bytes || pass->in_between;
    bool spliced = lane != AZC_BY_COPY && !pass->rest_bytes;
    azc_side *side = put ? &pass->sink : &pass->source;
    ssize_t r;
    if (spliced && waits_in_splice(pass)) {
        azc__pass_by_copy(pass);
        return;
    }
    if (pass->rest_bytes) {
        r = put_copy(pass);
    } else if (put) {
        r = put_piped(pass);
    } else if (lane == AZC_BY_COPY) {
        r = take_copy(pass);
    } else if (lane == AZC_BY_PIPE) {
        r = take_piped(pass);
    } else {
        r = move_directly(pass);
        side = NULL;
    }
    /* (a call that used both does not say which one was not ready: await_side) */
    ssize_t moved = r == -EAGAIN ? 0 : r;
    if (side != &pass->sink) note_taken(pass, moved);
    if (side != &pass->source) note_sent(pass, moved);
    if (r > 0) pass->waits = 0;
    if (r == 0 && !put) pass->ended = true;
    if (r < 0) handle_error(pass, side, spliced, (int)r);
}

/* Do the numbers still belong to our files? */
static void look(azc_passage *pass) {
    azc_side *sides[] = {&pass->source, &pass->sink};
    uint64_t sent = atomic_load(&pass->sent);
    if (sent < pass->look_at) return;
    pass->look_at = sent + LOOK_EVERY;
    for (int i = 0; i < 2; i++) {
        azc__lock(sides[i]->channel);
        if (azc__was_replaced(sides[i]->channel)) pass->failed = sides[i];
        azc__unlock(sides[i]->channel);
    }
}

bool azc__is_passed(const azc_passage *pass) {
    if (pass->rest_bytes || pass->in_between) return false;
    return pass->ended || atomic_load(&pass->taken) >= pass->limit;
}

/* The leftover of an earlier receive goes out before the bytes in the kernel. */
static void take_leftover(azc_passage *pass) {
    azc_channel *channel = pass->source.channel;
    size_t room = pass->rest_bytes + channel->leftover;
    size_t n = wanted(pass, channel->leftover);
    if (room > pass->rest_room) { /* (give_back may need as much) */
        char *larger = azc_sys.allocate(room);
        if (!larger) {
            fail(pass, &pass->source, -ENOMEM);
            return;
        }
        memcpy(larger, pass->rest, pass->rest_bytes);
        azc_sys.release(pass->rest);
        pass->rest = larger;
        pass->rest_room = room;
    }
    if (!n) return;
    memcpy(pass->rest + pass->rest_bytes, channel->bounce + channel->leftover_at, n);
    pass->rest_bytes += n;
    channel->leftover_at += n;
    channel->leftover -= n;
    atomic_fetch_add(&pass->taken, n);
}

void azc__pass(azc_passage *pass) {
    atomic_store(&pass->lane, choose_lane(pass));
    atomic_fetch_add(&pass->taken, pass->rest_bytes);
    atomic_store(&pass->began, true);
    take_leftover(pass);
    while (!azc__is_passed(pass) && !azc__pass_must_stop(pass)) {
        look(pass);
        if (!azc__pass_must_stop(pass)) step(pass);
    }
}
