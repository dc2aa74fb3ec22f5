/* cancelling.c - what a program asks for while a system call runs, and how operations
 * end then: csrc/ending.c and lender.c, without a thread.
 *
 * The fd takes as many bytes as a case says.  The case's `meanwhile` is called inside
 * the next system call: so whatever another thread could do then happens at exactly
 * that moment.  There is no pump (threads cannot be had), so nothing moves by itself;
 * drive() is what a pump would do.
 *
 * What is given back is overwritten with '#', which must never go out.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "ending.h"
#include "move.h"

enum {
    LENT = 64 << 10, /* bytes that are lent */
    PART = 1000,     /* of them */
    SLOTS = 2,
    ALL = 1 << 20,
    LIMIT = 1 << 20,
};

static char *slot[SLOTS];
static int ends[2];
static azc_id port, id;

static struct {
    char out[4 * LENT]; /* what was taken so far */
    size_t moved, room;
    int when_full;           /* -errno */
    void (*meanwhile)(void); /* called in the next system call, once */
    ssize_t unread;
    short told; /* what poll says of the reader */
    bool keeps_pages;
    const void *taken_back; /* the slot whose pages came back last */
} kernel;

/* ---- what the system does ------------------------------------------------ */

static void put(const char *data, size_t n) {
    CHECK(kernel.moved + n <= sizeof kernel.out);
    CHECK(!memchr(data, '#', n));
    memcpy(kernel.out + kernel.moved, data, n);
    kernel.moved += n;
    kernel.room -= n;
}

static ssize_t take(int fd, const struct iovec *vec, int count) {
    void (*meanwhile)(void) = kernel.meanwhile;
    ssize_t taken = 0;
    CHECK(fd == ends[0]);
    kernel.meanwhile = NULL;
    if (meanwhile) meanwhile();
    if (!kernel.room) return kernel.when_full;
    for (int i = 0; i < count && kernel.room; i++) {
        size_t n = vec[i].iov_len < kernel.room ? vec[i].iov_len : kernel.room;
        put(vec[i].iov_base, n);
        taken += (ssize_t)n;
    }
    return taken;
}

static ssize_t send_message(int fd, const struct iovec *vec, int count,
                            const azc_fds *fds) {
    CHECK(!fds);
    return take(fd, vec, count);
}

static ssize_t write_pipe(int fd, const struct iovec *vec, int count, int how) {
    (void)how;
    return take(fd, vec, count);
}

static ssize_t write_piece(int fd, const void *data, size_t n) {
    struct iovec vec = {(void *)(uintptr_t)data, n};
    return take(fd, &vec, 1);
}

static ssize_t lend(int fd, sys_between *between, const struct iovec *vec, int count) {
    (void)between;
    return take(fd, vec, count);
}

static ssize_t unread(int fd, bool socket) {
    (void)fd, (void)socket;
    return kernel.unread;
}

static int poll_peer(struct pollfd *fds, nfds_t count, int timeout_ms) {
    CHECK(count == 1 && timeout_ms == 0 && fds->events == 0);
    fds->revents = kernel.told;
    return kernel.told != 0;
}

static int remap(void *from, size_t n, void *to) {
    if (kernel.keeps_pages) return -ENOMEM;
    kernel.taken_back = to;
    memcpy(to, from, n);
    munmap(from, n);
    return 0;
}

static int replace(void *at, size_t n) {
    (void)at, (void)n;
    return -ENOMEM;
}

static int thread_start(pthread_t *thread, void *(*run)(void *), void *arg) {
    (void)thread, (void)run, (void)arg;
    return -EAGAIN;
}

static uint64_t now_ns(void) { return 1; }

static void sleep_us(unsigned us) { (void)us; }

/* ---- a channel, and what is told of it ----------------------------------- */

static void open_over(int flags) {
    memset(&kernel, 0, sizeof kernel);
    kernel.when_full = -EAGAIN;
    CHECK(azc_port_open(&port) == 0 && azc_open(ends[0], flags, &id) == 0);
}

static void open_socket(void) {
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    open_over(AZC_OUT);
}

static void open_pipe(int flags) {
    int both[2];
    CHECK(pipe(both) == 0);
    ends[0] = both[1];
    ends[1] = both[0];
    open_over(AZC_OUT | flags);
}

static void open_lending_pipe(void) { open_pipe(AZC_OWN | AZC_READS); }

/* The oldest event; one that ends an operation is acknowledged. */
static azc_event next_event(void) {
    azc_event event = {0};
    CHECK(azc_port_take(port, 0, &event, 1) == 1);
    azc_port_take(port, event.sequence, NULL, 0);
    return event;
}

static bool is_silent(void) {
    azc_event event;
    return azc_port_take(port, 0, &event, 1) == 0;
}

#define EXPECT(token_, sent_, status_, outcome_)                                       \
    do {                                                                               \
        azc_event it = next_event();                                                   \
        CHECK(it.token == (token_) && it.sent == (sent_));                             \
        CHECK(it.status == (status_) && it.outcome == (outcome_));                     \
    } while (0)

static void close_all(void) {
    CHECK(azc_free(id) == 0);
    close(ends[1]);
    while (!is_silent()) next_event();
    CHECK(azc_port_close(port) == 0);
}

static azc_stats stats(void) {
    azc_stats it;
    CHECK(azc_get_stats(id, &it) == 0);
    return it;
}

static bool is_empty(void) {
    azc_stats it = stats();
    return !it.queued && !it.queued_bytes && !it.waiting;
}

static bool has_out(const char *text) {
    return strlen(text) == kernel.moved && memcmp(text, kernel.out, kernel.moved) == 0;
}

/* A look inside, while no call runs or in one. */
static azc_channel *inside(void) {
    azc_channel *channel = azc__find(id);
    CHECK(channel);
    azc__unlock(channel);
    return channel;
}

static bool is_told_to_stop(void) { return inside()->stop_early; }

/* ---- sending ------------------------------------------------------------- */

/* The messages of a case, by their tokens. */
static char one[] = "aaaaaaaaaa", two[] = "bbbbbbbbbb", copy[] = "aaaaaaaaaa";

static void fill_messages(void) {
    memset(one, 'a', 10);
    memset(two, 'b', 10);
    memset(copy, 'a', 10);
    for (int i = 0; i < SLOTS; i++) memset(slot[i], 'A' + i, LENT);
}

static void spoil(char *message) { memset(message, '#', 10); }

static int send_bytes(uint64_t token, char *data, size_t n, int ask_room) {
    struct iovec vec = {data, n};
    return azc_sendv(id, port, token, &vec, 1, NULL, 0, ask_room);
}

static int send_ten(uint64_t token, char *data) {
    return send_bytes(token, data, 10, 0);
}

static void drive(size_t room) {
    azc_channel *channel = azc__enter(id);
    CHECK(channel);
    kernel.room = room;
    azc__drive(channel, ALL);
    azc__leave(channel);
}

static int cancel(uint64_t token) { return azc_cancel(id, token, LIMIT, NULL); }

static int move(uint64_t token, const void *to, uint64_t total) {
    int result = 99;
    CHECK(azc_move_to_copy(&id, &token, 1, to, total, NULL, 0, &result) == 0);
    return result;
}

/* Both wait for room in the fd. */
static void queue_two(void) {
    open_socket();
    CHECK(send_ten(1, one) == -EINPROGRESS && send_ten(2, two) == -EINPROGRESS);
}

/* ---- cancels ------------------------------------------------------------- */

static void cancel_one(void) {
    azc_event event = {.token = 7, .sent = 7};
    CHECK(!is_told_to_stop());
    CHECK(azc_cancel(id, 1, LIMIT, &event) == AZC_LATER);
    CHECK(!event.token && !event.sent && is_told_to_stop());
}

static void a_cancel_waits_for_the_call(void) {
    queue_two();
    kernel.meanwhile = cancel_one;
    drive(3);
    EXPECT(1, 3, -ECANCELED, AZC_RESCUED);
    spoil(one);
    drive(ALL);
    EXPECT(2, 10, 0, AZC_DROPPED);
    CHECK(has_out("aaaaaaaaaabbbbbbbbbb"));
    CHECK(stats().rescued == 7 && is_empty());
}

/* Messages of 4 bytes, of which so many are out. */
static void cancel_batch(size_t moved, size_t whole) {
    static const uint64_t sizes[] = {4, 4, 2};
    struct iovec vec = {one, 10};
    open_socket();
    kernel.room = moved;
    CHECK(azc_sendv(id, port, 1, &vec, 1, sizes, 3, 0) == -EINPROGRESS);
    CHECK(cancel(1) == AZC_RESCUED);
    spoil(one);
    EXPECT(1, moved, -ECANCELED, AZC_RESCUED);
    CHECK(stats().queued_bytes == whole - moved);
    CHECK(is_empty() == (whole == moved));
    drive(ALL);
    CHECK(kernel.moved == whole && is_empty());
    CHECK(stats().messages == whole / 4);
    close_all();
}

static void a_batch_ends_with_a_message(void) {
    cancel_batch(4, 4);
    fill_messages();
    cancel_batch(5, 8);
    open_socket(); /* which each case leaves open */
}

static void receive_at_once(uint64_t token, char *data) {
    CHECK(write(ends[1], "xyz", 3) == 3);
    CHECK(azc_recv(id, port, token, data, 10, 1) == 3);
}

static void the_last_receive_is_remembered(void) {
    azc_event event = {.token = 7};
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    open_over(AZC_IN);
    receive_at_once(1, copy);
    receive_at_once(2, copy);
    CHECK(azc_cancel(id, 1, 0, &event) == AZC_OVER && !event.token);
    CHECK(azc_cancel(id, 2, 0, NULL) == AZC_OVER);
    CHECK(azc_cancel(id, 2, 0, &event) == AZC_OVER);
    CHECK(event.token == 2 && event.sent == 3 && event.status == 0);
    CHECK(azc_cancel(id + 1, 2, 0, &event) == AZC_OVER && !event.token);
}

/* ---- moves to a copy ----------------------------------------------------- */

static void pieces_are_copied_one_after_the_other(void) {
    char to[8] = "....";
    struct iovec vec[] = {{one, 1}, {NULL, 0}, {two, 2}, {one, 1}};
    CHECK(azc_copy_message(to, vec, 3) == 0);
    CHECK(strcmp(to, "abb.") == 0);
}

static void what_waits_goes_on_from_the_copy(void) {
    open_socket();
    kernel.room = 3;
    CHECK(send_ten(1, one) == -EINPROGRESS);
    CHECK(move(1, copy, 10) == 0);
    spoil(one);
    CHECK(is_silent() && stats().rescued == 0);
    drive(ALL);
    EXPECT(1, 10, 0, AZC_DROPPED);
    CHECK(has_out("aaaaaaaaaa"));
}

static void move_one(void) {
    CHECK(!is_told_to_stop());
    CHECK(move(1, copy, 10) == -EINPROGRESS && is_told_to_stop());
}

static void a_move_waits_for_the_call(void) {
    queue_two();
    kernel.meanwhile = move_one;
    drive(3);
    EXPECT(1, 3, AZC_COPIED, 0);
    spoil(one);
    drive(ALL);
    EXPECT(1, 10, 0, AZC_DROPPED);
    EXPECT(2, 10, 0, AZC_DROPPED);
    CHECK(has_out("aaaaaaaaaabbbbbbbbbb"));
}

static void a_move_waits_for_the_submission(void) {
    open_socket();
    kernel.room = 3;
    kernel.meanwhile = move_one;
    CHECK(send_ten(1, one) == -EINPROGRESS);
    EXPECT(1, 3, AZC_COPIED, 0);
    spoil(one);
    drive(ALL);
    EXPECT(1, 10, 0, AZC_DROPPED);
    CHECK(has_out("aaaaaaaaaa"));
}

static char again[] = "bbbbbbbbbb";

static void move_two(void) { CHECK(move(2, again, 10) == -EINPROGRESS); }

static void move_and_cancel_one(void) {
    move_one();
    CHECK(cancel(1) == AZC_LATER);
}

/* The copy is the caller's again with the cancel, and a later move of another must
 * not bring it back. */
static void a_cancel_forgets_the_copy(void) {
    open_socket();
    kernel.room = 3;
    kernel.meanwhile = move_and_cancel_one;
    CHECK(send_ten(1, one) == -EINPROGRESS);
    EXPECT(1, 3, -ECANCELED, AZC_RESCUED);
    spoil(one);
    spoil(copy);
    CHECK(send_ten(2, two) == -EINPROGRESS);
    kernel.meanwhile = move_two;
    drive(2);
    EXPECT(2, 0, AZC_COPIED, 0);
    spoil(two);
    drive(ALL);
    CHECK(has_out("aaaaaaaaaabbbbbbbbbb"));
}

static void without_a_copy_it_keeps_its_own(void) {
    open_socket();
    CHECK(send_ten(1, one) == -EINPROGRESS && move(1, NULL, 10) == 0);
    drive(3);
    CHECK(move(1, NULL, 10) == 0);
    drive(ALL);
    EXPECT(1, 10, 0, AZC_DROPPED);
    CHECK(has_out("aaaaaaaaaa"));
}

/* Five bytes less: then there is room for one who waits. */
static void what_has_not_begun_becomes_another(void) {
    struct iovec vec[] = {{again, 1}, {again, 1}, {again, 1}, {again, 2}};
    uint64_t token = 1;
    int result;
    open_socket();
    CHECK(azc_set_limit(id, 10) == 0);
    CHECK(send_ten(1, one) == -EINPROGRESS);
    CHECK(send_bytes(2, one, 5, 1) == -EBUSY && stats().waiting == 1);
    CHECK(is_silent());
    CHECK(azc_move_to_copy(&id, &token, 1, NULL, 10, vec, VEC_INLINE, &result) == 0);
    CHECK(result == 1 && stats().waiting == 0);
    EXPECT(2, 0, AZC_ROOM, 0);
    drive(ALL);
    EXPECT(1, 5, 0, AZC_DROPPED);
    EXPECT(2, 5, 0, AZC_DROPPED);
    CHECK(has_out("bbbbbaaaaa"));
}

/* ---- loans --------------------------------------------------------------- */

static void queue_loan(size_t room) {
    open_lending_pipe();
    kernel.room = room;
    CHECK(send_bytes(1, slot[0], LENT, 0) == -EINPROGRESS);
    CHECK(kernel.moved == room && is_silent());
}

static void a_copy_ends_a_loan(void) {
    queue_loan(LENT);
    CHECK(move(1, slot[1], LENT) == 0);
    EXPECT(1, LENT, 0, AZC_DROPPED);
    CHECK(stats().rescued == LENT && is_empty());
    CHECK(kernel.taken_back == slot[0]);
}

static void move_loan(void) { CHECK(move(1, slot[1], LENT) == -EINPROGRESS); }

static void a_copy_ends_a_loan_after_the_call(void) {
    queue_loan(0);
    kernel.meanwhile = move_loan;
    drive(LENT);
    EXPECT(1, LENT, 0, AZC_DROPPED);
    CHECK(is_empty());
}

/* A channel that cannot take its pages back breaks. */
static void a_copy_cannot_end_a_loan(void) {
    queue_loan(PART);
    kernel.keeps_pages = true;
    CHECK(move(1, slot[1], LENT) == -ENOMEM);
    EXPECT(1, PART, -ENOMEM, AZC_KEPT);
    CHECK(stats().error == -ENOMEM);
}

static void cancel_loan(void) {
    CHECK(!is_told_to_stop());
    CHECK(cancel(1) == AZC_LATER && is_told_to_stop());
    CHECK(inside()->state == OPEN && stats().queued == 2);
}

/* Another operation is in the kernel: it may end only after that. */
static void a_channel_breaks_after_the_call(void) {
    queue_loan(LENT);
    CHECK(send_ten(2, two) == -EINPROGRESS);
    kernel.keeps_pages = true;
    kernel.meanwhile = cancel_loan;
    drive(3);
    EXPECT(1, LENT, -ENOMEM, AZC_KEPT);
    EXPECT(2, 3, -ENOMEM, AZC_DROPPED);
}

static void close_and_cancel_loan(void) {
    CHECK(azc_close(id, 0, 0) == -EINPROGRESS && cancel(1) == AZC_LATER);
    EXPECT(1, LENT, -ECANCELED, AZC_KEPT);
}

static void what_is_kept_is_told_by_the_event(void) {
    queue_loan(LENT);
    CHECK(send_ten(2, two) == -EINPROGRESS);
    kernel.keeps_pages = true;
    kernel.meanwhile = close_and_cancel_loan;
    drive(3);
    EXPECT(2, 3, -ESHUTDOWN, AZC_DROPPED);
}

static void a_send_that_fails_tells_what_is_kept(void) {
    open_lending_pipe();
    kernel.room = PART;
    kernel.when_full = -EPIPE;
    kernel.keeps_pages = true;
    CHECK(send_bytes(1, slot[0], LENT, 0) == -EINPROGRESS);
    EXPECT(1, PART, -EPIPE, AZC_KEPT);
}

/* Of other memory nothing can be taken back, nor is it kept. */
static void only_a_pool_is_taken_back(void) {
    static char other[LENT];
    open_pipe(AZC_OWN | AZC_READS | AZC_LENDS_ALL);
    kernel.room = LENT;
    CHECK(send_bytes(1, other, LENT, 0) == -EINPROGRESS);
    CHECK(stats().lent == LENT);
    CHECK(azc_close(id, 0, 0) == 1);
    EXPECT(1, LENT, -ESHUTDOWN, AZC_DROPPED);
}

/* ---- who lends, and until when ------------------------------------------- */

static void a_refusal_ends_lending(void) {
    static const int refusals[] = {EINVAL, EPERM, ENOSYS, EOPNOTSUPP, EFAULT};
    open_lending_pipe();
    azc_channel *channel = inside();
    CHECK(azc__lend_result(channel, -EAGAIN) == -EAGAIN);
    CHECK(azc__lend_result(channel, 5) == 5 && stats().lent == 5);
    CHECK(channel->lender.lends);
    for (int i = 0; i < 5; i++) {
        channel->lender.lends = true;
        CHECK(azc__lend_result(channel, -refusals[i]) == -EINTR);
        CHECK(!channel->lender.lends && azc__lend_from(channel, 1 << 30) == 0);
    }
    CHECK(stats().lent == 5);
}

static int ask(ssize_t unread_bytes) {
    azc_channel *channel = azc__enter(id);
    kernel.unread = unread_bytes;
    int r = azc__lender_ask(channel);
    azc__leave(channel);
    return r;
}

/* LENT bytes are out. */
static void naps_grow_until_the_reader_reads(void) {
    static const unsigned naps[] = {100, 200, 400, 800, 1600, 3200, 3200};
    queue_loan(LENT);
    const azc_lender *lender = &inside()->lender;
    CHECK(ask(2 * LENT) == 0 && lender->read == 0 && lender->nap_us == 100);
    for (int i = 1; i < 7; i++) CHECK(ask(LENT) == 0 && lender->nap_us == naps[i]);
    CHECK(lender->read == 0);
    CHECK(ask(10) == 0 && lender->read == LENT - 10 && lender->nap_us == 50);
    CHECK(ask(10) == 0 && lender->nap_us == 100);
}

static void a_reader_that_is_gone_is_an_error(void) {
    queue_loan(LENT);
    const azc_lender *lender = &inside()->lender;
    CHECK(ask(-EBADF) == -EBADF);
    kernel.told = POLLNVAL; /* (another check finds that) */
    CHECK(ask(LENT) == 0 && lender->read == 0);
    kernel.told = POLLERR;
    CHECK(ask(1) == -EPIPE && lender->read == 0);
    CHECK(ask(0) == 0 && lender->read == LENT);
}

/* ---- all of them --------------------------------------------------------- */

#define CASE(name) {#name, name}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    CASE(a_cancel_waits_for_the_call),
    CASE(a_batch_ends_with_a_message),
    CASE(the_last_receive_is_remembered),
    CASE(what_waits_goes_on_from_the_copy),
    CASE(a_move_waits_for_the_call),
    CASE(a_move_waits_for_the_submission),
    CASE(a_cancel_forgets_the_copy),
    CASE(without_a_copy_it_keeps_its_own),
    CASE(what_has_not_begun_becomes_another),
    CASE(a_copy_ends_a_loan),
    CASE(a_copy_ends_a_loan_after_the_call),
    CASE(a_copy_cannot_end_a_loan),
    CASE(a_channel_breaks_after_the_call),
    CASE(what_is_kept_is_told_by_the_event),
    CASE(a_send_that_fails_tells_what_is_kept),
    CASE(only_a_pool_is_taken_back),
    CASE(a_refusal_ends_lending),
    CASE(naps_grow_until_the_reader_reads),
    CASE(a_reader_that_is_gone_is_an_error),
};

static void set_system(void) {
    azc_sys.send = send_message;
    azc_sys.write_pipe = write_pipe;
    azc_sys.write_piece = write_piece;
    azc_sys.lend = lend;
    azc_sys.unread = unread;
    azc_sys.poll = poll_peer;
    azc_sys.remap = remap;
    azc_sys.replace = replace;
    azc_sys.thread_start = thread_start;
    azc_sys.now_ns = now_ns;
    azc_sys.sleep_us = sleep_us;
}

int main(void) {
    azc_id pool;
    what = "a pool";
    CHECK(azc_pool_open(LENT, SLOTS, &pool) == 0);
    for (int i = 0; i < SLOTS; i++) slot[i] = azc_pool_slot(pool, i);
    set_system();
    fill_messages();
    what = "a copy";
    pieces_are_copied_one_after_the_other();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        what = cases[i].name;
        fill_messages();
        cases[i].run();
        close_all();
    }
    return 0;
}
