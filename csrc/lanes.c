/* lanes.c - the lanes, in and out, and which fd gets which of them.
 *
 *   socket     sendmsg, recvmsg          many bytes a call; one pump in, one out
 *   unix       sendmsg, vmsplice+splice  to a peer that reads, so pages may be lent
 *   pipe       write, pwritev2, preadv2  in pieces that stay in the caches
 *   untrusted  pwritev2, preadv2         FIFOs (AZC_UNTRUSTED); on a copy
 *   waiting    poll, then writev, readv  FIFOs without RWF_NOWAIT, and ttys; on a
 *                                        copy, since the calls may still block
 *   file       writev, readv             regular files, which are always ready
 *   device     writev, readv             other character devices; on a copy
 *
 * All of these copy: the bytes are the caller's again when the call returns.
 * A pool's pages may be lent to the reader of a pipe or UNIX socket instead: lender.c.
 */
#include "lane.h"

#include <errno.h>

#include "channel.h"

enum {
    /* Bytes of one move.  A pipe's is long, and made of many pieces without other
     * work between them: if we pause for a microsecond, a fast reader sleeps. */
    PIPE_CHUNK = 16 << 20,
    /* A pipe keeps two free pages for its next writes.  If pieces have two pages and the
     * reader keeps up, every byte goes through these two, which stay in the caches:
     * 5.6 GB/s for half of the CPU time, where whole frames reach 3 GB/s. */
    PIECE = 8 << 10,
    /* A pipe that is ready takes a page without blocking. */
    WAITING_CHUNK = 4 << 10,
    /* A cancel may have to wait for a call on a file, so these calls are short. */
    FILE_CHUNK = 1 << 20,
    SOCKET_CHUNK = 1 << 20,
    READ_CHUNK = 256 << 10,
    /* A receive that has begun asks again: once for each 8 KiB that it got, or for each
     * 32 KiB if the last receives asked in vain.  These calls cost a twentieth of the
     * copy. */
    ASKS_PER = 8 << 10,
    VAIN_ASKS_PER = 32 << 10,
    /* Bytes that a submitting thread may move itself. */
    DIRECT = 256 << 10,
    PIPE_DIRECT = 64 << 10,
    /* The longest message that it offers in one call, before anything is queued.  If the
     * reader keeps up, a socket takes far more than it holds: 2 MB over TCP went out 1.4
     * times as fast as through the pump. */
    SOCKET_OFFER = 4 << 20,
};

#ifdef AZC_LEND_MIN /* the simulation lends shorter pieces, and so more often */
enum { PIPE_LENDS = AZC_LEND_MIN, SOCKET_LENDS = AZC_LEND_MIN };
#else
/* Shorter pieces are cheaper to copy. */
enum { PIPE_LENDS = 64 << 10, SOCKET_LENDS = 128 << 10 };
#endif

static size_t sum_of(const struct iovec *vec, int count) {
    size_t sum = 0;
    while (count--) sum += vec++->iov_len;
    return sum;
}

static bool must_stop(azc_channel *channel) {
    return atomic_load_explicit(&channel->stop_early, memory_order_relaxed);
}

/* The sender of a long message copies its next piece while we copy this one.  So a socket
 * that is empty in between has more a few microseconds later, sooner than a loop could
 * sleep and wake: ask again, as often as the bytes received justify.  (A receive of open
 * files wants only one byte, and never asks again.) */
static ssize_t receive_on(azc_channel *channel, const struct iovec *piece,
                          size_t come) {
    if (come >= channel->wanted || channel->alone) return (ssize_t)come;
    const size_t begun = come;
    size_t most = come / (channel->vain < IN_VAIN ? ASKS_PER : VAIN_ASKS_PER);
    ssize_t r = -EAGAIN;
    while (most && come < channel->wanted && come < piece->iov_len &&
           !must_stop(channel)) {
        struct iovec rest = {(char *)piece->iov_base + come, piece->iov_len - come};
        r = azc_sys.recv(channel->fd, &rest, 1, NULL);
        channel->extra_calls++;
        most--;
        if (r <= 0 && r != -EAGAIN) break;
        if (r > 0) come += (size_t)r, most += (size_t)r / ASKS_PER;
    }
    if (come > begun)
        channel->vain = 0;
    else if (channel->vain < IN_VAIN)
        channel->vain++;
    if (r > 0) r = come == piece->iov_len ? 0 : -EAGAIN;
    channel->stopped_by = r == -EFAULT ? 0 : (int)r; /* the next call gets it again */
    return (ssize_t)come;
}

/* A short count means that the socket is full or empty now.  Another call would
 * move a few bytes only; after a wait it moves many. */
static ssize_t move_socket(azc_channel *channel, struct iovec *vec, int count) {
    const int fd = channel->fd;
    azc_fds *fds = channel->fds;
    ssize_t r = azc__outward(channel) ? azc_sys.send(fd, vec, count, fds)
                                      : azc_sys.recv(fd, vec, count, fds);
    if (r <= 0 || (size_t)r == sum_of(vec, count)) return r;
    channel->stopped_by = -EAGAIN;
    return azc__outward(channel) ? r : receive_on(channel, vec, (size_t)r);
}

/* Our pipes are non-blocking, but the owner of a duplicate can change that.  So the
 * program's threads use RWF_NOWAIT, and the pump sets O_NONBLOCK before each move.
 * Older kernels do not know RWF_NOWAIT, nor does a pipe to which pages were lent. */
static int how_to_move(const azc_channel *channel) {
    if (!(channel->flags & AZC_OWN)) return SYS_NOWAIT;
    bool knows = !channel->no_nowait && !(channel->flags & AZC_READS);
    if (channel->in_caller && knows) return SYS_NOWAIT;
    azc_sys.set_nonblock(channel->fd);
    return 0;
}

/* How many whole parts of vec fit into a piece of *n bytes.  If some do, *n becomes
 * their sum. */
static int parts_of_piece(const struct iovec *vec, int count, size_t *n) {
    size_t sum = 0;
    int parts = 0;
    while (parts < count && vec[parts].iov_len <= *n - sum) sum += vec[parts++].iov_len;
    if (parts) *n = sum;
    return parts;
}

static bool has_long_part(const struct iovec *vec, int count) {
    while (count-- && vec->iov_len <= PIECE) vec++;
    return count >= 0;
}

/* Writes piece after piece, with as little as possible between two calls.  Returns
 * 0 or -errno, and sets *sent to the bytes written. */
static ssize_t write_long_part(azc_channel *channel, int how, const char *data,
                               size_t n, size_t *sent) {
    const int fd = channel->fd;
    unsigned calls = 0;
    ssize_t r = 0;
    do {
        size_t most = n - *sent < PIECE ? n - *sent : PIECE;
        struct iovec vec = {(void *)(uintptr_t)(data + *sent), most};
        r = how ? azc_sys.write_pipe(fd, &vec, 1, how)
                : azc_sys.write_piece(fd, vec.iov_base, most);
        calls++;
        *sent += r > 0 ? (size_t)r : 0;
    } while (r >= 0 && *sent < n && !must_stop(channel));
    channel->extra_calls += calls - 1;
    return r < 0 ? r : 0;
}

/* Many short parts make one piece, a long part many.  Writing ends early if the pipe is
 * full, and at stop_early. */
static ssize_t write_pieces(azc_channel *channel, struct iovec *vec, int count) {
    const int how = how_to_move(channel);
    const bool blocks_sigpipe = channel->in_caller && has_long_part(vec, count);
    size_t sent = 0;
    ssize_t r = 0;
    sys_sigpipe sigpipe;
    if (blocks_sigpipe) azc_sys.block_sigpipe(&sigpipe);
    for (bool again = false; count; again = true) {
        size_t now = 0, n = PIECE;
        int parts = parts_of_piece(vec, count, &n);
        if (!parts) {
            parts = 1;
            n = vec->iov_len;
            r = write_long_part(channel, how, vec->iov_base, n, &now);
        } else {
            r = azc_sys.write_pipe(channel->fd, vec, parts, how);
            now = r > 0 ? (size_t)r : 0;
        }
        channel->extra_calls += again;
        sent += now;
        if (r < 0 || now < n || must_stop(channel)) break;
        vec += parts;
        count -= parts;
    }
    if (blocks_sigpipe) azc_sys.restore_sigpipe(&sigpipe, r);
    channel->stopped_by = sent && r < 0 ? (int)r : 0;
    return sent ? (ssize_t)sent : r;
}

static ssize_t read_pipe(azc_channel *channel, struct iovec *vec, int count) {
    return azc_sys.read(channel->fd, vec, count, how_to_move(channel));
}

static ssize_t move_bounced(azc_channel *channel, struct iovec *vec, int count) {
    if (!azc__outward(channel)) return read_pipe(channel, vec, count);
    return azc_sys.write_pipe(channel->fd, vec, count, how_to_move(channel));
}

static ssize_t move_file(azc_channel *channel, struct iovec *vec, int count) {
    return azc__outward(channel) ? azc_sys.write_file(channel->fd, vec, count)
                                 : azc_sys.read(channel->fd, vec, count, 0);
}

/* The pieces add up to a chunk at most.  They are copied under the lock: without it the
 * operation may be cancelled meanwhile, and the caller may change its memory. */
ssize_t azc__lane_fill(azc_channel *channel, const struct iovec *vec, int count) {
    size_t n = 0;
    for (int i = 0; i < count; i++) {
        ssize_t r = azc_sys.copy(channel->bounce + n, vec[i].iov_base, vec[i].iov_len);
        if (r < 0) return r;
        n += vec[i].iov_len;
    }
    return (ssize_t)n;
}

static ssize_t move_waiting(azc_channel *channel, struct iovec *vec, int count) {
    int r = sys_ready(channel->fd, azc__outward(channel) ? POLLOUT : POLLIN);
    if (r <= 0) return r < 0 ? r : -EAGAIN;
    return move_file(channel, vec, count);
}

static const azc_lane socket_lane = {.move = move_socket,
                                     .chunk = SOCKET_CHUNK,
                                     .direct = SOCKET_CHUNK,
                                     .offer = SOCKET_OFFER,
                                     .polled = true,
                                     .shared = true};
static const azc_lane unix_out = {.move = move_socket,
                                  .chunk = SOCKET_CHUNK,
                                  .direct = SOCKET_CHUNK,
                                  .offer = SOCKET_OFFER,
                                  .lend_from = SOCKET_LENDS,
                                  .polled = true,
                                  .shared = true};
static const azc_lane pipe_out = {.move = write_pieces,
                                  .chunk = PIPE_CHUNK,
                                  .direct = PIPE_DIRECT,
                                  .offer = PIPE_DIRECT,
                                  .lend_from = PIPE_LENDS,
                                  .polled = true,
                                  .pieces = true};
static const azc_lane pipe_in = {
    .move = read_pipe, .chunk = READ_CHUNK, .direct = DIRECT, .polled = true};
static const azc_lane untrusted_lane = {
    .move = move_bounced, .chunk = BOUNCE_CHUNK, .polled = true, .bounced = true};
const azc_lane azc__lane_waiting = {
    .move = move_waiting, .chunk = WAITING_CHUNK, .polled = true, .bounced = true};
static const azc_lane file_lane = {.move = move_file, .chunk = FILE_CHUNK};
static const azc_lane device_lane = {
    .move = move_file, .chunk = BOUNCE_CHUNK, .bounced = true};

const azc_lane *azc__lane_for(const struct stat *st, int fd, int flags) {
    if (S_ISSOCK(st->st_mode)) {
        bool may_lend = flags & AZC_OUT && flags & AZC_READS;
        return may_lend && azc_sys.takes_loans(fd) ? &unix_out : &socket_lane;
    }
    if (S_ISFIFO(st->st_mode)) {
        if (flags & AZC_UNTRUSTED) return &untrusted_lane;
        return flags & AZC_OUT ? &pipe_out : &pipe_in;
    }
    if (S_ISCHR(st->st_mode))
        return azc_sys.is_tty(fd) ? &azc__lane_waiting : &device_lane;
    return &file_lane;
}

int azc__prepare_bounce(azc_channel *channel) {
    if (!channel->lane->bounced || channel->bounce) return 0;
    channel->bounce = azc_sys.allocate(BOUNCE_CHUNK);
    return channel->bounce ? 0 : -ENOMEM;
}
