/* lender.c - pages that are lent to a reader instead of copied. */
#include "lender.h"

#include <errno.h>

#include "channel.h"
#include "sabotage.h"

enum {
    NAP_MIN_US = 50,   /* until we ask a reader of lent pages again */
    NAP_MAX_US = 2000, /* a nap that is longer is not doubled again */
};

/* ---- parties that lend a pipe's pages, or pass them on -------------------- */

pthread_mutex_t azc__parties_lock = PTHREAD_MUTEX_INITIALIZER;
static azc_party *parties;

bool azc__party_join(azc_party *party, dev_t device, ino_t inode, bool lends) {
    pthread_mutex_lock(&azc__parties_lock);
    const azc_party *it = parties;
    while (it && (it->device != device || it->inode != inode)) it = it->next;
    bool joins = !it || it->lends == lends || SABOTAGED(PARTY);
    if (joins) {
        *party = (azc_party){parties, device, inode, lends, true};
        parties = party;
    }
    pthread_mutex_unlock(&azc__parties_lock);
    return joins;
}

void azc__party_leave(azc_party *party) {
    if (!party->joined) return;
    pthread_mutex_lock(&azc__parties_lock);
    azc_party **place = &parties;
    while (*place != party) place = &(*place)->next;
    *place = party->next;
    pthread_mutex_unlock(&azc__parties_lock);
    party->joined = false;
}

void azc__parties_fork_child(void) { parties = NULL; }

/* ---- lending ------------------------------------------------------------ */

void azc__lender_init(azc_channel *channel) {
    azc_lender *lender = &channel->lender;
    bool wanted = channel->flags & AZC_READS && channel->flags & AZC_OWN &&
                  azc__outward(channel) && channel->lane->lend_from && azc_sys.lend;
    lender->nap_us = NAP_MIN_US;
    if (wanted && channel->lane->shared)
        lender->message = (uint64_t)azc_sys.takes_loans(channel->fd);
    lender->lends =
        wanted &&
        azc__party_join(&lender->party, channel->device,
                        channel->lane->shared ? ALL_SOCKETS : channel->inode, true);
    channel->queue.lends_all = channel->flags & AZC_LENDS_ALL;
}

void azc__lender_end(azc_channel *channel) {
    azc_lender *lender = &channel->lender;
    azc__party_leave(&lender->party);
    if (lender->between.ends[0] >= 0) azc_sys.close_between(&lender->between);
}

size_t azc__lend_from(const azc_channel *channel, uint64_t message) {
    bool lends = channel->lender.lends && message >= channel->lender.message;
    return lends ? channel->lane->lend_from : 0;
}

ssize_t azc__lend(azc_channel *channel, struct iovec *vec, int count) {
    if (!channel->lane->shared) return azc_sys.lend(channel->fd, NULL, vec, count);
    const size_t first = vec->iov_len;
    sys_sigpipe sigpipe;
    if (channel->in_caller) azc_sys.block_sigpipe(&sigpipe);
    ssize_t r = azc_sys.lend(channel->fd, &channel->lender.between, vec, count);
    bool is_short = r > 0 && (size_t)r < first; /* perhaps because of EPIPE */
    if (channel->in_caller) azc_sys.restore_sigpipe(&sigpipe, is_short ? -EPIPE : r);
    if (is_short) channel->stopped_by = -EAGAIN;
    return r;
}

ssize_t azc__lend_result(azc_channel *channel, ssize_t r) {
    if (r > 0) channel->stats.lent += (uint64_t)r;
    if (r != -EINVAL && r != -EPERM && r != -ENOSYS && r != -EOPNOTSUPP && r != -EFAULT)
        return r;
    channel->lender.lends = false;
    return -EINTR; /* try again: now it copies */
}

bool azc__has_loans(const azc_channel *channel) {
    return channel->state == OPEN && channel->queue.head != channel->queue.cursor;
}

/* How many bytes the reader has not read; -EPIPE or -ECONNRESET: there is no reader.
 * Releases the lock meanwhile, since a reader can hold this call up. */
static ssize_t unread(azc_channel *channel) {
    const bool socket = channel->lane->shared;
    struct pollfd peer = {channel->fd, socket ? POLLOUT : 0, 0};
    azc__unlock(channel);
    ssize_t n = azc_sys.unread(peer.fd, socket);
    /* A dead peer's socket drops what is unread after it shows the error. */
    bool looks = n > 0 || (n == 0 && socket);
    if (looks && azc_sys.poll(&peer, 1, 0) < 0) n = PTRDIFF_MAX;
    if (peer.revents & POLLERR) n = socket ? -ECONNRESET : -EPIPE;
    azc__lock(channel);
    channel->lender.full = socket && !peer.revents;
    return n;
}

int azc__lender_ask(azc_channel *channel) {
    azc_lender *lender = &channel->lender;
    uint64_t sent = channel->queue.sent, read = 0;
    ssize_t n = unread(channel);
    if (n < 0) return (int)n;
    if ((uint64_t)n < sent) read = sent - (uint64_t)n;
    if (read > lender->read) {
        lender->read = read;
        lender->nap_us = NAP_MIN_US;
    } else if (lender->nap_us < NAP_MAX_US) {
        lender->nap_us *= 2;
    }
    return 0;
}
