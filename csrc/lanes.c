/* lanes.c - the ways in and out, and which fd takes which.
 *
 *   socket   sendmsg, recvmsg          many bytes a call; one pump for all
 *   pipe     pwritev2, preadv2         small pieces (see PIPE_CHUNK)
 *   waiting  poll, then writev, readv  FIFOs, ttys: what cannot be asked not to
 *                                      wait.  It works on a copy of each piece,
 *                                      since its calls may last
 *   file     writev, readv             regular files: always ready, never asked
 *   device   the same on a copy        /dev/null and other character devices
 *
 * All of these copy: the bytes are the caller's again when the call returns.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "channel.h"

enum {
    /* A pipe is locked for as long as one call copies.  Pieces of 8 KiB let
     * reader and writer take turns: measured with a 1 MiB pipe and 32 KiB
     * reads, 4 to 7 GB/s where whole frames gave 2. */
    PIPE_CHUNK = 8 << 10,
    /* A pipe that says it is ready takes a page without waiting. */
    WAITING_CHUNK = 4 << 10,
    /* A file's call is never long, and a cancel may have to wait for it. */
    FILE_CHUNK = 1 << 20,
    SOCKET_CHUNK = 1 << 20,
    READ_CHUNK = 256 << 10,
    DIRECT = 256 << 10,
    PIPE_DIRECT = 64 << 10,
};

static bool outward(const azc_channel *channel) {
    return channel->flags & AZC_OUT;
}

static ssize_t move_socket(azc_channel *channel, const struct iovec *vec,
                           int count) {
    return outward(channel) ? azc_sys.send(channel->fd, vec, count)
                            : azc_sys.recv(channel->fd, vec, count);
}

static ssize_t move_pipe(azc_channel *channel, const struct iovec *vec,
                         int count) {
    int how = channel->flags & AZC_OWN ? 0 : SYS_NOWAIT;
    return outward(channel)
               ? azc_sys.write_pipe(channel->fd, vec, count, how)
               : azc_sys.read_pipe(channel->fd, vec, count, how);
}

static ssize_t move_file(azc_channel *channel, const struct iovec *vec,
                         int count) {
    return outward(channel) ? azc_sys.write_file(channel->fd, vec, count)
                            : azc_sys.read_file(channel->fd, vec, count);
}

/* Fills the bounce buffer from the pieces; they add up to a chunk at most.
 * The channel's lock is held: an operation whose lane works on copies may be
 * cancelled during the call, and then its memory must not be looked at. */
ssize_t azc__lane_fill(azc_channel *channel, const struct iovec *vec,
                       int count) {
    size_t n = 0;
    for (int i = 0; i < count; i++) {
        ssize_t r =
            azc_sys.copy(channel->bounce + n, vec[i].iov_base, vec[i].iov_len);
        if (r < 0) return r;
        n += vec[i].iov_len;
    }
    return (ssize_t)n;
}

static ssize_t move_waiting(azc_channel *channel, const struct iovec *vec,
                            int count) {
    struct pollfd ready = {channel->fd, outward(channel) ? POLLOUT : POLLIN, 0};
    int r = azc_sys.poll(&ready, 1, 0);
    if (r <= 0) return r < 0 ? r : -EAGAIN;
    return move_file(channel, vec, count);
}

static const azc_lane socket_lane = {.move = move_socket,
                                     .chunk = SOCKET_CHUNK,
                                     .direct = DIRECT,
                                     .polled = true,
                                     .shared = true};
static const azc_lane pipe_out = {.move = move_pipe,
                                  .chunk = PIPE_CHUNK,
                                  .direct = PIPE_DIRECT,
                                  .polled = true};
static const azc_lane pipe_in = {.move = move_pipe,
                                 .chunk = READ_CHUNK,
                                 .direct = DIRECT,
                                 .polled = true};
static const azc_lane untrusted_lane = {.move = move_pipe,
                                        .chunk = PIPE_CHUNK,
                                        .polled = true,
                                        .bounced = true};
static const azc_lane waiting_lane = {.move = move_waiting,
                                      .chunk = WAITING_CHUNK,
                                      .polled = true,
                                      .bounced = true};
static const azc_lane file_lane = {.move = move_file, .chunk = FILE_CHUNK};
static const azc_lane device_lane = {.move = move_file,
                                     .chunk = PIPE_CHUNK,
                                     .bounced = true};

const azc_lane *azc__lane_for(const struct stat *st, int fd, int flags) {
    if (S_ISSOCK(st->st_mode)) return &socket_lane;
    if (S_ISFIFO(st->st_mode)) {
        if (flags & AZC_UNTRUSTED) return &untrusted_lane;
        return flags & AZC_OUT ? &pipe_out : &pipe_in;
    }
    if (S_ISCHR(st->st_mode)) return isatty(fd) ? &waiting_lane : &device_lane;
    return &file_lane;
}

/* For a FIFO, when RWF_NOWAIT turned out not to be known there. */
const azc_lane *azc__lane_waiting(void) { return &waiting_lane; }

/* The longest piece of any bounced lane. */
size_t azc__lane_bounce_size(void) { return PIPE_CHUNK; }
