/* poller_epoll.c - Linux: epoll. */
#include <errno.h>
#include <sys/epoll.h>

#include "poller.h"
#include "sys.h"

enum { WAKE = 0 }; /* no channel's number */

struct azc_poller {
    int epoll;
    int wake[2]; /* if a thread waits in it */
};

static int watch_wake(azc_poller *poller) {
    struct epoll_event wake = {.events = EPOLLIN, .data.u64 = WAKE};
    int r = azc_sys.open_waker(poller->wake);
    if (r < 0) return r;
    return azc_sys.epoll_ctl(poller->epoll, EPOLL_CTL_ADD, poller->wake[0], &wake);
}

int azc__poller_open(azc_poller **out, bool wakes) {
    azc_poller *poller = azc_sys.allocate(sizeof *poller);
    if (!poller) return -ENOMEM;
    *poller = (azc_poller){azc_sys.epoll_create(), {-1, -1}};
    int r = poller->epoll < 0 ? poller->epoll : 0;
    if (r == 0 && wakes) r = watch_wake(poller);
    if (r == 0)
        *out = poller;
    else
        azc__poller_close(poller);
    return r;
}

int azc__poller_fd(const azc_poller *poller) { return poller->epoll; }

bool azc__poller_is_readable(const azc_poller *poller) {
    return sys_ready(poller->epoll, POLLIN) > 0;
}

void azc__poller_abandon(azc_poller *poller) {
    if (poller->epoll >= 0) azc_sys.close(poller->epoll);
    sys_close_both(poller->wake);
}

void azc__poller_close(azc_poller *poller) {
    azc__poller_abandon(poller);
    azc_sys.release(poller);
}

/* (MOD first: mostly epoll knows the fd.  Other code may have closed it, and opened
 * another with its number; then epoll does not.) */
int azc__poller_arm(azc_poller *poller, int fd, int what, uint64_t who) {
    static const uint32_t events[] = {EPOLLIN, EPOLLOUT};
    struct epoll_event event = {.events = EPOLLONESHOT | events[what], .data.u64 = who};
    int r = azc_sys.epoll_ctl(poller->epoll, EPOLL_CTL_MOD, fd, &event);
    if (r == -ENOENT) r = azc_sys.epoll_ctl(poller->epoll, EPOLL_CTL_ADD, fd, &event);
    return r;
}

void azc__poller_forget(azc_poller *poller, int fd) {
    struct epoll_event ignored;
    azc_sys.epoll_ctl(poller->epoll, EPOLL_CTL_DEL, fd, &ignored);
}

int azc__poller_wait(azc_poller *poller, uint64_t *who, int max, int timeout_us) {
    struct epoll_event events[64];
    int count = 0;
    if (max > 64) max = 64;
    int n = azc_sys.epoll_wait(poller->epoll, events, max, timeout_us);
    for (int i = 0; i < n; i++) {
        if (events[i].data.u64 == WAKE)
            azc_sys.clear(poller->wake[0]);
        else
            who[count++] = events[i].data.u64;
    }
    return count;
}

void azc__poller_wake(azc_poller *poller) { azc_sys.signal(poller->wake[1]); }
