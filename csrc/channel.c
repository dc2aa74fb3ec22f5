/* channel.c - one fd, one direction: how it is found, and what may be asked of it.
 *
 * The states and the locks are in channel.h.
 */
#include "channel.h"

#include <errno.h>

int azc_portable(void) {
#ifdef AZC_PORTABLE
    return 1;
#else
    return 0;
#endif
}

/* ---- entering and leaving -------------------------------------------- */

azc_channel *azc__find(azc_id id) {
    return azc__handle_lock(&azc__channels, id);
}

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
    stats->outward = azc__outward(channel);
    azc__leave(channel);
    return 0;
}
