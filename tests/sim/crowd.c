/* crowd.c - the costs of one of very many channels, in memory and work.
 *
 * Usage: crowd CHANNELS.  The sockets are simulated: each takes ROOM bytes, and no more
 * until its peer has read them.  Everything else is real, including the threads.
 *
 * idle    each channel is open
 * stuck   each has a message, half of it sent
 * round   all peers read at once, and every message ends
 * one     one channel sends message after message, while all others are stuck
 *
 * Prints a line of JSON: bytes of memory for each channel, threads, and for a message
 * the system calls that send and that wait, and microseconds of processor time (for
 * `one` those of the fastest batch: busy neighbours make many of them slower).  It
 * cannot show what a kernel needs for that many sockets.
 */
#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>

#include "azc.h"
#include "check.h"
#include "sys.h"

enum { FIRST_FD = 1 << 20, ROOM = 1000, MESSAGE = 2 * ROOM };
enum { BATCHES = 100, BATCH = 10 }; /* one: batches, and messages in each */

static struct azc_sys real;
static atomic_long allocated, sends, waits, threads;

/* ---- sockets ----------------------------------------------------------- */

static struct socket {
    size_t level;   /* not read by the peer */
    uint64_t armed; /* who the poller reports once there is room, or 0 */
} *sockets;

/* Armed sockets that have room; all of it under the lock. */
static struct {
    pthread_mutex_t lock;
    uint64_t *who;
    int count;
    int wake_fd;
} ready = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Called with the lock held. */
static void report(struct socket *sock) {
    if (!sock->armed || sock->level) return;
    ready.who[ready.count++] = sock->armed;
    sock->armed = 0;
}

/* Let the peers of these sockets read everything. */
static void read_all(int from, int to) {
    pthread_mutex_lock(&ready.lock);
    for (int i = from; i < to; i++) {
        sockets[i].level = 0;
        report(&sockets[i]);
    }
    pthread_mutex_unlock(&ready.lock);
    real.signal(ready.wake_fd);
}

static ssize_t send_some(int fd, const struct iovec *vec, int count,
                         const azc_fds *fds) {
    CHECK(!fds);
    struct socket *sock = &sockets[fd - FIRST_FD];
    size_t n = 0;
    sends++;
    for (int i = 0; i < count; i++) n += vec[i].iov_len;
    pthread_mutex_lock(&ready.lock);
    if (n > ROOM - sock->level) n = ROOM - sock->level;
    sock->level += n;
    pthread_mutex_unlock(&ready.lock);
    return n ? (ssize_t)n : -EAGAIN;
}

static int is_socket(int fd, struct stat *st) {
    *st = (struct stat){.st_mode = S_IFSOCK, .st_dev = 1, .st_ino = (ino_t)fd};
    return 0;
}

static int nothing(int fd) {
    (void)fd;
    return 0;
}

static int close_one(int fd) { return fd >= FIRST_FD ? 0 : real.close(fd); }

static int arm(int epoll, int how, int fd, struct epoll_event *event) {
    if (fd < FIRST_FD) {
        ready.wake_fd = fd;
        return real.epoll_ctl(epoll, how, fd, event);
    }
    pthread_mutex_lock(&ready.lock);
    struct socket *sock = &sockets[fd - FIRST_FD];
    sock->armed = how == EPOLL_CTL_DEL ? 0 : event->data.u64;
    report(sock);
    pthread_mutex_unlock(&ready.lock);
    return 0;
}

static int wait_for_room(int epoll, struct epoll_event *events, int max,
                         int timeout_us) {
    int count = 0;
    waits++;
    pthread_mutex_lock(&ready.lock);
    while (ready.count && count < max)
        events[count++] = (struct epoll_event){.events = EPOLLOUT,
                                               .data.u64 = ready.who[--ready.count]};
    pthread_mutex_unlock(&ready.lock);
    return count ? count : real.epoll_wait(epoll, events, max, timeout_us);
}

/* ---- counters ---------------------------------------------------------- */

static void *allocate(size_t n) {
    void *memory = real.allocate(n);
    if (memory) allocated += (long)malloc_usable_size(memory);
    return memory;
}

static void release(void *memory) {
    if (memory) allocated -= (long)malloc_usable_size(memory);
    real.release(memory);
}

static int start(pthread_t *thread, void *(*run)(void *), void *arg) {
    threads++;
    return real.thread_start(thread, run, arg);
}

static double processor_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

typedef struct tally {
    long sends, waits;
} tally;

static tally now(void) { return (tally){sends, waits}; }

static void say(const char *what, tally then, int messages, double us) {
    printf(", \"%s_us\": %.3f, \"%s_sends\": %.3f, \"%s_waits\": %.3f", what, us, what,
           (double)(sends - then.sends) / messages, what,
           (double)(waits - then.waits) / messages);
}

/* ---- the four situations ----------------------------------------------- */

static char message[MESSAGE];
static azc_id port, *channels;

static void submit(int i) {
    struct iovec all = {message, MESSAGE};
    CHECK(azc_sendv(channels[i], port, (uint64_t)i + 1, &all, 1, NULL, 0, 0) ==
          -EINPROGRESS);
}

static void take(int expected) {
    azc_event events[64];
    struct pollfd told = {azc_port_fd(port), POLLIN, 0};
    uint64_t recorded = 0;
    while (expected) {
        CHECK(poll(&told, 1, 60000) == 1);
        int count = azc_port_take(port, recorded, events, 64);
        for (int i = 0; i < count; i++)
            CHECK(events[i].status == 0 && events[i].sent == MESSAGE);
        expected -= count;
        if (!count) continue;
        recorded = events[count - 1].sequence;
        if (count < 64 || !expected) azc_port_take(port, recorded, NULL, 0);
    }
}

static double one_batch_us(void) {
    double start_us = processor_us();
    for (int i = 0; i < BATCH; i++) {
        read_all(0, 1);
        submit(0);
        read_all(0, 1);
        take(1);
    }
    return processor_us() - start_us;
}

static void simulate(void) {
    real = azc_sys;
    azc_sys.send = send_some;
    azc_sys.identify = is_socket;
    azc_sys.linger = azc_sys.no_sigpipe = azc_sys.shutdown = nothing;
    azc_sys.close = close_one;
    azc_sys.epoll_ctl = arm;
    azc_sys.epoll_wait = wait_for_room;
    azc_sys.allocate = allocate;
    azc_sys.release = release;
    azc_sys.thread_start = start;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    int n = atoi(argv[1]);
    simulate();
    sockets = calloc((size_t)n, sizeof *sockets);
    ready.who = calloc((size_t)n, sizeof *ready.who);
    channels = calloc((size_t)n, sizeof *channels);
    CHECK(n > 1 && sockets && ready.who && channels);
    CHECK(azc_port_open(&port) == 0);
    long before = allocated;
    for (int i = 0; i < n; i++)
        CHECK(azc_open(FIRST_FD + i, AZC_OUT, &channels[i]) == 0);
    printf("{\"channels\": %d, \"idle\": %.0f", n, (double)(allocated - before) / n);

    tally then = now();
    double start_us = processor_us();
    for (int i = 0; i < n; i++) submit(i);
    printf(", \"stuck\": %.0f", (double)(allocated - before) / n);
    read_all(0, n);
    take(n);
    say("round", then, n, (processor_us() - start_us) / n);

    read_all(0, n);
    for (int i = 0; i < n; i++) submit(i);
    read_all(0, 1);
    take(1);
    then = now();
    double least_us = 1e9;
    for (int i = 0; i < BATCHES; i++) {
        double us = one_batch_us();
        if (us < least_us) least_us = us;
    }
    say("one", then, BATCHES * BATCH, least_us / BATCH);
    read_all(1, n);
    take(n - 1);

    printf(", \"threads\": %ld}\n", threads);
    for (int i = 0; i < n; i++) CHECK(azc_free(channels[i]) == 0);
    CHECK(azc_port_close(port) == 0);
    return 0;
}
