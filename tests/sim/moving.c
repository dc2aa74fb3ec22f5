/* moving.c - the calls of csrc/move.c, one by one, over the kernel of scripted.c.
 *
 * The table at the end lists the situations.
 */
#include <errno.h>
#include <string.h>

#include "ending.h"
#include "situations.h"

enum { LENT = 64 << 10 }; /* bytes */

/* ---- in the caller's thread ------------------------------------------ */

static void caller_sends(void) {
    azc_id socket = open_channel(SOCKET, AZC_OUT);
    int clocks = world.clocks, looks = file_of(fd_of(socket))->looks;
    KERNEL_SAYS(ALL, ALL);
    CHECK(put(socket, 300) == 0 && send_bound(socket, 400 * KIB) == 0);
    CHECK(called(0, socket, 300) && called(1, socket, 400 * KIB));
    CHECK(world.calls[0].in_caller && world.calls[1].in_caller);
    CHECK(!world.threads && world.clocks == clocks);
    CHECK(file_of(fd_of(socket))->looks == looks);
}

static void caller_asks_no_clock(void) {
    azc_id pipe = open_channel(PIPE, AZC_OUT | AZC_OWN);
    int clocks = world.clocks;
    world.takes_all = true;
    CHECK(send_bound(pipe, 64 * KIB) == 0 && world.clocks == clocks);
}

static void caller_meets_error(void) {
    azc_id socket = open_channel(SOCKET, AZC_OUT);
    azc_id pipe = open_channel(PIPE, AZC_OUT | AZC_OWN);
    KERNEL_SAYS(-EPIPE, 8 * KIB, -EPIPE);
    CHECK(send_bound(socket, 300) == -EINPROGRESS);
    CHECK(tells(1000, -EPIPE, 0));
    CHECK(send_bound(pipe, 20 * KIB) == -EINPROGRESS);
    CHECK(tells(1000, -EPIPE, 8 * KIB));
    CHECK(!world.threads && world.ncalls == 3);
}

static void caller_meets_bad_memory(void) {
    azc_id socket = open_channel(SOCKET, AZC_OUT);
    KERNEL_SAYS(-EFAULT, ALL, -EFAULT, 100);
    CHECK(send_bound(socket, 300) == -EINPROGRESS);
    CHECK(tells_as(1000, -EFAULT, 0, AZC_REFUSED) && !world.threads);
    CHECK(put(socket, 300) == 0);
    drop(socket);
    azc_id in = open_channel(SOCKET, AZC_IN);
    CHECK(get(in, 100) == -EFAULT && get(in, 100) == 100);
    CHECK(world.ncalls == 4);
    CHECK(azc_copy(memory, memory + 10, 10) == 10);
    world.unreadable = true;
    CHECK(azc_copy(memory, memory + 10, 10) == -EFAULT);
}

/* ---- out of memory --------------------------------------------------- */

/* Each shortage, here of a second and a half, has a patience of its own. */
static void patience_begins_anew(void) {
    azc_id out = open_channel(SOCKET, AZC_OUT);
    KERNEL_SAYS(-ENOBUFS, -EAGAIN, -ENOBUFS, -ENOBUFS);
    CHECK(put(out, 300) == -EINPROGRESS);
    scripted_pass(PATIENCE * 3 / 4);
    report(out);
    scripted_pass(PATIENCE * 3 / 4);
    CHECK(world.ncalls == 4 && nothing_is_told());
    drop(out);

    azc_id pipe = open_channel(PIPE, AZC_OUT);
    KERNEL_SAYS(-ENOMEM, 1, -ENOMEM, -ENOMEM);
    CHECK(put(pipe, 300) == -EINPROGRESS);
    scripted_pass(PATIENCE * 3 / 4);
    scripted_pass(PATIENCE * 3 / 4);
    CHECK(world.ncalls == 8 && nothing_is_told());
    drop(pipe);

    azc_id in = open_channel(SOCKET, AZC_IN);
    KERNEL_SAYS(-ENOMEM, 0, -ENOMEM, -ENOMEM);
    CHECK(get(in, 10) == -EINPROGRESS && get(in, 10) == -EINPROGRESS);
    scripted_pass(PATIENCE * 3 / 4);
    CHECK(tells(token - 1, 0, 0));
    scripted_pass(PATIENCE * 3 / 4);
    CHECK(world.ncalls == 12 && nothing_is_told());
}

/* A missing thread no longer counts once there is one. */
static void patience_for_a_thread(void) {
    azc_id socket = open_channel(SOCKET, AZC_OUT);
    world.no_thread = 1;
    KERNEL_SAYS(-EAGAIN, -ENOBUFS, -ENOBUFS);
    CHECK(put(socket, 300) == -EINPROGRESS);
    world.now += PATIENCE * 750;
    CHECK(nothing_is_told()); /* now a thread starts */
    sim_idle();
    report(socket);
    scripted_pass(PATIENCE * 3 / 4);
    CHECK(world.ncalls == 3 && world.threads == 1 && nothing_is_told());
}

/* ---- errors that only concern one message ---------------------------- */

static void cancel_first(void) {
    CHECK(azc_cancel(writing, token - 1, 0, NULL) == AZC_LATER);
}

/* The message in bad memory was cancelled meanwhile, so the next one is not refused. */
static void bad_memory_is_cancelled(void) {
    writing = open_full(SOCKET, AZC_OUT, 100);
    CHECK(put(writing, 10) == -EINPROGRESS);
    KERNEL_SAYS(-EFAULT, -EFAULT, ALL);
    scripted_meanwhile(1, cancel_first);
    report(writing);
    CHECK(called(2, writing, 10));
    CHECK(tells(token - 1, -ECANCELED, 0) && tells(token, 0, 10));
}

static void files_are_cancelled(void) {
    writing = open_channel(SOCKET, AZC_OUT);
    KERNEL_SAYS(-EAGAIN, -ETOOMANYREFS, ALL);
    scripted_meanwhile(1, cancel_first);
    CHECK(put_fds(writing, 100) == -EINPROGRESS);
    CHECK(put_fds(writing, 10) == -EINPROGRESS);
    sim_idle();
    report(writing);
    CHECK(called(2, writing, 10) && world.calls[2].with_fds);
    CHECK(tells(token - 1, -ECANCELED, 0) && tells(token, 0, 10));
}

static void too_many_files(void) {
    azc_id socket = open_channel(SOCKET, AZC_OUT);
    KERNEL_SAYS(-ETOOMANYREFS, ALL, -ETOOMANYREFS);
    CHECK(put_fds(socket, 100) == -ETOOMANYREFS);
    CHECK(put(socket, 100) == 0);
    CHECK(put(socket, 100) == -ETOOMANYREFS && put(socket, 1) == -ETOOMANYREFS);
    CHECK(world.ncalls == 3 && !world.threads);
}

/* Files go with the first bytes of their message that get out, and with no others. */
static void files_go_once(void) {
    azc_id socket = open_channel(SOCKET, AZC_OUT);
    const bool with[] = {true, true, false, false, true, true, false};
    KERNEL_SAYS(-EAGAIN, 1, ALL, ALL, -EINTR, ALL, ALL);
    CHECK(put_fds(socket, 2) == -EINPROGRESS);
    sim_idle();
    report(socket);
    report(socket);
    CHECK(tells(token, 0, 2));
    CHECK(send_bound(socket, 100) == 0);
    CHECK(put_fds(socket, 2) == 0);
    CHECK(send_bound(socket, 100) == 0);
    for (int i = 0; i < 7; i++) CHECK(world.calls[i].with_fds == with[i]);
}

/* ---- RWF_NOWAIT ------------------------------------------------------ */

static void own_pipe_knows_no_nowait(void) {
    azc_id pipe = open_channel(PIPE, AZC_OUT | AZC_OWN);
    KERNEL_SAYS(-EOPNOTSUPP, ALL, -EOPNOTSUPP);
    CHECK(put(pipe, 300) == 0);
    CHECK(world.calls[0].nowait && !world.calls[1].nowait);
    CHECK(put(pipe, 300) == -EOPNOTSUPP && put(pipe, 300) == -EOPNOTSUPP);
    CHECK(world.ncalls == 3);
}

static void receives_come_one_by_one(void) {
    azc_id in = open_channel(SOCKET, AZC_IN);
    KERNEL_SAYS(-EAGAIN, 10, -EAGAIN);
    CHECK(get(in, 10) == -EINPROGRESS && get(in, 20) == -EINPROGRESS);
    sim_idle();
    report(in);
    CHECK(called(1, in, 10) && called(2, in, 20));
    CHECK(tells(token - 1, 0, 10) && nothing_is_told());
}

/* ---- how much at a time ---------------------------------------------- */

static void check_turns(azc_id a, azc_id b) {
    CHECK(world.ncalls == 6);
    for (int i = 0; i < 6; i++) {
        CHECK(called(i, i % 2 ? b : a, MIB) && !world.calls[i].in_caller);
        CHECK(world.calls[i].round == world.calls[0].round + i / 2);
    }
}

static void sockets_take_turns(void) {
    azc_id a = open_full(SOCKET, AZC_OUT, 3 * MIB);
    azc_id b = open_full(SOCKET, AZC_OUT, 3 * MIB);
    int clocks = world.clocks, rounds = world.rounds;
    int arms = file_of(fd_of(a))->arms;
    world.takes_all = true;
    CHECK(scripted_report(fd_of(a)) && scripted_report(fd_of(b)));
    sim_idle();
    check_turns(a, b);
    CHECK(file_of(fd_of(a))->arms == arms); /* without another report by epoll */
    CHECK(world.clocks - clocks == 2 * (world.rounds - rounds)); /* one for each pump */
}

/* The pump has no other channel. */
static void pipe_has_no_budget(void) {
    azc_id pipe = open_full(PIPE, AZC_OUT | AZC_OWN, MOST);
    KERNEL_SAYS(ALL, -EAGAIN);
    report(pipe);
    CHECK(world.ncalls == 2);
    world.takes_all = true;
    report(pipe);
    CHECK(scripted_bytes() == MOST && tells(token, 0, MOST));
    CHECK(world.calls[world.ncalls - 1].round == world.calls[2].round);
}

static void stop_now(void) { inside(writing)->stop_early = true; }

static void has_not_to_stop(void) { CHECK(!inside(writing)->stop_early); }

/* This pump must ask for the loans now and then.  (A move that was stopped early does
 * not stop the next one.) */
static void lending_pipe_has_a_budget(void) {
    azc_id pipe = writing = open_full(PIPE, AZC_OUT | AZC_OWN | AZC_READS, 3 * MIB);
    KERNEL_SAYS(ALL, ALL);
    scripted_meanwhile(0, stop_now);
    scripted_meanwhile(1, has_not_to_stop);
    world.takes_all = file_of(fd_of(pipe))->ready = true;
    report(pipe);
    int first = world.calls[0].round;
    size_t bytes[4] = {0};
    for (int i = 0; i < world.ncalls; i++)
        bytes[world.calls[i].round - first] += world.calls[i].bytes;
    for (int i = 0; i < 3; i++) CHECK(bytes[i] == MIB);
    CHECK(tells(token, 0, 3 * MIB));
}

/* Numbers are checked once in a while, and before each call that may block. */
static void numbers_are_looked_at(void) {
    azc_id regular = open_channel(REGULAR, AZC_OUT);
    KERNEL_SAYS(MIB / 2, MIB / 2, MIB / 2, MIB / 2, ALL);
    CHECK(put(regular, 3 * MIB) == -EINPROGRESS);
    sim_idle();
    const call *calls = world.calls;
    const int more[] = {0, 0, 1, 1, 2};
    CHECK(world.ncalls == 5 && calls[0].looks == 2); /* (one of them for opening) */
    for (int i = 0; i < 5; i++) CHECK(calls[i].looks == 2 + more[i]);
    CHECK(tells(token, 0, 3 * MIB));
    drop(regular);

    azc_id device = open_channel(DEVICE, AZC_OUT);
    KERNEL_SAYS(ALL, ALL, ALL);
    CHECK(put(device, 3 * 8 * KIB) == -EINPROGRESS);
    sim_idle();
    for (int i = 0; i < 3; i++) CHECK(calls[5 + i].looks == 2 + i);
    CHECK(tells(token, 0, 3 * 8 * KIB));
}

/* Nothing is added after a mebibyte, so a call's end does not wait for more messages.
 * Files go with their own message only. */
static void not_all_go_together(void) {
    azc_id pipe = open_full(PIPE, AZC_OUT | AZC_OWN, MIB - 1);
    for (int i = 0; i < 3; i++) CHECK(put(pipe, 1) == -EINPROGRESS);
    KERNEL_SAYS(ALL);
    world.takes_all = true;
    report(pipe);
    CHECK(called(world.ncalls - 1, pipe, 2));
    drop(pipe);
    world.takes_all = false;
    azc_id socket = open_full(SOCKET, AZC_OUT, 10);
    CHECK(put_fds(socket, 20) == -EINPROGRESS);
    CHECK(put(socket, 30) == -EINPROGRESS);
    world.takes_all = true;
    report(socket);
    CHECK(called(0, socket, 10) && called(1, socket, 20));
    CHECK(world.calls[1].with_fds && called(2, socket, 30));
}

/* Short parts go together, up to two pages; a long part goes in pieces of that size. */
static void pipe_is_written_in_pieces(void) {
    static const size_t sizes[] = {4, 4, 4, 3, 3, 9}, calls[] = {8, 7, 3, 8, 1};
    struct iovec vec[6];
    azc_id pipe = open_channel(PIPE, AZC_OUT | AZC_OWN);
    size_t n = 0;
    for (int i = 0; i < 6; i++) {
        vec[i] = (struct iovec){memory + n, sizes[i] * KIB};
        n += sizes[i] * KIB;
    }
    world.takes_all = true;
    CHECK(azc_sendv(pipe, port, ++token, vec, 6, NULL, 0, 0) >= 0);
    CHECK(world.ncalls == 5 && !world.threads);
    for (int i = 0; i < 5; i++)
        CHECK(called(i, pipe, calls[i] * KIB) && world.calls[i].nowait);
    CHECK(world.sigpipes == 1 && !world.sigpipes_held);
}

/* write() is quicker than pwritev2(), but raises SIGPIPE. */
static void sigpipe_is_blocked_for_long_parts(void) {
    azc_id pipe = open_channel(PIPE, AZC_OUT | AZC_OWN);
    struct iovec last[] = {{memory, 100}, {memory, 8 * KIB + 1}};
    world.takes_all = true;
    CHECK(put(pipe, 8 * KIB) == 0 && !world.sigpipes);
    CHECK(put(pipe, 8 * KIB + 1) == 0 && world.sigpipes == 1);
    CHECK(azc_sendv(pipe, port, ++token, last, 2, NULL, 0, 0) >= 0);
    CHECK(world.sigpipes == 2 && !world.sigpipes_held);
    CHECK(!file_of(fd_of(pipe))->nonblock);
    azc_id busy = open_full(PIPE, AZC_OUT | AZC_OWN, 9 * KIB);
    CHECK(world.sigpipes == 3);
    report(busy);
    CHECK(tells(token, 0, 9 * KIB) && world.sigpipes == 3);
    CHECK(file_of(fd_of(busy))->nonblock && !world.calls[0].nowait);
}

/* ---- asking again ---------------------------------------------------- */

static ssize_t get_at_least(azc_id id, size_t need) {
    return azc_recv(id, port, ++token, memory, 100 * KIB, need, NULL);
}

/* It asks until it has what is needed, as often as the bytes received justify. */
static void receive_asks_again(void) {
    azc_id in = open_channel(SOCKET, AZC_IN);
    KERNEL_SAYS(16 * KIB, 16 * KIB);
    CHECK(get_at_least(in, 32 * KIB) == 32 * KIB && world.ncalls == 2);
    KERNEL_SAYS(16 * KIB);
    CHECK(get_at_least(in, 16 * KIB) == 16 * KIB && world.ncalls == 3);
    CHECK(inside(in)->vain == 0);
    inside(in)->vain = IN_VAIN - 1;
    KERNEL_SAYS(16 * KIB, -EAGAIN, 16 * KIB);
    CHECK(get_at_least(in, 32 * KIB) == 32 * KIB && world.ncalls == 6);
    CHECK(inside(in)->vain == 0);
    KERNEL_SAYS(16 * KIB, -EAGAIN, -EAGAIN);
    CHECK(get_at_least(in, 32 * KIB) == -EINPROGRESS && world.ncalls == 9);
    CHECK(inside(in)->vain == 1);
}

/* Whatever the last answer is, it is not taken for an error. */
static void asking_again_ends_well(void) {
    azc_id in = open_channel(SOCKET, AZC_IN);
    KERNEL_SAYS(16 * KIB, 1);
    CHECK(get_at_least(in, 16 * KIB + 1) == 16 * KIB + 1);
    KERNEL_SAYS(60 * KIB, 40 * KIB);
    CHECK(get_at_least(in, 100 * KIB) == 100 * KIB && world.ncalls == 4);
    KERNEL_SAYS(60 * KIB, MIB - 60 * KIB);
    CHECK(azc_recv(in, port, ++token, memory, 2 * MIB, 2 * MIB, NULL) == -EINPROGRESS);
    CHECK(world.ncalls == 6); /* not for the rest of a full piece, which has none */
    KERNEL_SAYS(ALL);
    sim_idle();
    report(in);
    CHECK(tells(token, 0, 2 * MIB));
}

/* ---- ttys ------------------------------------------------------------ */

/* Other processes share its file, which stays blocking: so poll comes before each move. */
static void tty_is_asked_first(void) {
    azc_id tty = open_channel(TTY, AZC_OUT);
    world.full = true;
    CHECK(put(tty, 300) == -EINPROGRESS);
    sim_idle();
    CHECK(world.ncalls == 0 && inside(tty)->pumping.armed);
    world.full = false;
    KERNEL_SAYS(ALL);
    report(tty);
    CHECK(tells(token, 0, 300) && called(0, tty, 300));
    world.poll_error = -EINVAL;
    CHECK(put(tty, 300) == -EINPROGRESS);
    report(tty);
    CHECK(tells(token, -EINVAL, 0) && world.ncalls == 1);
}

/* ---- loans ----------------------------------------------------------- */

static void a_call_lends_a_mebibyte(void) {
    azc_id pipe = open_channel(PIPE, LENDS);
    KERNEL_SAYS(ALL);
    CHECK(put(pipe, 3 * MIB) == -EINPROGRESS);
    sim_idle();
    report(pipe);
    CHECK(world.calls[0].lends && called(0, pipe, MIB));
}

static void only_some_sockets_lend(void) {
    azc_id lends = open_channel(SOCKET, LENDS);
    azc_id out = open_channel(SOCKET, AZC_OUT),
           in = open_channel(SOCKET, AZC_IN | AZC_READS);
    world.no_loans = true;
    azc_id other = open_channel(SOCKET, LENDS);
    CHECK(inside(lends)->lane->lend_from && !inside(out)->lane->lend_from);
    CHECK(!inside(in)->lane->lend_from && !inside(other)->lane->lend_from);
}

static void reader_is_asked(void) {
    azc_id pipe = open_channel(PIPE, LENDS);
    KERNEL_SAYS(ALL);
    world.unread = 4000;
    CHECK(put(pipe, 4000) == -EINPROGRESS && world.calls[0].lends);
    sim_idle();
    CHECK(scripted_timeout() == 50 && !inside(pipe)->pumping.armed);
    scripted_pass(50);
    CHECK(scripted_timeout() == 100 && nothing_is_told());
    world.unread = 0;
    scripted_pass(100);
    CHECK(tells(token, 0, 4000) && scripted_timeout() == SECOND);
}

/* A socket reports when most of it has been read; after that, the lender asks. */
static void socket_tells(void) {
    azc_id socket = open_channel(SOCKET, LENDS);
    KERNEL_SAYS(ALL);
    world.unread = 4768;
    world.full = true;
    CHECK(put(socket, 4000) == -EINPROGRESS && world.calls[0].lends);
    sim_idle();
    CHECK(inside(socket)->pumping.armed && scripted_timeout() == SECOND);
    world.unread = 768;
    world.full = false;
    report(socket);
    CHECK(scripted_timeout() == 50 && !inside(socket)->pumping.armed);
    CHECK(nothing_is_told());
    world.unread = 0;
    scripted_pass(50);
    CHECK(tells(token, 0, 4000));
}

/* Files go with a copied message. */
static void message_with_files_is_copied(void) {
    azc_id socket = open_channel(SOCKET, LENDS);
    KERNEL_SAYS(ALL, ALL);
    CHECK(put_fds(socket, 4000) == 0 && !world.calls[0].lends);
    world.unread = 4768;
    CHECK(put(socket, 4000) == -EINPROGRESS && world.calls[1].lends);
    world.unread = 0;
    scripted_pass(50);
    CHECK(tells(token, 0, 4000));
}

/* Asks how far the reader is; this many bytes are unread. */
static int ask(azc_id id, int unread) {
    azc_channel *channel = azc__find(id);
    world.unread = unread;
    int r = azc__lender_ask(channel);
    azc__leave(channel);
    return r;
}

static void naps_grow_until_the_reader_reads(void) {
    static const unsigned naps[] = {100, 200, 400, 800, 1600, 3200, 3200};
    azc_id pipe = open_channel(PIPE, LENDS);
    KERNEL_SAYS(ALL);
    CHECK(put(pipe, LENT) == -EINPROGRESS);
    const azc_lender *lender = &inside(pipe)->lender;
    CHECK(ask(pipe, 2 * LENT) == 0 && lender->read == 0 && lender->nap_us == 100);
    for (int i = 1; i < 7; i++)
        CHECK(ask(pipe, LENT) == 0 && lender->nap_us == naps[i]);
    CHECK(lender->read == 0);
    CHECK(ask(pipe, 10) == 0 && lender->read == LENT - 10 && lender->nap_us == 50);
    CHECK(ask(pipe, 10) == 0 && lender->nap_us == 100);
}

static void reader_is_gone(void) {
    azc_id pipe = open_channel(PIPE, LENDS);
    KERNEL_SAYS(ALL);
    CHECK(put(pipe, LENT) == -EINPROGRESS);
    const azc_lender *lender = &inside(pipe)->lender;
    CHECK(ask(pipe, -EBADF) == -EBADF);
    world.told = POLLNVAL; /* (another check notices that) */
    CHECK(ask(pipe, LENT) == 0 && lender->read == 0);
    world.told = POLLERR;
    CHECK(ask(pipe, 1) == -EPIPE && lender->read == 0);
    CHECK(ask(pipe, 0) == 0 && lender->read == LENT);
    world.told = 0;
    world.unread = -EPIPE;
    scripted_pass(SECOND);
    CHECK(inside(pipe)->state == BROKEN && inside(pipe)->error == -EPIPE);
}

/* ---- loans that are taken back --------------------------------------- */

static azc_id pool;

/* Makes a pipe to which this many bytes of the pool's first slot are lent. */
static void lend_slot(int bytes) {
    CHECK(azc_pool_open(LENT, 2, &pool) == 0);
    writing = open_channel(PIPE, AZC_OUT | AZC_OWN | AZC_READS);
    static int answer;
    answer = bytes;
    scripted_say(&answer, 1);
    world.unread = LENT;
    CHECK(put_from(writing, azc_pool_slot(pool, 0), LENT, false) == -EINPROGRESS);
    CHECK(scripted_bytes() == (size_t)bytes && nothing_is_told());
}

static void end_lending(void) {
    drop(writing);
    CHECK(azc_pool_close(pool) == 0);
}

static int move_to_second_slot(void) {
    int result = 99;
    CHECK(azc_move_to_copy(&writing, &token, 1, azc_pool_slot(pool, 1), LENT, NULL, 0,
                           &result) == 0);
    return result;
}

static void copy_ends_a_loan(void) {
    lend_slot(LENT);
    CHECK(move_to_second_slot() == 0 && tells_as(token, 0, LENT, AZC_DROPPED));
    azc_stats stats;
    CHECK(azc_get_stats(writing, &stats) == 0 && stats.rescued == LENT);
    CHECK(!stats.queued && !stats.queued_bytes);
    CHECK(world.taken_back == azc_pool_slot(pool, 0));
    end_lending();
}

/* A channel breaks if it cannot take its pages back. */
static void copy_cannot_end_a_loan(void) {
    lend_slot(1000);
    world.keeps_pages = true;
    CHECK(move_to_second_slot() == -ENOMEM);
    CHECK(tells_as(token, -ENOMEM, 1000, AZC_KEPT));
    CHECK(inside(writing)->error == -ENOMEM);
    end_lending();
}

/* scripted_end() checks that the copy of the rest is released. */
static void rescue_cannot_end_a_loan(void) {
    lend_slot(1000);
    world.keeps_pages = true;
    CHECK(azc_cancel(writing, token, MIB, NULL) == AZC_LATER);
    CHECK(tells_as(token, -ENOMEM, 1000, AZC_KEPT));
    CHECK(inside(writing)->error == -ENOMEM);
    end_lending();
}

static void close_and_cancel_loan(void) {
    CHECK(azc_close(writing, 0, 0) == -EINPROGRESS);
    CHECK(azc_cancel(writing, token - 1, MIB, NULL) == AZC_LATER);
    CHECK(tells_as(token - 1, -ECANCELED, LENT, AZC_KEPT));
}

static void event_tells_what_is_kept(void) {
    lend_slot(LENT);
    CHECK(put(writing, 10) == -EINPROGRESS);
    sim_idle();
    world.keeps_pages = true;
    KERNEL_SAYS(3);
    scripted_meanwhile(0, close_and_cancel_loan);
    report(writing);
    CHECK(tells_as(token, -ESHUTDOWN, 3, AZC_DROPPED));
    end_lending();
}

static void cancel_loan(void) {
    CHECK(!inside(writing)->stop_early);
    CHECK(azc_cancel(writing, token - 1, MIB, NULL) == AZC_LATER);
    CHECK(inside(writing)->stop_early && inside(writing)->state == OPEN);
}

/* The channel may end only after another operation's call. */
static void channel_breaks_after_the_call(void) {
    lend_slot(LENT);
    CHECK(put(writing, 10) == -EINPROGRESS);
    sim_idle();
    world.keeps_pages = true;
    KERNEL_SAYS(3);
    scripted_meanwhile(0, cancel_loan);
    report(writing);
    CHECK(tells_as(token - 1, -ENOMEM, LENT, AZC_KEPT));
    CHECK(tells_as(token, -ENOMEM, 3, AZC_DROPPED));
    end_lending();
}

static void failed_send_tells_what_is_kept(void) {
    CHECK(azc_pool_open(LENT, 2, &pool) == 0);
    writing = open_channel(PIPE, AZC_OUT | AZC_OWN | AZC_READS);
    world.keeps_pages = true;
    KERNEL_SAYS(1000, -EPIPE);
    CHECK(put_from(writing, azc_pool_slot(pool, 0), LENT, false) == -EINPROGRESS);
    CHECK(tells_as(token, -EPIPE, 1000, AZC_KEPT));
    end_lending();
}

/* Other memory than a pool's cannot be taken back, nor kept. */
static void only_a_pool_is_taken_back(void) {
    azc_id pipe = open_channel(PIPE, LENDS);
    KERNEL_SAYS(ALL);
    CHECK(put(pipe, AZC_LEND_MIN) == -EINPROGRESS && world.calls[0].lends);
    world.unread = AZC_LEND_MIN;
    CHECK(azc_close(pipe, 0, 0) == -EINPROGRESS);
    CHECK(tells_as(token, -ESHUTDOWN, AZC_LEND_MIN, AZC_DROPPED));
}

/* ---- what others ask for meanwhile ----------------------------------- */

static void break_it(void) {
    azc_channel *channel = azc__find(writing);
    azc__break(channel, -EBADF);
    azc__leave(channel);
}

static void close_it(void) { CHECK(azc_close(writing, port, 2000) == -EINPROGRESS); }

static void broken_during_a_call(void) {
    writing = open_full(SOCKET, AZC_OUT, MIB);
    CHECK(put(writing, MIB) == -EINPROGRESS);
    KERNEL_SAYS(-EINTR);
    scripted_meanwhile(0, break_it);
    report(writing);
    CHECK(world.ncalls == 1);
    CHECK(tells(token - 1, -EBADF, 0) && tells(token, -EBADF, 0));
    CHECK(inside(writing)->state == BROKEN);
}

static void broken_during_an_attempt(void) {
    writing = open_channel(SOCKET, AZC_OUT);
    KERNEL_SAYS(100);
    scripted_meanwhile(0, break_it);
    CHECK(send_bound(writing, 300) == -EINPROGRESS);
    CHECK(tells(1000, -EBADF, 100) && !world.threads);
}

static void cancel_it(void) { CHECK(azc_cancel(writing, token, 0, NULL) == AZC_LATER); }

/* A move gives a pipe many pieces, and stops after the one that is being written. */
static void stopped_within_a_move(void) {
    static void (*const acts[])(void) = {cancel_it, close_it};
    for (int i = 0; i < 2; i++) {
        writing = open_full(PIPE, AZC_OUT | AZC_OWN, 64 * KIB);
        KERNEL_SAYS(ALL, ALL);
        scripted_meanwhile(0, acts[i]);
        report(writing);
        CHECK(world.ncalls == 1 && scripted_bytes() == 8 * KIB);
        CHECK(tells(token, i ? -ESHUTDOWN : -ECANCELED, 8 * KIB));
        drop(writing);
    }
}

static void cancel_batch(void) {
    CHECK(azc_cancel(writing, token, MIB, NULL) == AZC_RESCUED);
}

/* The batch ends after the message that is being written from a copy. */
static void batch_ends_with_what_is_in_flight(void) {
    const uint64_t sizes[] = {8 * KIB, 8 * KIB, 8 * KIB};
    struct iovec all = {memory, 24 * KIB};
    writing = open_channel(DEVICE, AZC_OUT);
    KERNEL_SAYS(ALL);
    scripted_meanwhile(0, cancel_batch);
    world.takes_all = true;
    CHECK(azc_sendv(writing, port, ++token, &all, 1, sizes, 3, 0) == -EINPROGRESS);
    sim_idle();
    CHECK(tells(token, -ECANCELED, 0) && scripted_bytes() == 8 * KIB);
}

/* Nothing remains of a message that is out. */
static void batch_ends_with_a_message(void) {
    const uint64_t sizes[] = {4, 4, 2};
    struct iovec all = {memory, 10};
    writing = open_channel(SOCKET, AZC_OUT);
    KERNEL_SAYS(4);
    CHECK(azc_sendv(writing, port, ++token, &all, 1, sizes, 3, 0) == -EINPROGRESS);
    cancel_batch();
    CHECK(tells_as(token, -ECANCELED, 4, AZC_RESCUED) && !inside(writing)->queue.ops);
}

/* scripted_end() checks that nothing is left allocated. */
static void rescue_fails(void) {
    azc_id socket = open_channel(SOCKET, AZC_OUT);
    KERNEL_SAYS(100);
    CHECK(put(socket, 300) == -EINPROGRESS);
    world.unreadable = true;
    CHECK(azc_cancel(socket, token, MIB, NULL) == AZC_LATER);
    CHECK(tells(token, -EFAULT, 100) && put(socket, 1) == -EFAULT);
}

static void rescue_first(void) {
    azc_event event = {.token = 7, .sent = 7};
    CHECK(!inside(writing)->stop_early);
    CHECK(azc_cancel(writing, token - 1, MIB, &event) == AZC_LATER);
    CHECK(!event.token && !event.sent && inside(writing)->stop_early);
}

static void cancel_waits_for_the_call(void) {
    writing = open_full(SOCKET, AZC_OUT, 10);
    CHECK(put(writing, 10) == -EINPROGRESS);
    KERNEL_SAYS(3, ALL);
    scripted_meanwhile(0, rescue_first);
    report(writing);
    CHECK(tells_as(token - 1, -ECANCELED, 3, AZC_RESCUED));
    report(writing);
    CHECK(tells_as(token, 0, 10, AZC_DROPPED) && scripted_bytes() == 20);
    azc_stats stats;
    CHECK(azc_get_stats(writing, &stats) == 0 && stats.rescued == 7);
}

/* ---- moves to a copy ------------------------------------------------- */

static void pieces_are_copied(void) {
    char to[8] = "....", one[] = "a", two[] = "bb";
    struct iovec vec[] = {{one, 1}, {NULL, 0}, {two, 2}, {one, 1}};
    CHECK(azc_copy_message(to, vec, 3) == 0 && memcmp(to, "abb.", 5) == 0);
}

static void move_it(void) {
    static char copy[10];
    int result = 99;
    CHECK(!inside(writing)->stop_early);
    CHECK(azc_move_to_copy(&writing, &token, 1, copy, 10, NULL, 0, &result) == 0);
    CHECK(result == -EINPROGRESS && inside(writing)->stop_early);
}

static void move_waits_for_the_submission(void) {
    writing = open_channel(SOCKET, AZC_OUT);
    KERNEL_SAYS(3, ALL);
    scripted_meanwhile(0, move_it);
    CHECK(put(writing, 10) == -EINPROGRESS && tells_as(token, AZC_COPIED, 3, 0));
    int result = 99; /* without another copy, it keeps this one */
    azc_move_to_copy(&writing, &token, 1, NULL, 10, NULL, 0, &result);
    CHECK(result == 0);
    sim_idle();
    report(writing);
    CHECK(tells_as(token, 0, 10, AZC_DROPPED));
}

/* The message becomes shorter, so there is room for one that waits. */
static void message_becomes_another(void) {
    struct iovec vec[] = {{memory, 1}, {memory, 1}, {memory, 1}, {memory, 2}};
    int result;
    writing = open_channel(SOCKET, AZC_OUT);
    CHECK(azc_set_limit(writing, 2048) == 0);
    KERNEL_SAYS(-EAGAIN, ALL);
    uint64_t first = token + 1;
    CHECK(put(writing, 2044) == -EINPROGRESS);
    CHECK(put_from(writing, memory, 5, true) == -EBUSY && nothing_is_told());
    const azc_id two[] = {writing, writing};
    const uint64_t tokens[] = {first, first};
    int results[] = {99, 99}; /* only one move is asked for */
    azc_move_to_copy(two, tokens, 1, NULL, 2044, NULL, 0, results);
    CHECK(results[0] == 0 && results[1] == 99 && inside(writing)->queue.waiting == 1);
    CHECK(azc_move_to_copy(&writing, &first, 1, NULL, 2044, vec, VEC_INLINE, &result) ==
          0);
    CHECK(result == 1 && !inside(writing)->queue.waiting);
    CHECK(tells_as(token, AZC_ROOM, 0, 0));
    sim_idle();
    report(writing);
    CHECK(tells(first, 0, 5) && tells(token, 0, 5) && scripted_bytes() == 10);
}

/* ---- a relay's turn -------------------------------------------------- */

static azc_id source, relay;

static void open_relay(void) {
    int failed;
    azc_relay_request wanted = {
        .source = source, .sink = writing, .port = port, .token = 3000, .nbytes = 10};
    CHECK(azc_relay_open(&wanted, &relay, &failed) == -EINPROGRESS);
    sim_idle();
}

static void put_more(void) { CHECK(put(writing, 40) == -EINPROGRESS); }

/* The relay waits for the message before it, and the next message for the relay. */
static void relay_has_its_turn(void) {
    source = open_channel(SOCKET, AZC_IN);
    writing = open_full(SOCKET, AZC_OUT, 300);
    KERNEL_SAYS(ALL, 10, 10, ALL);
    scripted_meanwhile(1, put_more);
    open_relay();
    report(writing);
    CHECK(tells(token - 1, 0, 300) && tells(3000, 0, 10));
    CHECK(tells(token, 0, 40) && called(3, writing, 40));
    CHECK(world.ncalls == 4 && !inside(writing)->driving);
    CHECK(!inside(writing)->in_call && !inside(source)->in_call);
    azc_relay_free(relay);
}

static void close_source(void) { CHECK(azc_close(source, 0, 0) == -EINPROGRESS); }

/* What a relay that completes has begun, it also reads to its end. */
static void source_is_closed(void) {
    for (int completes = 0; completes < 2; completes++) {
        int failed;
        source = open_channel(SOCKET, AZC_IN);
        writing = open_channel(SOCKET, AZC_OUT);
        KERNEL_SAYS(5, ALL, 5, ALL);
        scripted_meanwhile(0, close_source);
        azc_relay_request wanted = {.source = source,
                                    .sink = writing,
                                    .port = port,
                                    .token = 3000,
                                    .nbytes = 10,
                                    .completes = completes};
        CHECK(azc_relay_open(&wanted, &relay, &failed) == -EINPROGRESS);
        sim_idle();
        CHECK(tells(3000, completes ? 0 : -ESHUTDOWN, completes ? 10 : 0));
        azc_relay_free(relay);
    }
}

/* It is woken, since nothing else would end its wait. */
static void closed_while_a_relay_waits(void) {
    source = open_channel(SOCKET, AZC_IN);
    writing = open_channel(SOCKET, AZC_OUT);
    open_relay();
    CHECK(nothing_is_told());
    CHECK(azc_close(writing, 0, 0) == -EINPROGRESS);
    sim_idle();
    CHECK(tells(3000, -ESHUTDOWN, 0));
    azc_relay_free(relay);
}

static void relay_is_closed(void) {
    source = open_channel(SOCKET, AZC_IN);
    writing = open_channel(SOCKET, AZC_OUT);
    KERNEL_SAYS(10);
    scripted_meanwhile(0, close_it);
    open_relay();
    CHECK(tells(3000, -ESHUTDOWN, 0) && tells(2000, 0, 0));
    azc_relay_free(relay);
}

/* ---- all situations -------------------------------------------------- */

static const situation situations[] = {
    {"a caller sends small messages itself", caller_sends},
    {"a caller asks no clock for them", caller_asks_no_clock},
    {"a caller meets an error", caller_meets_error},
    {"a caller meets bad memory", caller_meets_bad_memory},
    {"patience begins anew", patience_begins_anew},
    {"patience for a thread ends with it", patience_for_a_thread},
    {"the message in bad memory is cancelled", bad_memory_is_cancelled},
    {"a message with files is cancelled", files_are_cancelled},
    {"too many files are on their way", too_many_files},
    {"files go once", files_go_once},
    {"a pipe of ours knows no RWF_NOWAIT", own_pipe_knows_no_nowait},
    {"receives come one by one", receives_come_one_by_one},
    {"sockets take turns", sockets_take_turns},
    {"a pipe has no budget", pipe_has_no_budget},
    {"a pipe that lends has a budget", lending_pipe_has_a_budget},
    {"numbers are looked at", numbers_are_looked_at},
    {"not all go together", not_all_go_together},
    {"a pipe is written in pieces", pipe_is_written_in_pieces},
    {"SIGPIPE is blocked for long parts", sigpipe_is_blocked_for_long_parts},
    {"a receive asks again", receive_asks_again},
    {"asking again ends well", asking_again_ends_well},
    {"a tty is asked first", tty_is_asked_first},
    {"only some sockets lend", only_some_sockets_lend},
    {"a call lends a mebibyte", a_call_lends_a_mebibyte},
    {"the reader of loans is asked", reader_is_asked},
    {"a socket tells when it was read", socket_tells},
    {"a message with files is copied", message_with_files_is_copied},
    {"broken during a call", broken_during_a_call},
    {"broken during an attempt", broken_during_an_attempt},
    {"stopped within a move", stopped_within_a_move},
    {"a batch ends with what is in flight", batch_ends_with_what_is_in_flight},
    {"a batch ends with a message", batch_ends_with_a_message},
    {"a rescue fails", rescue_fails},
    {"naps grow until the reader reads", naps_grow_until_the_reader_reads},
    {"the reader of loans is gone", reader_is_gone},
    {"a copy ends a loan", copy_ends_a_loan},
    {"a copy cannot end a loan", copy_cannot_end_a_loan},
    {"a rescue cannot end a loan", rescue_cannot_end_a_loan},
    {"an event tells what is kept", event_tells_what_is_kept},
    {"a channel breaks after the call", channel_breaks_after_the_call},
    {"a send that fails tells what is kept", failed_send_tells_what_is_kept},
    {"only a pool is taken back", only_a_pool_is_taken_back},
    {"a cancel waits for the call", cancel_waits_for_the_call},
    {"pieces are copied one after the other", pieces_are_copied},
    {"a move waits for the submission", move_waits_for_the_submission},
    {"a message becomes another", message_becomes_another},
    {"a relay has its turn", relay_has_its_turn},
    {"a relay's sink is closed", relay_is_closed},
    {"a relay's source is closed", source_is_closed},
    {"a sink is closed while its relay waits", closed_while_a_relay_waits},
};

int main(int argc, char **argv) {
    int count = (int)(sizeof situations / sizeof *situations);
    return situations_play(situations, count, argc > 1 ? argv[1] : NULL);
}
