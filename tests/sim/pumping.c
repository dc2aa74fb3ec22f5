/* pumping.c - csrc/pump.c, and which channels are handed to it, over the kernel of
 * scripted.c.
 *
 * The table at the end lists the situations.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "situations.h"

/* ---- the poller ------------------------------------------------------ */

static void lose_it(void) { file_of(fd_of(writing))->replaced = true; }

/* Bytes that came before the loss are delivered. */
static void number_is_lost_during_a_receive(void) {
    writing = open_channel(TTY, AZC_IN);
    KERNEL_SAYS(3);
    scripted_meanwhile(0, lose_it);
    CHECK(get(writing, 3) == -EINPROGRESS && get(writing, 3) == -EINPROGRESS);
    sim_idle();
    report(writing);
    CHECK(tells(token - 1, 0, 3) && tells(token, -EBADF, 0));
    CHECK(world.ncalls == 1);
}

/* The file that has the number now is not waited for. */
static void number_is_lost_during_a_call(void) {
    writing = open_channel(SOCKET, AZC_OUT);
    const file *it = file_of(fd_of(writing));
    KERNEL_SAYS(-EAGAIN);
    scripted_meanwhile(0, lose_it);
    CHECK(put(writing, 300) == -EBADF || tells(token, -EBADF, 0));
    CHECK(it->arms == 0);
}

static void arming_fails_for_now(void) {
    azc_id socket = open_channel(SOCKET, AZC_OUT);
    file_of(fd_of(socket))->arm_fails = -ENOMEM;
    KERNEL_SAYS(-EAGAIN, ALL);
    CHECK(put(socket, 300) == -EINPROGRESS);
    sim_idle();
    CHECK(scripted_timeout() == NAP && inside(socket)->pumping.armed);
    scripted_pass(NAP);
    CHECK(tells(token, 0, 300));
}

/* ---- no thread ------------------------------------------------------- */

static void threads_are_missing(void) {
    azc_id a = open_channel(PIPE, AZC_OUT), b = open_channel(PIPE, AZC_OUT);
    world.no_thread = 3;
    CHECK(put(a, 300) == -EINPROGRESS && put(b, 300) == -EINPROGRESS);
    CHECK(!inside(a)->pumping.pump && !inside(b)->pumping.pump);
    CHECK(scripted_signalled(azc_port_fd(port)));
    CHECK(nothing_is_told() && world.sleeps == 1); /* a fails again, b does not */
    CHECK(!inside(a)->pumping.pump && inside(b)->pumping.pump);
    CHECK(scripted_signalled(azc_port_fd(port)));
    CHECK(nothing_is_told() && world.sleeps == 1 && world.threads == 2);
    CHECK(inside(a)->pumping.pump);
    CHECK(nothing_is_told() && !scripted_signalled(azc_port_fd(port)));
}

/* A port's loop retries for all, also for those whose own loop does not run. */
static void loop_retries_for_others(void) {
    azc_id idle;
    CHECK(azc_port_open(&idle) == 0);
    azc_id a = open_channel(PIPE, AZC_OUT), b = open_channel(PIPE, AZC_OUT);
    struct iovec all = {memory, 300};
    world.no_thread = 3;
    KERNEL_SAYS(-EAGAIN, -EAGAIN);
    CHECK(azc_sendv(a, idle, 1, &all, 1, NULL, 0, 0) == -EINPROGRESS);
    CHECK(put(b, 300) == -EINPROGRESS);
    CHECK(nothing_is_told() && !inside(a)->pumping.pump && inside(b)->pumping.pump);
    CHECK(scripted_signalled(azc_port_fd(port)));
    CHECK(nothing_is_told() && inside(a)->pumping.pump);
    CHECK(nothing_is_told() && !scripted_signalled(azc_port_fd(port)));
    drop(a);
    azc_port_take(idle, UINT64_MAX, NULL, 0);
    CHECK(azc_port_close(idle) == 0);
}

static azc_id other;

/* The channel is being driven, so its driver hands it over. */
static void retry_meanwhile(void) {
    CHECK(put(writing, 300) == -EINPROGRESS);
    CHECK(nothing_is_told() && inside(other)->pumping.pump);
    CHECK(!inside(writing)->pumping.pump);
}

static void driven_ones_are_left_alone(void) {
    other = open_channel(PIPE, AZC_OUT);
    writing = open_channel(SOCKET, AZC_OUT);
    world.no_thread = 1;
    KERNEL_SAYS(-EAGAIN, 100);
    scripted_meanwhile(1, retry_meanwhile);
    CHECK(put(other, 300) == -EINPROGRESS);
    CHECK(put(writing, 300) == -EINPROGRESS);
    CHECK(inside(writing)->pumping.pump);
}

/* ---- the pump's time ------------------------------------------------- */

static azc_id open_starved(void) {
    azc_id id = open_channel(SOCKET, AZC_OUT);
    KERNEL_SAYS(-ENOBUFS);
    CHECK(put(id, 300) == -EINPROGRESS);
    sim_idle();
    return id;
}

static void wake_pump(azc_id id) {
    scripted_wake(file_of(fd_of(id))->poller);
    sim_idle();
}

/* Naps are exact to the microsecond, and rather too long than too short. */
static void naps_are_exact(void) {
    azc_id full = open_full(SOCKET, AZC_OUT, 300);
    CHECK(scripted_timeout() == SECOND);
    azc_id a = open_starved();
    CHECK(scripted_timeout() == NAP);
    scripted_pass_ns(1);
    wake_pump(full);
    CHECK(scripted_timeout() == NAP);
    scripted_pass_ns(999);
    wake_pump(full);
    CHECK(scripted_timeout() == NAP - 1);
    azc_id b = open_starved();
    CHECK(scripted_timeout() == NAP - 1);
    int calls = world.ncalls, rounds = world.rounds;
    KERNEL_SAYS(ALL, ALL);
    scripted_pass(NAP - 1);
    CHECK(called(calls, a, 300) && world.ncalls == calls + 1);
    CHECK(world.rounds == rounds + 2 && scripted_timeout() == 1);
    scripted_pass(1);
    CHECK(called(calls + 1, b, 300) && scripted_timeout() == SECOND);
}

static void long_naps(void) {
    azc_id a = open_full(SOCKET, AZC_OUT, 300);
    azc_channel *channel = azc__find(a);
    azc__pump_nap(channel, SECOND + 500);
    azc__leave(channel);
    sim_idle();
    CHECK(scripted_timeout() == SECOND);
}

/* Once a second, for all fds that a pump waits for. */
static void numbers_are_checked(void) {
    azc_id a = open_full(SOCKET, AZC_OUT, 300);
    azc_id pipe = open_full(PIPE, AZC_OUT, 300);
    azc_id idle = open_channel(SOCKET, AZC_OUT);
    scripted_pass(SECOND); /* (from now on, all pumps check at the same time) */
    const file *it = file_of(fd_of(a)), *piped = file_of(fd_of(pipe));
    const file *idling = file_of(fd_of(idle));
    int looks = it->looks, looks_piped = piped->looks;
    for (int i = 1; i < 4; i++) {
        wake_pump(a);
        scripted_pass(SECOND - 1);
        wake_pump(a);
        CHECK(it->looks == looks + i - 1);
        scripted_pass(1);
        wake_pump(a);
        CHECK(it->looks == looks + i && piped->looks == looks_piped + i);
    }
    CHECK(idling->looks == 1);
}

/* ---- forking --------------------------------------------------------- */

static void pumps_come_and_go(void) {
    open_full(PIPE, AZC_OUT, 300);
    azc_id out = open_full(SOCKET, AZC_OUT, 300);
    azc_id more = open_full(SOCKET, AZC_OUT, 300);
    azc_id in = open_channel(SOCKET, AZC_IN);
    CHECK(get(in, 10) == -EINPROGRESS);
    sim_idle();
    CHECK(world.threads == 3 && world.pollers == 3);
    CHECK(inside(out)->pumping.pump == inside(more)->pumping.pump);
    CHECK(inside(out)->pumping.pump != inside(in)->pumping.pump);
    drop(out);
    CHECK(world.pollers == 3 && file_of(FIRST_FD + 1)->forgotten == 1);
    CHECK(azc_close(more, 0, 0) == 1 && !inside(more)->pumping.pump);
    sim_idle();
    CHECK(world.pollers == 2); /* although no time has passed */
    free_all();
    sim_idle();
    CHECK(world.pollers == 0);
}

/* The threads are the parent's, so the child starts new ones. */
static void play_child(void) {
    sim_fork_ends();
    CHECK(world.abandoned == 3);
    port = 0;
    CHECK(azc_port_open(&port) == 0);
    int threads = world.threads;
    recorded = 0;
    azc_id out = open_full(SOCKET, AZC_OUT, 300), in;
    in = open_channel(SOCKET, AZC_IN);
    CHECK(get(in, 10) == -EINPROGRESS && world.threads == threads + 2);
    KERNEL_SAYS(ALL);
    report(out);
    CHECK(tells(token - 1, 0, 300));
    fflush(NULL);
    _exit(0);
}

static void forked(void) {
    open_full(PIPE, AZC_OUT, 300);
    open_full(SOCKET, AZC_OUT, 300);
    azc_id in = open_channel(SOCKET, AZC_IN);
    int status = -1;
    CHECK(get(in, 10) == -EINPROGRESS);
    sim_idle();
    pid_t child = sim_fork();
    if (child == 0) play_child();
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* ---- all situations -------------------------------------------------- */

static const situation situations[] = {
    {"a number is lost during a receive", number_is_lost_during_a_receive},
    {"a number is lost during a call", number_is_lost_during_a_call},
    {"arming fails for now", arming_fails_for_now},
    {"threads are missing", threads_are_missing},
    {"a loop retries for others", loop_retries_for_others},
    {"driven channels are left alone", driven_ones_are_left_alone},
    {"naps are exact", naps_are_exact},
    {"a nap is longer than a second", long_naps},
    {"numbers are checked once a second", numbers_are_checked},
    {"pumps come and go", pumps_come_and_go},
    {"a process forks", forked},
};

int main(int argc, char **argv) {
    int count = (int)(sizeof situations / sizeof *situations);
    return situations_play(situations, count, argc > 1 ? argv[1] : NULL);
}
