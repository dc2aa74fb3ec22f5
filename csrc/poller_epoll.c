/* poller_epoll.c - Linux: epoll for the fds, an eventfd for the wake. */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "poller.h"
#include "sys.h"

int azc__notifier_open(azc_notifier *notifier) {
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0) return -errno;
    notifier->read_fd = notifier->write_fd = fd;
    return 0;
}

void azc__notifier_close(azc_notifier *notifier) { close(notifier->read_fd); }

void azc__notifier_signal(azc_notifier *notifier) {
    eventfd_write(notifier->write_fd, 1);
}

void azc__notifier_clear(azc_notifier *notifier) {
    eventfd_t ignored;
    eventfd_read(notifier->read_fd, &ignored);
}

struct azc_poller {
    int epoll;
    azc_notifier wake;
};

int azc__poller_open(azc_poller **out) {
    azc_poller *poller = azc_sys.allocate(sizeof *poller);
    if (!poller) return -ENOMEM;
    int r = azc__notifier_open(&poller->wake);
    if (r < 0) goto no_notifier;
    poller->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (poller->epoll < 0) goto no_epoll;
    struct epoll_event wake = {.events = EPOLLIN, .data.ptr = NULL};
    if (epoll_ctl(poller->epoll, EPOLL_CTL_ADD, poller->wake.read_fd, &wake))
        goto no_wake;
    *out = poller;
    return 0;
no_wake:
    r = -errno;
    close(poller->epoll);
    azc__notifier_close(&poller->wake);
    azc_sys.release(poller);
    return r;
no_epoll:
    r = -errno;
    azc__notifier_close(&poller->wake);
no_notifier:
    azc_sys.release(poller);
    return r;
}

void azc__poller_close(azc_poller *poller) {
    close(poller->epoll);
    azc__notifier_close(&poller->wake);
    azc_sys.release(poller);
}

void azc__poller_abandon(azc_poller *poller) {
    close(poller->epoll);
    azc__notifier_close(&poller->wake);
}

int azc__poller_arm(azc_poller *poller, int fd, int what, bool known,
                    void *who) {
    static const uint32_t events[] = {0, EPOLLIN, EPOLLOUT};
    struct epoll_event event = {.events = EPOLLONESHOT | events[what],
                                .data.ptr = who};
    int how = known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    return epoll_ctl(poller->epoll, how, fd, &event) < 0 ? -errno : 0;
}

void azc__poller_forget(azc_poller *poller, int fd) {
    struct epoll_event ignored;
    epoll_ctl(poller->epoll, EPOLL_CTL_DEL, fd, &ignored);
}

/* epoll_wait counts in milliseconds; another poll of the epoll fd does not. */
static void nap(const azc_poller *poller, int timeout_us) {
    struct pollfd ready = {poller->epoll, POLLIN, 0};
    struct timespec most = {timeout_us / 1000000, timeout_us % 1000000 * 1000};
    ppoll(&ready, 1, &most, NULL);
}

int azc__poller_wait(azc_poller *poller, void **who, int max, int timeout_us) {
    struct epoll_event events[64];
    int timeout_ms = timeout_us < 0 ? -1 : 0;
    if (max > 64) max = 64;
    if (timeout_us > 0) nap(poller, timeout_us);
    int n = epoll_wait(poller->epoll, events, max, timeout_ms), count = 0;
    for (int i = 0; i < n; i++) {
        if (events[i].data.ptr)
            who[count++] = events[i].data.ptr;
        else
            azc__notifier_clear(&poller->wake);
    }
    return count;
}

void azc__poller_wake(azc_poller *poller) {
    azc__notifier_signal(&poller->wake);
}
