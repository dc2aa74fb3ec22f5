/* submitting.c - what each call of csrc/submit.c returns, moves and reports.
 *
 * The simulation draws its situations; here they are made by hand, over the same kernel
 * without its faults.  A pump runs only while this thread is idle, so bytes that a call
 * has moved are distinct from those that it has left to the pump.
 *
 * The table WAYS lists several ways to send a message.  A property of all of them is
 * checked with each, and the bytes that a reader has are always compared with the sent
 * ones, in order.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "channel.h"
#include "kernel.h"
#include "sys.h"
#include "threads.h"

enum {
    CALM = 4, /* a seed in which no thread yields by itself */
    KIB = 1 << 10,
    MIB = 1 << 20,
    LONGEST = 12 * MIB,
    PLENTY = 1 << 30, /* more than any budget, limit or room here */
    PAGE = 4096,
};

static char what[200]; /* the check that runs now */
static char *memory, *expected;

#define CHECK(condition) SIM_CHECK(condition, "%s: not %s", what, #condition)

static struct azc_sys before;

static int refuse_thread(pthread_t *thread, void *(*run)(void *), void *arg) {
    (void)thread, (void)run, (void)arg;
    return -EAGAIN;
}

/* ---- a stream ------------------------------------------------------------ */

typedef struct stream {
    sim_file *file;
    sim_flow *flow;
    azc_id channel, port;
    uint64_t token;    /* of the latest call */
    uint64_t recorded; /* the last event that was taken */
    unsigned budget;
    uint64_t sent; /* bytes of `expected` */
} stream;

static bool is_caller(int thread) { return thread == 0; }

static void lent(const void *from) { (void)from; }

static void replaced(const void *from, size_t n) { (void)from, (void)n; }

static void begin(const char *of, const char *which) {
    snprintf(what, sizeof what, "%s, %s", of, which);
    sim_begin(CALM, false);
    kernel_begin();
    kernel_rates = (sim_rates){0};
    before = azc_sys;
}

static stream open_stream(int kind, int flags, size_t capacity) {
    bool out = flags & AZC_OUT;
    stream it = {.file = kernel_new_file(kind, capacity), .budget = PLENTY};
    it.file->linger = 0;
    it.file->unpollable = false;
    it.flow = &it.file->flow[out];
    it.flow->may_lend = flags & AZC_READS;
    CHECK(azc_port_open(&it.port) == 0);
    CHECK(azc_open(it.file->number, flags, &it.channel) == 0);
    CHECK(azc_bind_port(it.channel, it.port, 0, it.budget) == 0);
    return it;
}

/* Takes the port's next event. */
static azc_event take(stream *it) {
    azc_event event = {0};
    int count = azc_port_take(it->port, it->recorded, &event, 1);
    if (count == 1) it->recorded = event.sequence;
    return event;
}

static bool is_silent(stream *it) { return take(it).token == 0; }

static bool tells(stream *it, uint64_t token, int status, uint64_t bytes) {
    azc_event event = take(it);
    return event.token == token && event.status == status && event.sent == bytes;
}

static azc_stats stats_of(const stream *it) {
    azc_stats stats;
    CHECK(azc_get_stats(it->channel, &stats) == 0);
    return stats;
}

/* The port has no event or note left. */
static void close_port(stream *it) {
    CHECK(is_silent(it));
    CHECK(azc_port_close(it->port) == 0);
}

static void close_stream(stream *it) {
    CHECK(is_silent(it));
    CHECK(azc_free(it->channel) == 0);
    sim_idle();
    close_port(it);
}

/* Nothing that the calls made is left: no thread, memory or lock. */
static void end(void) {
    sim_idle();
    sim_end();
    azc_sys = before;
    kernel_end();
}

static void end_with(stream *it) {
    close_stream(it);
    end();
}

/* The reader takes everything, and what comes then, until nothing does. */
static void read_on(stream *it) {
    do {
        peer_read(it->flow, PLENTY);
        sim_idle();
    } while (it->flow->level);
}

static bool has_arrived(const stream *it) {
    return it->flow->moved == it->sent &&
           memcmp(it->flow->log, expected, it->sent) == 0;
}

/* ---- the ways to send ---------------------------------------------------- */

/* New bytes, so that no two messages can be mistaken for each other. */
static const char *fresh(stream *it, size_t n) {
    char *data = expected + it->sent;
    CHECK(it->sent + n <= LONGEST);
    pattern_fill(data, 77, it->sent, n);
    it->sent += n;
    it->token++;
    return data;
}

/* The message did not get into the queue. */
static int forget(stream *it, size_t n, int r) {
    if (r < 0 && r != -EINPROGRESS && r != -EBUSY) it->sent -= n;
    return r;
}

static void bind(stream *it) {
    azc_bind_port(it->channel, it->port, it->token, it->budget);
}

static int bound(stream *it, size_t n, int messages, int ask_room) {
    const char *data = fresh(it, n);
    bind(it);
    return forget(it, n,
                  azc_send_bound(it->channel, it->token, data, n, messages, ask_room));
}

static int by_bound(stream *it, size_t n) { return bound(it, n, 1, 0); }

static int by_put(stream *it, size_t n) { return bound(it, n, 1, 1); }

static int by_batch(stream *it, size_t n) { return bound(it, n, 2, 0); }

/* Sends to one seat; checks that no other is looked at. */
static int to_seat(stream *it, azc_tally *tally, const struct iovec *vec, int count) {
    azc_seat seats[] = {{it->channel, it->token, tally}, {0, 0, NULL}};
    int which[] = {99, 99};
    int found = azc_send_to_all(seats, 1, vec, count, 0, which);
    CHECK(found == (tally->result != 0) && which[1] == 99);
    CHECK(which[0] == (found ? 0 : 99));
    return tally->result;
}

/* Like the other ways, but it never returns 1. */
static int by_all(stream *it, size_t n) {
    const char *data = fresh(it, n);
    struct iovec vec[] = {{(void *)(uintptr_t)data, n / 2},
                          {(void *)(uintptr_t)(data + n / 2), n - n / 2},
                          {memory, 7 /* is not to be sent */}};
    azc_tally tally = {.messages = 7, .bytes = 70, .result = 99};
    bind(it);
    int r = to_seat(it, &tally, vec, 2);
    CHECK(tally.messages == 7 + (r == 0));
    CHECK(tally.bytes == 70 + (r == 0 ? n : 0));
    return forget(it, n, r);
}

static int by_pieces(stream *it, size_t n) {
    char *data = (char *)(uintptr_t)fresh(it, n);
    struct iovec vec[] = {{data, n / 2}, {data + n / 2, n - n / 2}};
    return forget(it, n,
                  azc_sendv(it->channel, it->port, it->token, vec, 2, NULL, 0, false));
}

static int by_asking(stream *it, size_t n) {
    struct iovec vec = {(void *)(uintptr_t)fresh(it, n), n};
    uint64_t sizes[] = {n / 2, n - n / 2};
    return forget(it, n,
                  azc_sendv(it->channel, it->port, it->token, &vec, 1, sizes, 2, true));
}

typedef struct way {
    const char *name;
    int (*send)(stream *it, size_t n);
    bool for_all;  /* its result is never 1 */
    bool attempts; /* it needs no operation if everything is sent at once */
} way;

static const way WAYS[] = {
    {"azc_send_bound", by_bound, false, true},
    {"azc_send_bound that asks for room", by_put, false, true},
    {"azc_send_bound of a batch", by_batch, false, true},
    {"azc_send_to_all", by_all, true, true},
    {"azc_sendv", by_pieces, false, false},
    {"azc_sendv of two messages", by_asking, false, false},
};
enum { WAYS_COUNT = sizeof WAYS / sizeof *WAYS };

typedef struct kind {
    const char *name;
    int kind, flags;
    bool at_once; /* a submitting call itself moves bytes */
} kind;

static const kind KINDS_OF_FD[] = {
    {"a socket", SOCKET, AZC_OUT, true},
    {"a pipe", PIPE, AZC_OUT, true},
    {"a pipe of ours", PIPE, AZC_OUT | AZC_OWN, true},
    {"a socket that is lent to", SOCKET, AZC_OUT | AZC_OWN | AZC_READS, true},
    {"a pipe that is lent to", PIPE, AZC_OUT | AZC_OWN | AZC_READS, true},
    {"a pipe that may block", PIPE, AZC_OUT | AZC_UNTRUSTED, false},
    {"a file", REGULAR, AZC_OUT, false},
};
enum { KINDS_COUNT = sizeof KINDS_OF_FD / sizeof *KINDS_OF_FD };

static stream open_kind(const kind *fd, size_t capacity) {
    return open_stream(fd->kind, fd->flags, capacity);
}

/* ---- what holds for each way and each kind of fd ------------------------- */

typedef void situation(const way *way, const kind *fd);

/* Each allocation fails once.  Then nothing of the message is out, and the next message
 * finds an unchanged channel. */
static void send_without_memory(const way *way, const kind *fd) {
    stream it = open_kind(fd, MIB);
    int k = 0;
    do {
        kernel_allocations_left = k;
        int r = way->send(&it, 1500);
        kernel_allocations_left = -1;
        if (r != -ENOMEM) break;
        CHECK(it.flow->moved == 0 && stats_of(&it).queued == 0);
    } while (++k < 9);
    CHECK(k == 2 && is_silent(&it));
    sim_idle();
    CHECK(has_arrived(&it));
    if (!fd->at_once) CHECK(tells(&it, it.token, 0, 1500));
    kernel_allocations_left = fd->at_once && way->attempts ? 0 : -1;
    CHECK(way->send(&it, 1500) == (fd->at_once ? 0 : -EINPROGRESS));
    kernel_allocations_left = -1;
    sim_idle();
    CHECK(has_arrived(&it));
    if (!fd->at_once) CHECK(tells(&it, it.token, 0, 1500));
    end_with(&it);
}

/* If no pump can be started, the loop of the message's port tries again. */
static void send_without_pump(const way *way, const kind *fd) {
    stream it = open_kind(fd, 1000);
    azc_sys.thread_start = refuse_thread;
    CHECK(way->send(&it, 3000) == -EINPROGRESS);
    CHECK(kernel_signalled(azc_port_fd(it.port)));
    azc_sys.thread_start = before.thread_start;
    CHECK(is_silent(&it));
    CHECK(!kernel_signalled(azc_port_fd(it.port)));
    read_on(&it);
    CHECK(has_arrived(&it) && tells(&it, it.token, 0, 3000));
    end_with(&it);
}

/* A send counts once, and once more for each 4 KiB, even if it is empty. */
static void send_on_budget(const way *way, const kind *fd) {
    static const size_t lengths[] = {0, 4095, 4096, 8192};
    static const int results[] = {0, 0, 0, 1};
    if (!fd->at_once) return end();
    stream it = open_kind(fd, MIB);
    it.budget = 7;
    bind(&it);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 4; i++)
            CHECK(way->send(&it, lengths[i]) == (way->for_all ? 0 : results[i]));
    }
    it.budget = 3;
    bind(&it);
    CHECK(way->send(&it, 0) == 0);
    CHECK(way->send(&it, 0) == 0);
    CHECK(way->send(&it, 0) == !way->for_all);
    CHECK(has_arrived(&it));
    end_with(&it);
}

/* The loan of a page ends when it was read, whatever was sent after it. */
static void send_after_loan(const way *way, const kind *fd) {
    if (!(fd->flags & AZC_READS)) return end();
    azc_id pool;
    stream it = open_kind(fd, MIB);
    CHECK(azc_pool_open(PAGE, 1, &pool) == 0);
    char *slot = azc_pool_slot(pool, 0);
    memcpy(slot, fresh(&it, PAGE), PAGE);
    bind(&it);
    uint64_t loan = it.token;
    CHECK(azc_send_bound(it.channel, loan, slot, PAGE, 1, 0) == -EINPROGRESS);
    CHECK(it.flow->lent == PAGE && stats_of(&it).lent == PAGE);
    CHECK(way->send(&it, 1000) == 0 && it.flow->lent == PAGE);
    peer_read(it.flow, PAGE - 1);
    sim_idle();
    CHECK(is_silent(&it));
    peer_read(it.flow, 1);
    sim_idle();
    CHECK(tells(&it, loan, 0, PAGE) && it.flow->level == 1000);
    CHECK(has_arrived(&it) && azc_pool_close(pool) == 0);
    end_with(&it);
}

typedef struct named {
    const char *name;
    situation *of;
} named;

static const named SITUATIONS[] = {
    {"without memory", send_without_memory},
    {"without a pump", send_without_pump},
    {"until the budget is spent", send_on_budget},
    {"behind a loan", send_after_loan},
};

/* ---- how much a submitting call moves itself ----------------------------- */

typedef struct share {
    const char *name;
    int kind, flags;
    int (*send)(stream *it, size_t n);
    size_t n, moved;
} share;

enum { OURS = AZC_OUT | AZC_OWN, LENDS = OURS | AZC_READS, K = KIB };

static const share SHARES[] = {
    {"socket: an operation", SOCKET, AZC_OUT, by_pieces, MIB, MIB},
    {"socket: more", SOCKET, AZC_OUT, by_pieces, MIB + 1, MIB},
    {"socket: bound", SOCKET, AZC_OUT, by_bound, 4 * MIB, 4 * MIB},
    {"socket: bound, more", SOCKET, AZC_OUT, by_bound, 4 * MIB + 1, MIB},
    {"pipe: an operation", PIPE, OURS, by_pieces, 64 * K, 64 * K},
    {"pipe: more is the pump's", PIPE, OURS, by_pieces, 64 * K + 1, 0},
    {"pipe: bound", PIPE, OURS, by_bound, 64 * K, 64 * K},
    {"pipe: bound, more", PIPE, OURS, by_bound, 64 * K + 1, 0},
    {"lends: an operation", PIPE, LENDS, by_pieces, 64 * K + 1, 64 * K},
    {"lends: bound", PIPE, LENDS, by_bound, 64 * K, 64 * K},
    {"lends: bound, more", PIPE, LENDS, by_bound, 64 * K + 1, 64 * K},
};

static void check_share(const share *of) {
    begin(of->name, "how much is moved at once");
    stream it = open_stream(of->kind, of->flags, PLENTY);
    int r = of->send(&it, of->n);
    CHECK(it.flow->moved == of->moved);
    CHECK(r == (of->moved == of->n ? 0 : -EINPROGRESS));
    sim_idle();
    CHECK(has_arrived(&it));
    if (r < 0) CHECK(tells(&it, it.token, 0, of->n));
    end_with(&it);
}

/* ---- to many at once ----------------------------------------------------- */

/* If a piece is to be lent, the whole message is queued.  (Memory beyond the pieces
 * does not count.) */
static void check_lent_piece(void) {
    azc_id pool;
    azc_tally tally = {.result = 99};
    begin("azc_send_to_all", "a piece that is lent");
    stream it = open_stream(PIPE, LENDS, MIB);
    CHECK(azc_pool_open(PAGE, 1, &pool) == 0);
    char *slot = azc_pool_slot(pool, 0), *data = (char *)fresh(&it, 10 + PAGE);
    memcpy(slot, data + 10, PAGE);
    struct iovec vec[] = {{data, 10}, {slot, PAGE}};
    bind(&it);
    CHECK(to_seat(&it, &tally, vec, 2) == -EINPROGRESS);
    CHECK(it.flow->lent == PAGE && tally.messages == 0);
    read_on(&it);
    CHECK(has_arrived(&it) && tells(&it, it.token, 0, 10 + PAGE));
    CHECK(by_bound(&it, 1) == 0);
    vec[0].iov_base = (char *)fresh(&it, 10);
    bind(&it);
    kernel_allocations_left = 0;
    CHECK(to_seat(&it, &tally, vec, 1) == 0);
    kernel_allocations_left = -1;
    CHECK(has_arrived(&it) && it.flow->lent == PAGE);
    CHECK(azc_pool_close(pool) == 0);
    end_with(&it);
}

static int long_buffer(int fd) { return fd < 0 ? 0 : 2 * PAGE; }

/* On a UNIX socket, a message is lent if the buffer has no room for it. */
static void check_short_message(void) {
    azc_id pool;
    begin("azc_send_bound", "a socket with a long buffer");
    azc_sys.takes_loans = long_buffer;
    stream it = open_stream(SOCKET, LENDS, MIB);
    CHECK(azc_pool_open(2 * PAGE, 1, &pool) == 0);
    char *slot = azc_pool_slot(pool, 0);
    memcpy(slot, fresh(&it, PAGE), PAGE);
    bind(&it);
    CHECK(azc_send_bound(it.channel, it.token, slot, PAGE, 1, 0) == 0);
    memcpy(slot, fresh(&it, 2 * PAGE), 2 * PAGE);
    bind(&it);
    CHECK(azc_send_bound(it.channel, it.token, slot, 2 * PAGE, 1, 0) == -EINPROGRESS);
    CHECK(it.flow->lent == 2 * PAGE);
    read_on(&it);
    CHECK(has_arrived(&it) && tells(&it, it.token, 0, 2 * PAGE));
    CHECK(azc_pool_close(pool) == 0);
    end_with(&it);
}

enum { SEATS = 8 };

static void open_seats(stream *all, azc_seat *seats, azc_tally *tallies) {
    memset(tallies, 0, SEATS * sizeof *tallies);
    for (int i = 0; i < SEATS; i++) {
        all[i] = open_stream(SOCKET, AZC_OUT, i == 2 ? 1 : MIB);
        all[i].token = 10 + (uint64_t)i;
        all[i].budget = i == 1 ? 1 : PLENTY;
        bind(&all[i]);
        seats[i] = (azc_seat){all[i].channel, all[i].token, &tallies[i]};
        tallies[i].result = 9;
    }
}

/* Each seat gets its own answer. */
static void check_all(void) {
    stream all[SEATS];
    azc_seat seats[SEATS];
    azc_tally tallies[SEATS];
    int which[SEATS] = {9, 9, 9, 9, 9, 9, 9, 9};
    const int answers[] = {0,       0,       -EINPROGRESS, -ESHUTDOWN,
                           -ESTALE, -ESTALE, -ESHUTDOWN,   9};
    const int missed[] = {2, 3, 4, 5, 6, 9, 9, 9};
    begin("azc_send_to_all", "several");
    open_seats(all, seats, tallies);
    CHECK(azc_close(seats[3].channel, 0, 0) == 1);
    seats[4].token = 5;
    tallies[5].away = 1;
    CHECK(azc_free(seats[6].channel) == 0);
    struct iovec vec = {memory, 100};
    uint64_t since = azc_sys.now_ns() - 7;
    CHECK(azc_send_to_all(seats, SEATS - 1, &vec, 1, since, which) == 5);
    CHECK(memcmp(which, missed, sizeof which) == 0);
    for (int i = 0; i < SEATS; i++) {
        azc_tally has = tallies[i];
        bool out = i < 2;
        CHECK(has.result == answers[i] && has.messages == out);
        CHECK(has.bytes == 100 * out && has.away == (i == 5));
        CHECK(out ? has.age_ns - 7 <= azc_sys.now_ns() - since : !has.age_ns);
        CHECK(!out || has.age_ns >= 7);
        CHECK(all[i].flow->moved == (out ? 100 : i == 2));
    }
    CHECK(azc_free(seats[2].channel) == 0);
    CHECK(tells(&all[2], 12, -ESHUTDOWN, 1));
    sim_idle();
    for (int i = 0; i < SEATS; i++) {
        if (i != 2 && i != 6) CHECK(azc_free(seats[i].channel) == 0);
        close_port(&all[i]);
    }
    end();
}

/* Two seats of one channel: the second message must not use the first one's token, and
 * no other token is bound then. */
static void check_one_channel_twice(void) {
    begin("azc_send_to_all", "one channel twice");
    stream it = open_stream(SOCKET, AZC_OUT, 1000);
    azc_tally tallies[3] = {0};
    azc_seat seats[] = {{it.channel, 7, &tallies[0]},
                        {it.channel, 7, &tallies[1]},
                        {it.channel, 1, &tallies[2]}};
    struct iovec vec = {(void *)(uintptr_t)fresh(&it, 600), 600};
    int which[] = {9, 9, 9};
    it.token = 7;
    bind(&it);
    CHECK(azc_send_to_all(&seats[1], 1, &vec, 1, 0, which) == 0);
    vec.iov_base = (char *)(uintptr_t)fresh(&it, 600);
    it.token = 7;
    CHECK(azc_send_to_all(seats, 3, &vec, 1, 0, which) == 3);
    CHECK(which[0] == 0 && tallies[0].result == -EINPROGRESS);
    CHECK(which[1] == 1 && tallies[1].result == -ESTALE);
    CHECK(which[2] == 2 && tallies[2].result == -ESTALE);
    CHECK(tallies[0].messages == 0 && tallies[1].messages == 1);
    read_on(&it);
    CHECK(has_arrived(&it) && tells(&it, 7, 0, 600) && is_silent(&it));
    end_with(&it);
}

/* ---- cancelled meanwhile -------------------------------------------------- */

static const stream *submitted;

static ssize_t send_and_cancel(int fd, const struct iovec *vec, int count,
                               const azc_fds *fds) {
    azc_event event;
    CHECK(azc_cancel(submitted->channel, 1, PLENTY, &event) == AZC_LATER);
    return before.send(fd, vec, count, fds);
}

/* The cancel waits until the submitting call returns. */
static void check_cancelled_meanwhile(void) {
    begin("azc_sendv", "cancelled by another thread");
    stream it = open_stream(SOCKET, AZC_OUT, 1000);
    struct iovec vec = {(void *)(uintptr_t)fresh(&it, 3000), 3000};
    submitted = &it;
    azc_sys.send = send_and_cancel;
    CHECK(azc_sendv(it.channel, it.port, 1, &vec, 1, NULL, 0, 0) == -EINPROGRESS);
    azc_sys.send = before.send;
    azc_event event = take(&it);
    CHECK(event.status == -ECANCELED && event.outcome == AZC_RESCUED);
    read_on(&it);
    CHECK(has_arrived(&it));
    end_with(&it);
}

/* ---- messages of a batch ------------------------------------------------- */

static void check_wrong_sizes(void) {
    static const uint64_t sizes[] = {10, 10};
    struct iovec vec = {memory, 21};
    begin("azc_sendv", "sizes of another message");
    stream it = open_stream(SOCKET, AZC_OUT, MIB);
    CHECK(azc_sendv(it.channel, it.port, 1, &vec, 1, sizes, 2, 0) == -EINVAL);
    vec.iov_len = 19;
    CHECK(azc_sendv(it.channel, it.port, 1, &vec, 1, sizes, 2, 0) == -EINVAL);
    CHECK(it.flow->moved == 0);
    end_with(&it);
}

/* A batch gets its sizes once it is queued: then a cancel ends it after the message in
 * progress. */
static void check_sizes(void) {
    static const uint64_t sizes[] = {1000, 1500, 500};
    begin("azc_set_sizes", "a batch");
    stream it = open_stream(SOCKET, AZC_OUT, 1200);
    azc_event event;
    bind(&it);
    CHECK(azc_send_bound(it.channel, 0, fresh(&it, 3000), 3000, 3, 0) == -EINPROGRESS);
    kernel_allocations_left = 0;
    CHECK(azc_set_sizes(it.channel, 0, sizes, 3) == -ENOMEM);
    kernel_allocations_left = -1;
    CHECK(azc_set_sizes(it.channel, 0, sizes, 2) == -EINVAL);
    for (int i = 0; i < 2; i++) /* a repeated call is harmless */
        CHECK(azc_set_sizes(it.channel, 0, sizes, 3) == 0);
    CHECK(azc_set_sizes(it.channel, 5, sizes, 3) == 0);
    CHECK(azc_cancel(it.channel, 0, 5000, &event) == AZC_RESCUED);
    CHECK(tells(&it, 0, 0, 0) == false);
    it.sent = 2500;
    read_on(&it);
    CHECK(has_arrived(&it) && stats_of(&it).messages == 2);
    end_with(&it);
}

/* ---- receiving ----------------------------------------------------------- */

static ssize_t receive(stream *it, size_t n, size_t need) {
    it->token++;
    return azc_recv(it->channel, it->port, it->token, memory, n, need, NULL);
}

static bool has_received(const stream *it, uint64_t at, size_t n) {
    return pattern_equals(memory, kernel_stream_of(it->file), at, n);
}

/* Called at the end of a receive. */
typedef struct ending {
    stream *it;
    enum { ONLY_COUNTS, CANCELS, CLOSES } does;
    int calls;
} ending;

static void at_the_end(void *with) {
    ending *its = with;
    azc_event event;
    its->calls++;
    CHECK(is_silent(its->it));
    if (its->does == CANCELS)
        CHECK(azc_cancel(its->it->channel, its->it->token, 0, &event) == AZC_LATER);
    if (its->does == CLOSES) CHECK(azc_close(its->it->channel, 0, 0) == -EINPROGRESS);
    CHECK(is_silent(its->it));
}

static ssize_t receive_then(ending *its, size_t n) {
    its->it->token++;
    return azc_recv_then(its->it->channel, its->it->port, its->it->token, memory, n,
                         at_the_end, its);
}

/* `then` is called once for each complete receive, before the event; requests that it
 * makes come too late. */
static void check_receive_then(int kind, int does, const char *of) {
    begin("azc_recv_then", of);
    stream it = open_stream(kind, AZC_IN, 0);
    ending its = {&it, ONLY_COUNTS, 0};
    peer_feed(it.flow, 14);
    ssize_t r = receive_then(&its, 10);
    sim_idle(); /* a FIFO needs the pump */
    CHECK(its.calls == 1 && (r == 10 || tells(&it, it.token, 0, 10)));
    CHECK(receive_then(&its, 10) == -EINPROGRESS);
    sim_idle();
    CHECK(is_silent(&it) && its.calls == 1);
    peer_feed(it.flow, 6);
    sim_idle();
    CHECK(its.calls == 2 && tells(&it, it.token, 0, 10));
    CHECK(has_received(&it, 10, 10));
    for (int i = 0; i < 3; i++) CHECK(receive_then(&its, 10) == -EINPROGRESS);
    its.does = does;
    it.token -= 2;
    peer_feed(it.flow, 10);
    sim_idle();
    CHECK(its.calls == 3 && tells(&it, it.token, 0, 10));
    if (does == CLOSES) {
        CHECK(tells(&it, it.token + 1, -ESHUTDOWN, 0));
        CHECK(tells(&it, it.token + 2, -ESHUTDOWN, 0));
    } else {
        peer_feed(it.flow, 3);
        peer_end(it.flow, 0);
        sim_idle();
        CHECK(its.calls == 3 && tells(&it, it.token + 1, 0, 3));
        CHECK(tells(&it, it.token + 2, 0, 0));
    }
    end_with(&it);
}

/* Without a port there is no event, and no token finds how the receive ended. */
static void check_receive_alone(void) {
    begin("azc_recv", "without a port");
    stream it = open_stream(SOCKET, AZC_IN, 0);
    azc_event event;
    peer_feed(it.flow, 4);
    CHECK(azc_recv(it.channel, 0, 9, memory, 4, 4, NULL) == 4);
    for (uint64_t token = 1; token < 10; token++) {
        CHECK(azc_cancel(it.channel, token, 0, &event) == AZC_OVER);
        CHECK(event.token == 0);
    }
    uint64_t come = 0;
    peer_feed(it.flow, 4);
    CHECK(azc_recv_now(it.channel, memory, 4, 4, &come) == 4 && come == 4);
    CHECK(azc_recv(it.channel, 0, 9, memory, 4, 4, NULL) == -EINPROGRESS);
    end_with(&it);
}

/* A message that arrives in pieces while it is received. */
static struct {
    stream *it;
    int calls, quiet; /* calls that find nothing, before each piece */
    size_t piece;
    int next; /* result of the next receive; -EINPROGRESS: nothing else happens */
} coming;

static ssize_t recv_coming(int fd, const struct iovec *vec, int count, azc_fds *fds) {
    int before_it = coming.calls++;
    if (before_it && before_it % (coming.quiet + 1) == 0) {
        if (coming.piece) peer_feed(coming.it->flow, coming.piece);
        if (coming.next == -ESHUTDOWN)
            CHECK(azc_close(coming.it->channel, 0, 0) == -EINPROGRESS);
        else if (coming.next != -EINPROGRESS)
            peer_end(coming.it->flow, coming.next);
    }
    return before.recv(fd, vec, count, fds);
}

/* The first 64 KiB allow eight vain calls. */
static void check_coming(const char *of, int quiet, size_t piece, size_t n, size_t need,
                         int calls, size_t received) {
    begin("a message that is coming", of);
    stream it = open_stream(SOCKET, AZC_IN, 2 * MIB);
    uint64_t come = 0;
    coming.it = &it;
    coming.calls = 0;
    coming.quiet = quiet;
    coming.piece = piece;
    azc_sys.recv = recv_coming;
    peer_feed(it.flow, 64 * KIB);
    ssize_t r = azc_recv_now(it.channel, memory, n, need, &come);
    CHECK(r == (ssize_t)received && come == received && has_received(&it, 0, come));
    CHECK(coming.calls == calls && stats_of(&it).calls == (uint64_t)calls);
    azc_sys.recv = before.recv;
    if (coming.next != -EINPROGRESS)
        CHECK(azc_recv(it.channel, it.port, 1, memory, 1, 1, NULL) == coming.next);
    end_with(&it);
}

static void check_comings(void) {
    coming.next = -EINPROGRESS;
    check_coming("at once", 0, 64 * KIB, MIB, MIB, 16, MIB);
    check_coming("by and by", 7, 64 * KIB, 256 * KIB, 256 * KIB, 25, 256 * KIB);
    check_coming("in drops", 0, 1, MIB, MIB, 9, 64 * KIB + 8);
    check_coming("and is there", 0, 64 * KIB, MIB, 64 * KIB, 1, 64 * KIB);
    check_coming("and is longer", 0, MIB / 2, 3 * MIB, 3 * MIB, 3, MIB + 64 * KIB);
    coming.next = 0;
    check_coming("and ends", 1, 0, MIB, MIB, 3, 64 * KIB);
    coming.next = -ECONNRESET;
    check_coming("and breaks off", 1, 0, MIB, MIB, 3, 64 * KIB);
    coming.next = -ESHUTDOWN;
    check_coming("and is closed", 1, 0, MIB, MIB, 3, 64 * KIB);
}

/* For a sender that pauses, the wait of a long receive becomes the pump's. */
static void check_in_vain(void) {
    begin("a message that is coming", "always in vain");
    stream it = open_stream(SOCKET, AZC_IN, MIB);
    int loop = azc_port_watch(it.port);
    CHECK(receive(&it, 2 * MIB, 2 * MIB) == -EINPROGRESS);
    for (uint64_t i = 0, calls = 1; i <= 10; i++) {
        peer_feed(it.flow, 64 * KIB);
        CHECK(kernel_readable(loop) == (i < 8));
        if (i >= 8) sim_idle();
        if (i < 8) CHECK(azc_port_move(it.port) == 0);
        calls += i < 8 ? 9 : 3;
        CHECK(stats_of(&it).calls == calls);
    }
    for (int i = 0; i < 2; i++) {
        peer_feed(it.flow, MIB);
        sim_idle();
    }
    CHECK(tells(&it, it.token, 0, 2 * MIB) && has_received(&it, 0, 2 * MIB));
    end_with(&it);
}

/* ---- files that go along ------------------------------------------------- */

static azc_fds *with; /* passed to the call */

static ssize_t recv_with_fds(int fd, const struct iovec *vec, int count, azc_fds *fds) {
    with = fds;
    return before.recv(fd, vec, count, fds);
}

/* One byte is enough, as the files come with the first byte. */
static void check_recv_fds(void) {
    static azc_fds fds = {.room = 1};
    begin("azc_recv with files", "a message");
    azc_sys.recv = recv_with_fds;
    stream it = open_stream(SOCKET, AZC_IN, 0);
    peer_feed(it.flow, 1);
    CHECK(azc_recv(it.channel, it.port, 1, memory, 10, 1, &fds) == 1);
    CHECK(with == &fds && has_received(&it, 0, 1));
    azc_event event; /* known for the last one only */
    CHECK(azc_cancel(it.channel, 1, 0, &event) == AZC_OVER && event.token == 1);
    CHECK(azc_cancel(it.channel, 2, 0, &event) == AZC_OVER && !event.token);
    with = NULL;
    CHECK(azc_recv(it.channel, it.port, 2, memory, 10, 1, &fds) == -EINPROGRESS);
    peer_feed(it.flow, 1);
    sim_idle();
    CHECK(with == &fds && tells(&it, 2, 0, 1));
    kernel_allocations_left = 0;
    CHECK(azc_recv(it.channel, it.port, 3, memory, 9, 1, &fds) == -ENOMEM);
    kernel_allocations_left = -1;
    peer_feed(it.flow, 23);
    peer_end(it.flow, 0);
    for (uint64_t i = 0; i < 3; i++)
        CHECK(azc_recv(it.channel, it.port, 4 + i, memory, 10, 1, &fds) ==
              (i < 2 ? 10 : 3));
    end_with(&it);
}

/* A closed port can stay bound: then the message's rest goes out without a port.  A
 * token is good for one message that has to wait. */
static void check_closed_port(void) {
    begin("azc_send_bound", "its port was closed");
    stream it = open_stream(SOCKET, AZC_OUT, 1000);
    it.token = 6;
    const char *data = fresh(&it, 3000);
    bind(&it);
    CHECK(azc_port_close(it.port) == 0);
    CHECK(azc_send_bound(it.channel, 8, data, 1, 1, 0) == -ESTALE);
    CHECK(azc_send_bound(it.channel, 7, data, 3000, 1, 0) == -EINPROGRESS);
    CHECK(azc_send_bound(it.channel, 7, data, 1, 1, 0) == -ESTALE);
    read_on(&it);
    CHECK(has_arrived(&it) && azc_free(it.channel) == 0);
    end();
}

/* ---- a loop that receives what has come ---------------------------------- */

/* The channel waits in the poller of another loop, which is closed. */
static void check_closed_loop(void) {
    char more[10];
    azc_id port;
    azc_event event;
    begin("azc_port_watch", "a loop that is closed");
    stream it = open_stream(SOCKET, AZC_IN, 1000);
    int fd = azc_port_watch(it.port);
    CHECK(fd >= 0 && azc_port_watch(it.port) == fd);
    CHECK(receive(&it, 3000, 3000) == -EINPROGRESS && !kernel_readable(fd));
    CHECK(azc_port_open(&port) == 0 && azc_port_watch(port) >= 0);
    CHECK(azc_recv(it.channel, port, 99, more, 10, 10, NULL) == -EINPROGRESS);
    peer_feed(it.flow, 1000);
    CHECK(azc_port_move(it.port) == 0);
    CHECK(azc_cancel(it.channel, 99, 0, NULL) == AZC_DROPPED);
    CHECK(azc_port_take(port, 0, &event, 1) == 1 && event.token == 99);
    CHECK(azc_port_take(port, event.sequence, &event, 1) == 0);
    CHECK(azc_port_close(port) == 0 && azc_port_move(port) == -ESHUTDOWN);
    for (int i = 0; i < 2; i++) {
        peer_feed(it.flow, 1000);
        sim_idle();
    }
    CHECK(tells(&it, it.token, 0, 3000) && has_received(&it, 0, 3000));
    end_with(&it);
}

/* ---- a pipe of ours ------------------------------------------------------ */

enum { HIGHER = 10 };
static int dups_left;
static unsigned closed; /* a bit for each number */

static int new_pipe(int ends[2]) { return ends[0] = 1, ends[1] = 2, 0; }

static int no_pipe(int ends[2]) { return ends[0] = ends[1] = -EMFILE; }

static int dup_if_any(int fd) { return dups_left-- > 0 ? fd + HIGHER : -EMFILE; }

static int note_close(int fd) { return closed |= 1U << fd, 0; }

static void check_pipe(void) {
    static const unsigned low = 1U << 1 | 1U << 2;
    begin("azc_pipe", "numbers run out");
    azc_sys.dup = dup_if_any;
    azc_sys.close = note_close;
    for (int count = -1; count <= 2; count++) {
        azc_fds from = {0}, into = {0};
        azc_sys.blocking_pipe = count < 0 ? no_pipe : new_pipe;
        dups_left = count;
        closed = 0;
        CHECK(azc_pipe(&from, &into) == (count == 2 ? 0 : -EMFILE));
        CHECK(closed == (count < 0 ? 0 : count == 1 ? low | 1U << (1 + HIGHER) : low));
        CHECK(from.count == (count == 2) && into.count == (count == 2));
        if (count == 2) CHECK(from.fds[0] == 1 + HIGHER && into.fds[0] == 2 + HIGHER);
    }
    azc_fds both = {0};
    dups_left = 1;
    closed = 0;
    CHECK(azc_dup_fds(&both, (int[]){1, 2}, 2) == -EMFILE && !both.count);
    CHECK(closed == 1U << (1 + HIGHER));
    end();
}

/* ---- all checks ---------------------------------------------------------- */

static void check_ways(void) {
    enum { COUNT = sizeof SITUATIONS / sizeof *SITUATIONS };
    char which[100];
    for (int i = 0; i < COUNT * WAYS_COUNT * KINDS_COUNT; i++) {
        const way *way = &WAYS[i % WAYS_COUNT];
        const kind *fd = &KINDS_OF_FD[i / WAYS_COUNT % KINDS_COUNT];
        const named *it = &SITUATIONS[i / WAYS_COUNT / KINDS_COUNT];
        snprintf(which, sizeof which, "%s, %s", fd->name, it->name);
        begin(way->name, which);
        it->of(way, fd);
    }
}

int main(void) {
    memory = calloc(1, LONGEST);
    expected = malloc(LONGEST);
    if (!memory || !expected) abort();
    kernel_is_caller = is_caller;
    lending_on_lend = lent;
    lending_on_replace = replaced;
    check_ways();
    for (size_t i = 0; i < sizeof SHARES / sizeof *SHARES; i++) check_share(&SHARES[i]);
    check_lent_piece();
    check_short_message();
    check_all();
    check_one_channel_twice();
    check_cancelled_meanwhile();
    check_wrong_sizes();
    check_sizes();
    check_receive_then(SOCKET, ONLY_COUNTS, "a socket");
    check_receive_then(SOCKET, CANCELS, "a socket, cancelled meanwhile");
    check_receive_then(PIPE, CLOSES, "a pipe, closed meanwhile");
    check_receive_then(FIFO, CANCELS, "a FIFO, cancelled meanwhile");
    check_receive_then(FIFO, CLOSES, "a FIFO, closed meanwhile");
    check_receive_alone();
    check_comings();
    check_in_vain();
    check_recv_fds();
    check_closed_port();
    check_closed_loop();
    check_pipe();
    free(memory);
    free(expected);
    return 0;
}
