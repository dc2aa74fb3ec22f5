/* poller_poll.c - any Unix: poll.
 *
 * The armed fds are in a table under a lock.  A wait polls a copy of it, and is
 * woken when another thread changes the table.
 */
#include <errno.h>

#include "poller.h"
#include "sys.h"

enum { NO_MEMORY_PAUSE_US = 5000 };

typedef struct armed {
    int fd;
    short events;
    uint64_t who;
} armed;

struct azc_poller {
    pthread_mutex_t lock;
    int wake[2];
    armed *table; /* [0, count) */
    int count, room;
};

int azc__poller_open(azc_poller **out, bool wakes) {
    if (!wakes) return -EOPNOTSUPP;
    azc_poller *poller = sys_zeros(sizeof *poller);
    if (!poller) return -ENOMEM;
    int r = azc_sys.open_waker(poller->wake);
    if (r < 0) {
        azc_sys.release(poller);
        return r;
    }
    pthread_mutex_init(&poller->lock, NULL);
    *out = poller;
    return 0;
}

int azc__poller_fd(const azc_poller *poller) {
    (void)poller;
    return -EOPNOTSUPP;
}

bool azc__poller_is_readable(const azc_poller *poller) {
    (void)poller;
    return false;
}

void azc__poller_close(azc_poller *poller) {
    sys_close_both(poller->wake);
    pthread_mutex_destroy(&poller->lock);
    azc_sys.release(poller->table);
    azc_sys.release(poller);
}

void azc__poller_abandon(azc_poller *poller) { sys_close_both(poller->wake); }

static int make_room(azc_poller *poller) {
    if (poller->count < poller->room) return 0;
    int room = poller->room ? poller->room * 2 : 8;
    armed *table = azc_sys.allocate((size_t)room * sizeof *table);
    if (!table) return -ENOMEM;
    if (poller->count)
        memcpy(table, poller->table, (size_t)poller->count * sizeof *table);
    azc_sys.release(poller->table);
    poller->table = table;
    poller->room = room;
    return 0;
}

/* Disarms the fd if it is armed for `who` (0: for anyone); returns whether it was. */
static bool disarm(azc_poller *poller, int fd, uint64_t who) {
    for (int i = 0; i < poller->count; i++) {
        armed *it = &poller->table[i];
        if (it->fd != fd || (who && it->who != who)) continue;
        *it = poller->table[--poller->count];
        return true;
    }
    return false;
}

int azc__poller_arm(azc_poller *poller, int fd, int what, uint64_t who) {
    static const short events[] = {POLLIN, POLLOUT};
    pthread_mutex_lock(&poller->lock);
    disarm(poller, fd, 0);
    int r = make_room(poller);
    if (r == 0) poller->table[poller->count++] = (armed){fd, events[what], who};
    pthread_mutex_unlock(&poller->lock);
    azc__poller_wake(poller);
    return r;
}

/* A running poll keeps the file open after its number is closed, so the peer would see no
 * end.  This wakes the poll, which then begins again without the fd. */
void azc__poller_forget(azc_poller *poller, int fd) {
    pthread_mutex_lock(&poller->lock);
    disarm(poller, fd, 0);
    pthread_mutex_unlock(&poller->lock);
    azc__poller_wake(poller);
}

/* Copies what is armed now, with the waker first; NULL: no memory. */
static armed *copy_table(azc_poller *poller, struct pollfd **polled, int *n) {
    *n = poller->count + 1;
    size_t each = sizeof **polled + sizeof(armed);
    armed *copy = azc_sys.allocate((size_t)*n * each);
    if (!copy) return NULL;
    *polled = (struct pollfd *)(void *)(copy + *n);
    copy[0] = (armed){poller->wake[0], POLLIN, 0};
    if (poller->count)
        memcpy(copy + 1, poller->table, (size_t)poller->count * sizeof *copy);
    for (int i = 0; i < *n; i++)
        (*polled)[i] = (struct pollfd){copy[i].fd, copy[i].events, 0};
    return copy;
}

int azc__poller_wait(azc_poller *poller, uint64_t *who, int max, int timeout_us) {
    int timeout_ms = timeout_us < 0 ? -1 : (timeout_us + 999) / 1000;
    struct pollfd *polled;
    int n, count = 0;
    pthread_mutex_lock(&poller->lock);
    armed *copy = copy_table(poller, &polled, &n);
    pthread_mutex_unlock(&poller->lock);
    if (!copy) {
        azc_sys.sleep_us(NO_MEMORY_PAUSE_US);
        return 0;
    }
    if (azc_sys.poll(polled, (nfds_t)n, timeout_ms) <= 0) n = 0;
    if (n && polled[0].revents) azc_sys.clear(poller->wake[0]);
    pthread_mutex_lock(&poller->lock);
    /* (only fds that are still armed as they were) */
    for (int i = 1; i < n && count < max; i++)
        if (polled[i].revents && disarm(poller, copy[i].fd, copy[i].who))
            who[count++] = copy[i].who;
    pthread_mutex_unlock(&poller->lock);
    azc_sys.release(copy);
    return count;
}

void azc__poller_wake(azc_poller *poller) { azc_sys.signal(poller->wake[1]); }
