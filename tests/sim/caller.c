/* caller.c - who writes a big message: the thread that sends it, or the pump.
 *
 * The policy is csrc/caller.h's: with two cores, and a reader that keeps up, the
 * sender writes.  Everywhere else the pump does, and the sender returns at once.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "azc.h"
#include "pace.h"
#include "sys.h"

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "caller: not %s, %s\n", #condition, what);         \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

enum { SMALL = 64 << 10, MIB = 1 << 20, BIG = 6 * MIB, HUGE = 9 * MIB };

static const char *what;
static int cores;
static char *memory;

static int cores_here(void) { return cores; }

/* ---- a pipe that takes everything, but says once that it is full -------- */

static pthread_t sender;
static atomic_size_t by_sender, by_pump, full_after;
static atomic_uint_fast64_t now = 1, ns_per_call;

static uint64_t now_ns(void) { return now; }

static ssize_t write_all(int fd, const void *data, size_t n) {
    bool is_sender = pthread_equal(pthread_self(), sender);
    atomic_size_t *bytes = is_sender ? &by_sender : &by_pump;
    (void)fd, (void)data;
    if (full_after && by_sender + by_pump >= full_after) {
        full_after = 0;
        return -EAGAIN;
    }
    *bytes += n;
    now += ns_per_call;
    return (ssize_t)n;
}

static ssize_t write_pieces(int fd, const struct iovec *vec, int count,
                            int how) {
    ssize_t done = 0;
    (void)how;
    for (int i = 0; i < count; i++) {
        ssize_t r = write_all(fd, vec[i].iov_base, vec[i].iov_len);
        if (r < 0) return done ? done : r;
        done += r;
    }
    return done;
}

typedef struct stream {
    int ends[2];
    azc_id port, channel;
} stream;

static void open_stream(stream *it, int flags) {
    CHECK(pipe(it->ends) == 0 && azc_port_open(&it->port) == 0);
    CHECK(azc_open(it->ends[1], flags, &it->channel) == 0);
    azc_bind_port(it->channel, it->port, 1, 1 << 30);
    by_sender = by_pump = full_after = 0;
}

static void wait_for_pump(stream *it) {
    struct pollfd told = {azc_port_fd(it->port), POLLIN, 0};
    azc_event event;
    CHECK(poll(&told, 1, 10000) == 1);
    CHECK(azc_port_take(it->port, 0, &event, 1) == 1 && event.status == 0);
    CHECK(azc_port_take(it->port, event.sequence, NULL, 0) == 0);
    azc_bind_port(it->channel, it->port, 1, 1 << 30);
}

static void close_stream(stream *it) {
    CHECK(azc_free(it->channel) == 0 && azc_port_close(it->port) == 0);
    close(it->ends[0]);
}

/* Messages so small that the sender always writes them. */
static void send_small(stream *it, size_t bytes) {
    for (size_t sent = 0; sent < bytes; sent += SMALL)
        CHECK(azc_send_bound(it->channel, memory, SMALL) == 0);
    CHECK(by_sender == bytes && by_pump == 0);
    by_sender = 0;
}

/* Two cores, and a reader that is known to keep up. */
static void open_with_fast_reader(stream *it, const char *name) {
    what = name;
    cores = 2;
    open_stream(it, AZC_OUT | AZC_OWN);
    send_small(it, 4 * MIB);
}

/* ---- who writes ----------------------------------------------------------- */

static void expect_sender(stream *it, size_t n) {
    CHECK(azc_send_bound(it->channel, memory, n) == 0);
    CHECK(by_sender == n && by_pump == 0);
}

static void expect_pump(stream *it, size_t n) {
    CHECK(azc_send_bound(it->channel, memory, n) == -EINPROGRESS);
    wait_for_pump(it);
    CHECK(by_sender <= SMALL && by_sender + by_pump == n);
}

typedef void expectation(stream *it, size_t n);

static void check(const char *name, int cores_then, int flags, size_t before,
                  size_t n, expectation *expect) {
    stream it;
    what = name;
    cores = cores_then;
    open_stream(&it, flags);
    send_small(&it, before);
    expect(&it, n);
    close_stream(&it);
}

/* The sender writes for three milliseconds at most. */
static void check_deadline(void) {
    stream it;
    open_with_fast_reader(&it, "it takes too long");
    ns_per_call = 1000000 / (MIB / SHORTEST_PIECE); /* a millisecond a MiB */
    CHECK(azc_send_bound(it.channel, memory, BIG) == -EINPROGRESS);
    wait_for_pump(&it);
    CHECK(by_sender >= 3 * MIB && by_sender <= 4 * MIB);
    CHECK(by_sender + by_pump == BIG);
    ns_per_call = 0;
    close_stream(&it);
}

/* The pump writes the rest, and also the next message.  If that meets a full pipe
 * too, the pump writes once more, until the reader has shown that it keeps up. */
static void check_full(void) {
    stream it;
    open_with_fast_reader(&it, "the pipe is full");
    full_after = 5 * MIB;
    CHECK(azc_send_bound(it.channel, memory, BIG) == -EINPROGRESS);
    wait_for_pump(&it);
    CHECK(by_sender == 5 * MIB && by_pump == MIB);
    for (int i = 0; i < 2; i++) {
        by_sender = by_pump = 0;
        full_after = i == 0 ? 5 * MIB : 0;
        expect_pump(&it, BIG);
    }
    by_pump = 0;
    expect_sender(&it, BIG);
    azc_stats stats;
    azc_get_stats(it.channel, &stats);
    CHECK(stats.waits == 2 && stats.bytes == 28 * MIB);
    CHECK(stats.calls == stats.bytes / SHORTEST_PIECE + stats.waits);
    close_stream(&it);
}

/* A sender that does not wait for the end has other things to do. */
static void check_put(void) {
    stream it;
    open_with_fast_reader(&it, "a message that is put");
    struct iovec all = {memory, BIG};
    CHECK(azc_sendv(it.channel, it.port, 7, &all, 1, NULL, 0, 0) ==
          -EINPROGRESS);
    wait_for_pump(&it);
    CHECK(by_sender == 0 && by_pump == BIG);
    close_stream(&it);
}

int main(void) {
    const int own = AZC_OUT | AZC_OWN, lends = own | AZC_READS;
    memory = calloc(1, HUGE);
    sender = pthread_self();
    azc_sys.cores = cores_here;
    azc_sys.now_ns = now_ns;
    azc_sys.write_piece = write_all;
    azc_sys.write_pipe = write_pieces;
    check("two cores", 2, own, 4 * MIB, BIG, expect_sender);
    check("one core", 1, own, 4 * MIB, BIG, expect_sender);
    check("three cores", 3, own, 4 * MIB, BIG, expect_pump);
    check("a reader that is not known yet", 2, own, 0, BIG, expect_pump);
    check("a reader that is hardly known", 2, own, MIB, BIG, expect_pump);
    check("too long for the sender", 2, own, 4 * MIB, HUGE, expect_pump);
    check("a pipe that is lent pages", 2, lends, 4 * MIB, BIG, expect_pump);
    check_deadline();
    check_full();
    check_put();
    free(memory);
    return 0;
}
