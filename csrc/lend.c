/* lend.c - pages that are lent, not copied: to whom, and until when.
 *
 * Only pages of a pool are lent, for those can be taken back (pool.c).
 *
 *   a pipe's reader   vmsplice.  A loan is over when FIONREAD says that the
 *                     reader has read past it.  Nobody tells, so the pump asks
 *                     again and again.
 *   a TCP socket      MSG_ZEROCOPY.  A loan is over when the socket's error
 *                     queue has the number of its system call: the peer has
 *                     acknowledged the bytes.  The pump is woken for that.
 *
 * The life of a loan to a socket, which is one system call:
 *
 *   made --(its number is told, and all before it)--> settled: the operation
 *     |                                               may end
 *     +--(cancel, close, error)--> taken back: the operation ends at once, the
 *                                  socket keeps the old pages as they were,
 *                                  and the number is still to come
 *
 * Numbers have 32 bits and begin anew after the last; they come in ranges,
 * late, merged and out of order.  While any is to come the socket stays in the
 * poller, even if nothing is queued or the channel is broken: an error queue
 * that nobody reads would wake again and again whoever receives from the same
 * socket.  (That one is woken by each number anyway, and pauses a little, so that
 * it does not run in circles until the number was taken.)  Only the pump asks,
 * never a caller's thread.
 *
 * A kernel that refuses, or that copies all the same (loopback does), is never
 * asked again.  One that has no room for a loan just now gets a copy next.
 */
#include <errno.h>
#include <string.h>

#include "channel.h"

enum {
    NAP_MIN_US = 50, /* while a reader has lent pages, */
    NAP_MAX_US = 2000, /* and when it is slow */
    TOLD_MAX = 32, /* ranges taken from an error queue in one turn */
};

#define OVER UINT64_MAX

/* ---- beginning ------------------------------------------------------- */

/* Without memory for the loans there are none. */
static void begin_with_socket(azc_channel *channel) {
    azc_loans *loans = azc_sys.allocate(sizeof *loans);
    if (!loans) return;
    if (azc_sys.zerocopy(channel->fd) < 0) {
        azc_sys.release(loans);
        return;
    }
    *loans = (azc_loans){.made = AZC_FIRST_LOAN, .settled = AZC_FIRST_LOAN};
    channel->loans = loans;
    channel->lends = true;
    channel->file->lends = true;
}

void azc__lend_begin(azc_channel *channel) {
    if (!azc__outward(channel)) return;
    channel->nap_us = NAP_MIN_US;
    if (channel->lane->paced) {
        /* A pipe that pages were lent to knows RWF_NOWAIT no more. */
        channel->lends = channel->flags & AZC_READS && channel->flags & AZC_OWN;
    } else if (channel->lane->shared && channel->flags & AZC_ZEROCOPY) {
        begin_with_socket(channel);
    }
}

/* ---- lending --------------------------------------------------------- */

static bool is_full(const azc_loans *loans) {
    return loans->made - loans->settled == LOANS_MAX;
}

/* From how many bytes on a piece is to be lent now; 0 if none is. */
size_t azc__lend_from(const azc_channel *channel) {
    const azc_loans *loans = channel->loans;
    if (!channel->lends) return 0;
    if (loans && (loans->no_room || is_full(loans))) return 0;
    return channel->lane->lend_from;
}

ssize_t azc__lend(azc_channel *channel, struct iovec *vec, int count) {
    return channel->loans ? azc_sys.send_lent(channel->fd, vec, count)
                          : azc_sys.lend(channel->fd, vec, count);
}

/* What came of lending, or of copying, before the queue hears of it. */
ssize_t azc__weigh_loan(azc_channel *channel, ssize_t r, bool lent) {
    azc_loans *loans = channel->loans;
    if (loans) loans->no_room = lent && r == -ENOBUFS;
    if (!lent) return r;
    if (r > 0) {
        channel->stats.lent += (uint64_t)r;
        if (loans)
            loans->from[loans->made++ % LOANS_MAX] = channel->queue.accepted;
    }
    switch (-r) {
    case EINVAL:
    case EPERM:
    case ENOSYS:
    case EOPNOTSUPP:
    case EFAULT:
        channel->lends = false;
        return -EINTR;
    case ENOBUFS: /* no room for the notice, or too many pages are locked */
        return loans ? -EINTR : r;
    }
    return r;
}

/* ---- a pipe's reader ------------------------------------------------- */

/* How many bytes the reader has not read, or -EPIPE if there is no reader.
 * The lock is let go of: a reader can hold the question up. */
static ssize_t ask_reader(azc_channel *channel) {
    struct pollfd peer = {channel->fd, 0, 0};
    pthread_mutex_unlock(&channel->lock);
    ssize_t unread = azc_sys.unread(channel->fd);
    if (unread > 0 && azc_sys.poll(&peer, 1, 0) > 0 && peer.revents & POLLERR)
        unread = -EPIPE;
    pthread_mutex_lock(&channel->lock);
    return unread;
}

/* Looks how far the reader is; returns false if the channel has ended. */
static bool look_at_pipe(azc_channel *channel) {
    uint64_t accepted = channel->queue.accepted, read = 0;
    ssize_t unread = ask_reader(channel);
    if (channel->state != OPEN || azc__was_replaced(channel)) return false;
    if (unread < 0) {
        azc__break(channel, (int)unread);
        return false;
    }
    if ((uint64_t)unread < accepted) read = accepted - (uint64_t)unread;
    if (read > channel->read) {
        channel->read = read;
        channel->nap_us = NAP_MIN_US;
    } else if (channel->nap_us < NAP_MAX_US) {
        channel->nap_us *= 2;
    }
    return true;
}

/* ---- a socket's error queue ------------------------------------------ */

static void settle_range(azc_loans *loans, const sys_range *told) {
    uint64_t at =
        loans->settled + (uint32_t)(told->first - (uint32_t)loans->settled);
    uint64_t n = (uint64_t)(uint32_t)(told->last - told->first) + 1;
    for (; n && at < loans->made; n--) loans->from[at++ % LOANS_MAX] = OVER;
    if (SABOTAGED(GAP) && at <= loans->made) loans->settled = at;
    while (loans->settled < loans->made &&
           loans->from[loans->settled % LOANS_MAX] == OVER)
        loans->settled++;
}

/* What the error queue tells; then, if an operation waits for that, whether the
 * connection still stands: one that was reset needs no page any more either.
 * The lock is let go of.  Returns the ranges, and *error of 0 or -errno. */
static int ask_socket(azc_channel *channel, sys_range *told, int *error) {
    bool awaited = channel->queue.head != NULL;
    int count = 0;
    pthread_mutex_unlock(&channel->lock);
    while (count < TOLD_MAX && azc_sys.settled(channel->fd, &told[count]) > 0)
        count++;
    *error = awaited ? azc_sys.is_broken(channel->fd) : 0;
    pthread_mutex_lock(&channel->lock);
    return count;
}

/* Looks what is settled; returns false if the channel has ended.  A socket may
 * report an error or its end again and again and have nothing in its queue:
 * who was woken for nothing takes a nap. */
static bool look_at_socket(azc_channel *channel) {
    azc_loans *loans = channel->loans;
    sys_range told[TOLD_MAX];
    int error = 0;
    if (azc__was_replaced(channel)) return false;
    int count = ask_socket(channel, told, &error);
    for (int i = 0; i < count; i++) {
        settle_range(loans, &told[i]);
        if (told[i].copied) channel->lends = false;
    }
    channel->nap_us = !count && channel->woken ? NAP_MAX_US : 0;
    channel->woken = false;
    channel->read = loans->settled == loans->made
                        ? channel->queue.accepted
                        : loans->from[loans->settled % LOANS_MAX];
    channel->file->lends = channel->lends || loans->settled != loans->made;
    if (error < 0) azc__break(channel, error);
    return channel->state == OPEN || channel->state == BROKEN;
}

/* ---- both ------------------------------------------------------------ */

/* Is there a loan that somebody may still look at, or tell of? */
bool azc__is_owed(const azc_channel *channel) {
    const azc_loans *loans = channel->loans;
    if (channel->state != OPEN && channel->state != BROKEN) return false;
    if (channel->queue.head != channel->queue.cursor) return true;
    return loans && loans->made != loans->settled && !channel->file->lost;
}

/* Ends what nobody has to look at any more, and notes when to ask again.
 * Returns why the drive stopped. */
int azc__tally(azc_channel *channel, int drove) {
    bool goes_on =
        channel->loans ? look_at_socket(channel) : look_at_pipe(channel);
    if (!goes_on) return drove;
    azc__end_list(channel, azc__queue_consume(&channel->queue, channel->read),
                  0);
    if (channel->queue.cursor) return drove == DROVE_DRY ? DROVE_BUDGET : drove;
    return azc__is_owed(channel) ? DROVE_LENT : DROVE_DRY;
}
