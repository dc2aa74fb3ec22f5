/* channel.c - one fd, one direction: from its opening to its end.
 *
 * The states and the locks are in channel.h.
 */
#include "channel.h"

#include <errno.h>
#include <string.h>

#include "ending.h"
#include "sabotage.h"

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

/* ---- opening --------------------------------------------------------- */

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

int azc__prepare_bounce(azc_channel *channel) {
    if (!channel->lane->bounced || channel->bounce) return 0;
    channel->bounce = azc_sys.allocate(azc__lane_bounce_size());
    return channel->bounce ? 0 : -ENOMEM;
}

static void unmake(azc_channel *channel) {
    azc__lender_end(channel);
    azc_sys.release(channel->bounce);
    azc_sys.release(channel);
}

/* A channel that nobody can find yet. */
static int make(azc_file *file, int fd, int flags, azc_channel **made) {
    azc_channel *channel = azc_sys.allocate(sizeof *channel);
    if (!channel) return -ENOMEM;
    memset(channel, 0, sizeof *channel);
    channel->file = file;
    channel->fd = fd;
    channel->flags = flags;
    channel->queue.limit = UINT64_MAX;
    int r = prepare_fd(channel);
    if (r == 0) r = azc__prepare_bounce(channel);
    if (r < 0) {
        unmake(channel);
        return r;
    }
    azc__lender_init(channel);
    if (channel->lane->paced) azc__caller_init(&channel->caller);
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

/* Returns the fd if it is to be closed: by the last of its channels, and not if the
 * number is lost. */
static int give_up_file(azc_file *file, int fd) {
    if (--file->refs) return -1;
    if (file->lost) fd = -1;
    azc_sys.release(file);
    return fd;
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
        int fd = give_up_file(opposite->file, opposite->fd);
        if (fd >= 0) azc_sys.close(fd); /* the other was closed meanwhile */
        unmake(opposite);
    }
    return r;
}

/* ---- the fd's number -------------------------------------------------- */

/* Other code may have closed the number, and the kernel given it to another file. */
static bool still_ours(const azc_channel *channel) {
    struct stat st;
    if (SABOTAGED(IDENTITY)) return true;
    return azc_sys.identify(channel->fd, &st) == 0 &&
           st.st_dev == channel->device && st.st_ino == channel->inode;
}

bool azc__was_replaced(azc_channel *channel) {
    if (channel->fd < 0 || still_ours(channel)) return false;
    channel->file->lost = true; /* not ours to close either */
    azc__break(channel, -EBADF);
    return true;
}

/* ---- closing --------------------------------------------------------- */

/* An fd to close, and the note that tells of it. */
typedef struct azc_closing {
    int fd; /* -1: another channel has it too, or the number is lost */
    azc_note *note;
} azc_closing;

static void close_and_tell(const azc_closing *closing) {
    if (closing->fd >= 0) azc_sys.close(closing->fd);
    azc__note_post(closing->note, 0, 0, AZC_DROPPED);
}

static void *run_close(void *closing) {
    close_and_tell(closing);
    azc_sys.release(closing);
    return NULL;
}

/* False: no memory, or no thread. */
static bool close_in_thread(const azc_closing *closing) {
    pthread_t thread;
    azc_closing *copy = azc_sys.allocate(sizeof *copy);
    if (!copy) return false;
    *copy = *closing;
    if (azc_sys.thread_start(&thread, run_close, copy) < 0) {
        azc_sys.release(copy);
        return false;
    }
    azc_sys.thread_detach(thread);
    return true;
}

/* A close may block: a socket lingers, a tty drains, a pipe's reader is inside a
 * system call, a file system asks its server.  A private pump may wait for that, any
 * other thread must not. */
static bool closes_slowly(const azc_channel *channel) {
    if (azc__pump_is_private(channel)) return false;
    if (channel->lane->shared) return azc_sys.linger(channel->fd) > 0;
    return channel->lane->bounced || !channel->lane->polled;
}

bool azc__finish_close(azc_channel *channel) {
    bool slow = closes_slowly(channel);
    azc_closing closing = {channel->fd, channel->closing};
    channel->state = CLOSED;
    channel->closing = NULL;
    azc__end_all(channel, -ESHUTDOWN);
    azc__lender_end(channel);
    if (!channel->file->lost && !still_ours(channel))
        channel->file->lost = true; /* not ours to close */
    azc__pump_leave(channel);
    channel->fd = -1;
    channel->driving = true;
    azc__unlock(channel);
    closing.fd = give_up_file(channel->file, closing.fd);
    bool elsewhere = closing.fd >= 0 && slow && close_in_thread(&closing);
    if (!elsewhere) close_and_tell(&closing);
    azc__lock(channel);
    channel->driving = false;
    return !elsewhere;
}

void azc__interrupt(azc_channel *channel) {
    azc_op *first = channel->queue.head;
    channel->stop_early = true;
    if (first && first->hold) first->hold->wake(first->hold);
}

/* Is it the source of a message that completes?  Then its driver goes on. */
static bool is_still_read(const azc_channel *channel) {
    const azc_op *first = channel->queue.head;
    return !azc__outward(channel) && first && first->hold &&
           first->hold->completes;
}

/* Ends what no system call is using.  1 if the fd is closed too. */
static int begin_close(azc_channel *channel) {
    channel->state = CLOSING;
    if (!channel->in_call) azc__end_all(channel, -ESHUTDOWN);
    if (channel->driving) {
        if (!is_still_read(channel)) azc__interrupt(channel);
        return -EINPROGRESS;
    }
    if (azc__pump_is_private(channel)) {
        azc__pump_kick(channel);
        return -EINPROGRESS;
    }
    return azc__finish_close(channel) ? 1 : -EINPROGRESS;
}

static bool is_unclosed(const azc_channel *channel) {
    return channel->state == OPEN || channel->state == BROKEN;
}

int azc_close(azc_id id, azc_id port, uint64_t token) {
    azc_note *note;
    int r = azc__note_new(port, token, &note);
    azc_channel *channel = azc__enter(id);
    if (!channel) r = azc__why(id);
    if (r == 0 && !is_unclosed(channel)) r = -EALREADY;
    if (r < 0) {
        azc__note_free(note);
    } else {
        channel->closing = note;
        r = begin_close(channel);
        if (note) r = -EINPROGRESS; /* its event will come, or has come */
    }
    if (channel) azc__leave(channel);
    return r;
}

int azc_free(azc_id id) {
    azc_channel *channel = azc__enter(id);
    if (!channel) return azc__why(id);
    channel->freed = true;
    if (is_unclosed(channel)) begin_close(channel);
    azc__leave(channel);
    return 0;
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

/* ---- fork ------------------------------------------------------------ */

/* A file stays open in the child, since its file system may hold its close up, and
 * nobody waits for its end. */
void azc__channel_fork_child(void *object) {
    azc_channel *channel = object;
    azc__pump_fork_child(channel);
    bool last = channel->fd >= 0 && --channel->file->refs == 0;
    bool closes = last && channel->lane->polled && !channel->file->lost;
    if (closes && still_ours(channel)) azc_sys.close(channel->fd);
    channel->fd = -1;
}
