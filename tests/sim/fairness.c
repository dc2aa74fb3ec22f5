/* fairness.c - a pump serves all, however much one channel or message has to move.
 *
 * The kernel here takes whatever it is given, at once, so a pump stops only when its
 * budget is spent:
 *   - two sockets share a pump: the one with much to send lets the other go first;
 *   - a pipe that is lent pages has its own pump, which must still ask now and then
 *     how far the reader is, or no memory would come back;
 *   - a big message in a pipe ends before the next one begins, however many are
 *     queued.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "azc.h"
#include "sys.h"

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "fairness: not %s\n", #condition);                 \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

enum { FEW = 1, MESSAGES = 32 };
static const size_t MUCH = 32 << 20, FRAME = 1 << 20;

static atomic_size_t taken;    /* bytes of the big message */
static atomic_bool all_queued; /* everything was submitted */
static int other_fd;

static size_t size_of(const struct iovec *vec, int count) {
    size_t n = 0;
    for (int i = 0; i < count; i++) n += vec[i].iov_len;
    return n;
}

static int put(azc_id channel, azc_id port, uint64_t token, void *data,
               size_t n) {
    struct iovec all = {data, n};
    return azc_sendv(channel, port, token, &all, 1, NULL, 0, 0);
}

/* Takes events for good; returns how many there were.  The pump's thread takes some
 * too, and none is to be counted twice. */
static int take(azc_id port, azc_event *events, int max) {
    static pthread_mutex_t taking = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&taking);
    int count = azc_port_take(port, 0, events, max);
    if (count > 0) azc_port_take(port, events[count - 1].sequence, NULL, 0);
    pthread_mutex_unlock(&taking);
    return count;
}

static void wait_for_event(azc_id port, azc_event *event) {
    struct pollfd told = {azc_port_fd(port), POLLIN, 0};
    CHECK(poll(&told, 1, 10000) == 1);
    CHECK(take(port, event, 1) == 1);
    CHECK(event->status == 0);
}

/* ---- two sockets ------------------------------------------------------- */

/* The submitter makes the first call for each; the pump gets the rest. */
static ssize_t send_all(int fd, const struct iovec *vec, int count) {
    static bool asked_much, asked_other;
    bool is_other = fd == other_fd;
    bool *asked = is_other ? &asked_other : &asked_much;
    size_t n = size_of(vec, count);
    if (!*asked) {
        *asked = true;
        return -EAGAIN;
    }
    while (!all_queued) sched_yield();
    if (is_other) CHECK(taken < MUCH);
    if (!is_other) taken += n;
    return (ssize_t)n;
}

static void two_sockets(void) {
    int a[2], b[2];
    azc_id much, other, port;
    azc_event event;
    char *memory = calloc(1, MUCH);
    CHECK(memory && socketpair(AF_UNIX, SOCK_STREAM, 0, a) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, b) == 0);
    azc_sys.send = send_all;
    other_fd = b[0];
    CHECK(azc_port_open(&port) == 0);
    CHECK(azc_open(a[0], AZC_OUT, &much) == 0);
    CHECK(azc_open(b[0], AZC_OUT, &other) == 0);
    CHECK(put(much, port, 1, memory, MUCH) == -EINPROGRESS);
    CHECK(put(other, port, 2, memory, FEW) == -EINPROGRESS);
    all_queued = true;
    wait_for_event(port, &event);
    CHECK(event.token == 2);
    wait_for_event(port, &event);
    CHECK(taken == MUCH);
    CHECK(azc_free(much) == 0 && azc_free(other) == 0);
    CHECK(azc_port_close(port) == 0);
    close(a[1]);
    close(b[1]);
    free(memory);
}

/* ---- a pipe that is lent pages ----------------------------------------- */

static azc_id frames_port;
static atomic_int back;

static void take_back(void) {
    azc_event events[MESSAGES];
    back += take(frames_port, events, MESSAGES);
}

/* Counts what comes back while the pump still has much to lend. */
static ssize_t lend_all(int fd, const struct iovec *vec, int count) {
    static bool asked;
    static size_t lent;
    (void)fd;
    if (!asked) {
        asked = true;
        return -EAGAIN;
    }
    while (!all_queued) sched_yield();
    take_back();
    lent += size_of(vec, count);
    if (lent == MESSAGES * FRAME) CHECK(back > 0);
    return (ssize_t)size_of(vec, count);
}

static ssize_t all_is_read(int fd) {
    (void)fd;
    return 0;
}

static void lent_pipe(void) {
    int ends[2];
    azc_id channel, pool;
    all_queued = false;
    azc_sys.lend = lend_all;
    azc_sys.unread = all_is_read;
    CHECK(pipe(ends) == 0);
    CHECK(azc_pool_open(FRAME, 1, &pool) == 0);
    CHECK(azc_port_open(&frames_port) == 0);
    CHECK(azc_open(ends[1], AZC_OUT | AZC_OWN | AZC_READS, &channel) == 0);
    for (uint64_t i = 0; i < MESSAGES; i++)
        CHECK(put(channel, frames_port, i, azc_pool_slot(pool, 0), FRAME) ==
              -EINPROGRESS);
    all_queued = true;
    while (back < MESSAGES) {
        struct pollfd told = {azc_port_fd(frames_port), POLLIN, 0};
        CHECK(poll(&told, 1, 10000) == 1);
        take_back();
    }
    CHECK(azc_free(channel) == 0 && azc_port_close(frames_port) == 0);
    CHECK(azc_pool_close(pool) == 0);
    close(ends[0]);
}

/* ---- big messages in a pipe --------------------------------------------- */

static char *second;
static atomic_bool second_begun;

static ssize_t write_all(int fd, const void *data, size_t n) {
    azc_event event;
    (void)fd;
    while (!all_queued) sched_yield();
    if (data == second) {
        CHECK(take(frames_port, &event, 1) == 1 && event.token == 0);
        second_begun = true;
    }
    return (ssize_t)n;
}

static void big_messages(void) {
    int ends[2];
    azc_id channel;
    azc_event event;
    char *memory = calloc(2, 2 * FRAME);
    second = memory + 2 * FRAME;
    all_queued = false;
    azc_sys.write_piece = write_all;
    CHECK(memory && pipe(ends) == 0);
    CHECK(azc_port_open(&frames_port) == 0);
    CHECK(azc_open(ends[1], AZC_OUT | AZC_OWN, &channel) == 0);
    for (uint64_t i = 0; i < 2; i++)
        CHECK(put(channel, frames_port, i, memory + i * 2 * FRAME, 2 * FRAME) ==
              -EINPROGRESS);
    all_queued = true;
    while (!second_begun) sched_yield(); /* the pump takes the first event */
    wait_for_event(frames_port, &event);
    CHECK(event.token == 1);
    CHECK(azc_free(channel) == 0 && azc_port_close(frames_port) == 0);
    close(ends[0]);
    free(memory);
}

int main(void) {
    two_sockets();
    lent_pipe();
    big_messages();
    return 0;
}
