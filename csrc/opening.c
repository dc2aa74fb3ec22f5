/* opening.c - channels over a new fd, or over that of another channel. */
#include <errno.h>

#include "closing.h"

static int prepare_fd(azc_channel *channel) {
    struct stat st;
    int r = azc_sys.identify(channel->fd, &st);
    if (r < 0) return r;
    channel->device = st.st_dev;
    channel->inode = st.st_ino;
    channel->mode = st.st_mode;
    channel->lane = azc__lane_for(&st, channel->fd, channel->flags);
    if (channel->lane->shared) azc_sys.no_sigpipe(channel->fd);
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
    azc_file *file = azc_sys.allocate(sizeof *file);
    if (!file) return -ENOMEM;
    atomic_init(&file->refs, 0);
    atomic_init(&file->lost, false);
    azc_channel *channel = NULL;
    int r = make(file, fd, flags, &channel);
    if (r == 0) r = give_number(channel, out);
    if (r < 0) {
        if (channel) unmake(channel);
        azc_sys.release(file);
    }
    return r;
}

/* (The new channel gets its number without the other's lock.) */
int azc_open_opposite(azc_id id, azc_id *out) {
    azc_channel *channel = azc__enter(id), *opposite = NULL;
    if (!channel) return azc__why(id);
    int flags = channel->flags ^ (AZC_IN | AZC_OUT), r = -EBADF;
    if (channel->fd >= 0)
        r = make(channel->file, channel->fd, flags, &opposite);
    azc__leave(channel);
    if (r == 0) r = give_number(opposite, out);
    if (r < 0 && opposite) {
        int fd = azc__give_up_file(opposite->file, opposite->fd);
        if (fd >= 0) azc_sys.close(fd); /* the other was closed meanwhile */
        unmake(opposite);
    }
    return r;
}
