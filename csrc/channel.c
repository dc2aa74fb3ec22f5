/* channel.c - one fd, one direction: from its opening to its end.
 *
 * The states and the locks are in channel.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "channel.h"

/* ---- opening and letting go ------------------------------------------ */

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
    channel->crowded = azc_sys.cores() <= 2;
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
int azc__prepare_bounce(azc_channel *channel) {
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
    if (r == 0) r = azc__prepare_bounce(channel);
    if (r < 0) {
        azc_sys.release(channel);
        return r;
    }
    azc__lend_begin(channel);
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
    atomic_init(&file->lends, false);
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
    azc_sys.release(channel->loans);
    azc_sys.release(channel);
}

/* ---- closing --------------------------------------------------------- */

/* The lock is let go of while the fd is closed: that can last (a pipe whose
 * reader sits inside its own system call, a socket that lingers). */
void azc__finish_close(azc_channel *channel) {
    int fd = channel->fd;
    azc_op *notice = channel->close_op;
    channel->state = CLOSED;
    channel->close_op = NULL;
    azc__end_all(channel, -ESHUTDOWN);
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
        if (channel->lane->bounced) azc__end_all(channel, -ESHUTDOWN);
        if (channel->driving || threaded) {
            channel->close_op = notice;
            notice = NULL;
            channel->hurry = true;
            r = -EINPROGRESS;
            if (threaded) azc__pump_kick(channel);
        } else {
            azc__finish_close(channel);
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
    stats->lends = !channel->lends  ? AZC_LENDS_NOTHING
                   : channel->loans ? AZC_LENDS_TO_SOCKET
                                    : AZC_LENDS_TO_PIPE;
    stats->threaded = channel->pump && !channel->lane->shared;
    pthread_mutex_unlock(&channel->lock);
    return 0;
}

/* Does the number belong to another file now?  Then not one byte may go there. */
bool azc__was_replaced(azc_channel *channel) {
    if (still_ours(channel)) return false;
    channel->file->lost = true; /* not ours to close either */
    azc__break(channel, -EBADF);
    return true;
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
