/* channel.c - one fd, one direction: how it is opened, found and asked for its state.
 *
 * The states and the locks are in channel.h.
 */
#include "channel.h"

#include <errno.h>

/* ---- entering and leaving -------------------------------------------- */

azc_channel *azc__find(azc_id id) { return azc__handle_lock(&azc__channels, id); }

azc_channel *azc__enter(azc_id id) {
    azc_channel *channel = azc__find(id);
    if (!channel || !channel->freed) return channel;
    azc__unlock(channel);
    return NULL;
}

int azc__why(azc_id id) { return azc__handle_why(&azc__channels, id); }

static void destroy(azc_channel *channel) {
    azc__handle_drop(&azc__channels, channel->id);
    if (channel->spare) azc__note_free(channel->spare->note);
    azc_sys.release(channel->spare);
    azc_sys.release(channel->bounce);
    azc_sys.release(channel);
}

void azc__leave(azc_channel *channel) {
    if (channel->freed && channel->state == CLOSED && !channel->driving)
        destroy(channel);
    else
        azc__unlock(channel);
}

int azc__refusal(const azc_channel *channel) {
    switch (channel->state) {
    case OPEN:
        return 0;
    case BROKEN:
        return channel->error;
    default:
        return -ESHUTDOWN;
    }
}

void azc__interrupt(azc_channel *channel) {
    azc_op *first = channel->queue.head;
    channel->stop_early = true;
    if (first && first->hold) first->hold->wake(first->hold);
}

/* ---- opening ----------------------------------------------------------- */

static int prepare_fd(azc_channel *channel) {
    struct stat st;
    int r = azc_sys.identify(channel->fd, &st);
    if (r < 0) return r;
    channel->device = st.st_dev;
    channel->inode = st.st_ino;
    channel->mode = st.st_mode;
    channel->lane = azc__lane_for(&st, channel->fd, channel->flags);
    channel->alone = azc_sys.has_one_cpu();
    if (channel->lane->shared && azc_sys.no_sigpipe) azc_sys.no_sigpipe(channel->fd);
    return 0;
}

static void unmake(azc_channel *channel) {
    azc__lender_end(channel);
    azc_sys.release(channel->bounce);
    azc_sys.release(channel);
}

/* A channel that nobody can find yet. */
static int make(azc_file *file, int fd, int flags, azc_channel **made) {
    azc_channel *channel = sys_zeros(sizeof *channel);
    if (!channel) return -ENOMEM;
    channel->file = file;
    channel->fd = fd;
    channel->flags = flags;
    channel->queue.limit = UINT64_MAX;
    channel->lender.between.ends[0] = -1;
    int r = prepare_fd(channel);
    if (r == 0) r = azc__prepare_bounce(channel);
    if (r < 0) {
        unmake(channel);
        return r;
    }
    azc__lender_init(channel);
    file->refs++;
    *made = channel;
    return 0;
}

/* The last step of opening: from here on other threads may find the channel. */
static int give_number(azc_channel *channel, azc_id *out) {
    azc_id id = azc__handle_new(&azc__channels, NULL);
    if (!id) return -ENOMEM;
    channel->id = id;
    channel->slot = azc__handle_slot(&azc__channels, id);
    azc__handle_set(&azc__channels, id, channel);
    *out = id;
    return 0;
}

int azc_open(int fd, int flags, azc_id *out) {
    int direction = flags & (AZC_IN | AZC_OUT);
    if (direction != AZC_IN && direction != AZC_OUT) return -EINVAL;
    azc_file *file = sys_zeros(sizeof *file);
    if (!file) return -ENOMEM;
    azc_channel *channel = NULL;
    int r = make(file, fd, flags, &channel);
    if (r == 0) r = give_number(channel, out);
    if (r < 0) {
        if (channel) unmake(channel);
        azc_sys.release(file);
    }
    return r;
}

int azc_open_from(azc_fds *fds, int flags, azc_id *out) {
    if (fds->count != 1) return -EBADF;
    int r = azc_open(fds->fds[0], flags, out);
    if (r == 0) fds->count = 0;
    return r;
}

int azc__give_up_file(azc_file *file, int fd) {
    if (--file->refs) return -1;
    if (file->lost) fd = -1;
    azc_sys.release(file);
    return fd;
}

/* (The new channel gets its number after the other's lock is released.) */
int azc_open_opposite(azc_id id, azc_id *out) {
    azc_channel *channel = azc__enter(id), *opposite = NULL;
    if (!channel) return azc__why(id);
    int flags = channel->flags ^ (AZC_IN | AZC_OUT), r = -EBADF;
    if (channel->fd >= 0) r = make(channel->file, channel->fd, flags, &opposite);
    azc__leave(channel);
    if (r == 0) r = give_number(opposite, out);
    if (r < 0 && opposite) {
        int fd = azc__give_up_file(opposite->file, opposite->fd);
        if (fd >= 0) azc_sys.close(fd); /* the other channel was closed meanwhile */
        unmake(opposite);
    }
    return r;
}

/* ---- questions ------------------------------------------------------- */

int azc_fd(azc_id id) {
    azc_channel *channel = azc__enter(id);
    if (!channel) return azc__why(id);
    int fd = channel->fd;
    azc__leave(channel);
    return fd < 0 ? -ESHUTDOWN : fd;
}

int azc_shutdown(azc_id id) {
    azc_channel *channel = azc__enter(id);
    if (!channel) return azc__why(id);
    int r = channel->state == OPEN ? azc_sys.shutdown(channel->fd) : -ESHUTDOWN;
    azc__leave(channel);
    return r;
}

int azc_get_stats(azc_id id, azc_stats *stats) {
    azc_channel *channel = azc__enter(id);
    if (!channel) return azc__why(id);
    *stats = channel->stats;
    stats->queued_bytes = channel->queue.bytes;
    stats->queued = channel->queue.ops - channel->queue.waiting;
    stats->waiting = channel->queue.waiting;
    stats->leftover = channel->leftover;
    stats->error = channel->error;
    stats->lends = channel->lender.lends;
    azc__leave(channel);
    return 0;
}
