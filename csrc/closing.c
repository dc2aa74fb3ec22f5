/* closing.c - the end of a channel: its fd is closed, or left to its next owner. */
#include "ending.h"

#include <errno.h>

/* An fd to close, and the note that reports it. */
typedef struct azc_closing {
    int fd; /* -1: another channel still has it, or the number is lost */
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
    return true;
}

/* A close may block: a socket lingers, a tty drains, an untrusted pipe's reader is inside
 * a system call, a file system asks its server.  A private pump may wait for that, or a
 * new thread does.  (The readers of other pipes are trusted.) */
static bool closes_slowly(const azc_channel *channel) {
    if (azc__pump_is_private(channel)) return false;
    if (channel->lane->shared) return azc_sys.linger(channel->fd) > 0;
    return channel->lane->bounced || !channel->lane->polled;
}

bool azc__finish_close(azc_channel *channel) {
    bool slow = closes_slowly(channel);
    azc_closing closing = {channel->fd, channel->closing};
    channel->state = CLOSED;
    azc__end_all(channel, -ESHUTDOWN);
    azc__lender_end(channel);
    if (!channel->file->lost && !azc__still_ours(channel))
        channel->file->lost = true; /* not ours to close */
    azc__pump_leave(channel);
    channel->fd = -1;
    channel->driving = true;
    azc__unlock(channel);
    closing.fd = azc__give_up_file(channel->file, closing.fd);
    bool elsewhere = closing.fd >= 0 && slow && close_in_thread(&closing);
    if (!elsewhere) close_and_tell(&closing);
    azc__lock(channel);
    channel->driving = false;
    return !elsewhere;
}

/* Is it the source of a relay that completes?  Then the relay goes on reading. */
static bool is_still_read(const azc_channel *channel) {
    const azc_op *first = channel->queue.head;
    return !azc__outward(channel) && first && first->hold && first->hold->completes;
}

/* Ends the operations, unless a system call uses one.  1 if the fd is closed too. */
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

int azc_close(azc_id id, azc_id port, uint64_t token) {
    azc_note *note;
    int r = azc__note_new(port, token, &note);
    azc_channel *channel = azc__enter(id);
    if (!channel) r = azc__why(id);
    if (r == 0 && channel->state >= CLOSING) r = -EALREADY;
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
    if (channel->state < CLOSING) begin_close(channel);
    azc__leave(channel);
    return 0;
}

/* ---- fork ------------------------------------------------------------ */

/* The child closes no regular file and no device but a tty: such a close may be held
 * up, and no peer waits for it. */
void azc__channel_fork_child(void *object) {
    azc_channel *channel = object;
    azc__pump_fork_child(channel);
    channel->lender.party.joined = false; /* (fork.c holds the lock of the parties) */
    azc__lender_end(channel);
    bool last = channel->fd >= 0 && --channel->file->refs == 0;
    bool closes = last && channel->lane->polled && !channel->file->lost;
    if (closes && azc__still_ours(channel)) azc_sys.close(channel->fd);
}
