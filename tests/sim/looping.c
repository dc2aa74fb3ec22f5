/* looping.c - csrc/loop.c, which receives in a loop's thread, over the kernel of
 * scripted.c.
 *
 * The table at the end lists the situations.  Thread 0 is the loop's.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "loop.h"
#include "situations.h"

enum { LOOK = 1000, LATE = 300, PROMPT = 8, TURN_NS = 500000, AT_ONCE = 4 };

static int loop; /* the fd that the loop watches */

static void watch(void) { loop = azc_port_watch(port); }

static azc_id waiting(size_t n) {
    azc_id in = open_channel(SOCKET, AZC_IN);
    KERNEL_SAYS(-EAGAIN);
    CHECK(get(in, n) == -EINPROGRESS);
    sim_idle();
    world.ncalls = 0;
    world.takes_all = true;
    return in;
}

static azc_id waiting_here(size_t n) {
    if (!world.count) watch();
    return waiting(n);
}

static bool waits_here(azc_id id) {
    return file_of(fd_of(id))->poller == file_of(loop)->polls;
}

static bool waits_in_pump(azc_id id) {
    const azc_poller *by = file_of(fd_of(id))->poller;
    return by && by != file_of(loop)->polls;
}

/* The pump does not look, but waits until the loop's poller is readable. */
static bool is_quiet(void) {
    return scripted_timeout() == SECOND && file_of(loop)->poller;
}

static bool is_received_here(int i, uint64_t of, size_t bytes) {
    return world.ncalls == i + 1 && world.calls[i].in_caller && tells(of, 0, bytes);
}

static bool is_received_by_pump(int i, uint64_t of, size_t bytes) {
    return world.ncalls == i + 1 && !world.calls[i].in_caller && tells(of, 0, bytes);
}

/* A loop that does nothing for as long, until the pump receives in its place. */
static azc_id taken_from(void) {
    azc_id in = waiting_here(10);
    report(in);
    scripted_pass(LATE);
    CHECK(is_received_by_pump(0, token, 10));
    return in;
}

/* The loop takes its events, so it has answered by the pump's next look. */
static void answer(unsigned us) {
    CHECK(scripted_timeout() == (int)us && scripted_signalled(azc_port_fd(port)));
    CHECK(nothing_is_told());
    scripted_pass(us);
}

/* ---- opening --------------------------------------------------------- */

static void watched_twice(void) {
    watch();
    CHECK(azc_port_watch(port) == loop && loop >= FIRST_FD && world.pollers == 1);
    CHECK(azc_port_move(port) == 0);
}

/* ---- receiving in the loop ------------------------------------------- */

static void loop_receives(void) {
    azc_id in = waiting_here(10);
    CHECK(waits_here(in) && is_quiet() && file_of(fd_of(in))->arms == 1);
    scripted_wake(file_of(loop)->poller); /* for another reason: there is no look */
    sim_idle();
    CHECK(is_quiet() && file_of(loop)->arms == 1);
    report(in);
    CHECK(azc_port_move(port) == 1 && is_received_here(0, token, 10));
}

static void closed_receive_is_forgotten(void) {
    azc_id in = waiting_here(10), pipe = open_full(PIPE, AZC_OUT, 300);
    const file *it = file_of(fd_of(in)), *other = file_of(fd_of(pipe));
    drop(pipe);
    drop(in);
    CHECK(it->forgotten == 2 && other->forgotten == 1 && !it->poller);
}

static azc_id many[2 * AT_ONCE + 1];

static void all_are_ready(int count, unsigned ns) {
    for (int i = 0; i < count; i++) many[i] = waiting_here(10);
    for (int i = 0; i < count; i++) CHECK(scripted_report(fd_of(many[i])));
    world.ns_per_call = ns;
}

/* It asks for more only if it got as many reports as it asked for. */
static void a_turn_takes_all(void) {
    all_are_ready(2 * AT_ONCE - 1, 1);
    azc_id idle = waiting(10);
    CHECK(waits_here(idle) && azc_port_move(port) == 1);
    CHECK(world.ncalls == 2 * AT_ONCE - 1 && world.takes == 2 && waits_here(idle));
}

/* After half a millisecond the loop has other work to do; the rest has its next turn. */
static void a_turn_ends(void) {
    all_are_ready(2 * AT_ONCE, TURN_NS / AT_ONCE);
    CHECK(azc_port_move(port) == 1 && world.ncalls == AT_ONCE && world.takes == 1);
    world.ns_per_call--;
    CHECK(azc_port_move(port) == 1 && world.ncalls == 2 * AT_ONCE && world.takes == 3);
}

static void a_turn_goes_on(void) {
    all_are_ready(2 * AT_ONCE, TURN_NS / AT_ONCE - 1);
    CHECK(azc_port_move(port) == 1 && world.ncalls == 2 * AT_ONCE);
}

/* ---- receiving in the pump ------------------------------------------- */

static void make_use(void *with) { ++*(int *)with; }

static void receive_with_then_waits_in_the_pump(void) {
    int used = 0;
    watch();
    azc_id in = open_channel(SOCKET, AZC_IN);
    KERNEL_SAYS(-EAGAIN, ALL);
    CHECK(azc_recv_then(in, port, ++token, memory, 10, make_use, &used) ==
          -EINPROGRESS);
    sim_idle();
    CHECK(waits_in_pump(in));
    report(in);
    CHECK(used == 1 && tells(token, 0, 10));
}

static bool waits_here_for(size_t n, int vain) {
    azc_id in = open_channel(SOCKET, AZC_IN);
    inside(in)->vain = vain;
    KERNEL_SAYS(-EAGAIN);
    CHECK(get(in, n) == -EINPROGRESS);
    sim_idle();
    CHECK(waits_here(in) != waits_in_pump(in));
    return waits_here(in);
}

/* A sender that pauses makes a long receive many turns. */
static void long_receives_wait_in_the_pump(void) {
    watch();
    CHECK(waits_here_for(MIB, IN_VAIN) && !waits_here_for(MIB + 1, IN_VAIN));
    CHECK(waits_here_for(MIB + 1, IN_VAIN - 1));
}

/* The loop's poller cannot be watched, so the pump receives, for this once. */
static void watching_fails_for_now(void) {
    watch();
    file_of(loop)->arm_fails = -ENOMEM;
    CHECK(waits_in_pump(waiting(10)) && scripted_timeout() == SECOND);
    CHECK(waits_here(waiting(10)) && is_quiet());
}

static void arming_here_fails_for_now(void) {
    azc_id in = waiting_here(10);
    report(in);
    CHECK(azc_port_move(port) == 1 && tells(token, 0, 10));
    world.takes_all = false;
    scripted_pass(LATE); /* the pump has seen that the loop moves it */
    scripted_pass(LOOK);
    CHECK(is_quiet());
    file_of(fd_of(in))->arm_fails = -ENOMEM;
    CHECK(get(in, 10) == -EINPROGRESS);
    sim_idle();
    CHECK(!waits_in_pump(in) && scripted_timeout() == NAP);
}

/* ---- a late loop ------------------------------------------------------ */

static void pump_takes_over(void) {
    azc_id in = waiting_here(10);
    report(in);
    CHECK(scripted_timeout() == LATE && !file_of(loop)->poller);
    scripted_pass(LATE - 1);
    CHECK(!world.ncalls && !scripted_signalled(azc_port_fd(port)));
    scripted_pass(1);
    CHECK(scripted_signalled(azc_port_fd(port)) && scripted_timeout() == LOOK);
    CHECK(is_received_by_pump(0, token, 10));
    CHECK(waits_in_pump(waiting(20)));
}

/* What got ready in the loop's poller before is moved, too, and what gets ready later. */
static void pump_moves_what_waits_here(void) {
    azc_id a = waiting_here(10), b = waiting(20);
    report(a);
    scripted_pass(LATE);
    CHECK(is_received_by_pump(0, token - 1, 10) && world.takes == 1);
    CHECK(waits_here(b) && file_of(loop)->poller);
    report(b);
    CHECK(is_received_by_pump(1, token, 20) && world.takes == 2);
    scripted_pass(LOOK); /* a look takes nothing */
    CHECK(world.takes == 2);
}

/* A loop that moves is late only once it has stopped for a look and LATE. */
static void busy_loop_is_looked_at(void) {
    azc_id a = waiting_here(10), b = waiting(20), c = waiting(30);
    report(a);
    CHECK(azc_port_move(port) == 1 && is_received_here(0, token - 2, 10));
    scripted_pass(LATE);
    CHECK(scripted_timeout() == LOOK && !file_of(loop)->poller);
    report(b);
    scripted_pass(LOOK);
    CHECK(world.ncalls == 1 && scripted_timeout() == LATE);
    CHECK(azc_port_move(port) == 1 && is_received_here(1, token - 1, 20));
    scripted_pass(LATE);
    CHECK(scripted_timeout() == LOOK);
    report(c);
    scripted_pass(LOOK);
    CHECK(world.ncalls == 2 && scripted_timeout() == LATE);
    scripted_pass(LATE);
    CHECK(is_received_by_pump(2, token, 30));
}

static void idle_loop_is_left_alone(void) {
    azc_id in = waiting_here(10);
    int arms = file_of(loop)->arms;
    report(in);
    CHECK(azc_port_move(port) == 1 && tells(token, 0, 10));
    scripted_pass(LATE);
    CHECK(scripted_timeout() == LOOK && file_of(loop)->arms == arms);
    scripted_pass(LOOK);
    CHECK(is_quiet() && file_of(loop)->arms == arms + 1);
}

/* Another look, a millisecond later, if the pump cannot wait for the loop. */
static void watching_fails_after_a_look(void) {
    azc_id in = waiting_here(10);
    report(in);
    CHECK(azc_port_move(port) == 1 && tells(token, 0, 10));
    scripted_pass(LATE);
    file_of(loop)->arm_fails = -ENOMEM;
    scripted_pass(LOOK);
    CHECK(scripted_timeout() == LOOK && !file_of(loop)->poller);
    scripted_pass(LOOK);
    CHECK(is_quiet());
}

/* Twice: what the pump counts begins anew. */
static void work_is_given_back(void) {
    azc_id in = taken_from();
    for (int again = 0; again < 2; again++) {
        for (int i = 0; i < PROMPT - 1; i++) answer(LOOK);
        world.takes_all = false;
        CHECK(get(in, 10) == -EINPROGRESS);
        sim_idle();
        CHECK(waits_in_pump(in));
        world.takes_all = true;
        report(in);
        CHECK(tells(token, 0, 10));
        answer(LOOK);
        CHECK(scripted_timeout() == LOOK); /* it looks again */
        scripted_pass(LOOK);
        CHECK(is_quiet());
        world.takes_all = false;
        CHECK(get(in, 10) == -EINPROGRESS);
        sim_idle();
        CHECK(waits_here(in));
        world.takes_all = true;
        report(in);
        scripted_pass(LATE);
        CHECK(tells(token, 0, 10));
    }
}

/* The pump asks ever less often, and begins to count anew. */
static void loop_does_not_answer(void) {
    taken_from();
    for (int i = 0; i < 3; i++) answer(LOOK);
    for (int us = LOOK; us < 64 * LOOK; us *= 2) {
        CHECK(scripted_timeout() == us);
        scripted_pass((uint64_t)us);
    }
    CHECK(scripted_timeout() == 64 * LOOK);
    answer(64 * LOOK);
    for (int i = 0; i < PROMPT - 2; i++) answer(LOOK);
    CHECK(scripted_timeout() == LOOK && waits_in_pump(waiting(10)));
}

static void pass_all_looks(void) {
    for (int us = LOOK; us <= 64 * LOOK; us *= 2) {
        CHECK(scripted_timeout() == us);
        scripted_pass((uint64_t)us);
    }
    CHECK(scripted_timeout() == SECOND);
}

/* Until there is more to do. */
static void pump_gives_up_asking(void) {
    taken_from();
    pass_all_looks();
    azc_id in = waiting(20);
    CHECK(waits_in_pump(in) && scripted_timeout() == SECOND);
    scripted_wake(file_of(fd_of(in))->poller);
    sim_idle();
    CHECK(scripted_timeout() == 2 * LOOK);
    CHECK(nothing_is_told());
    scripted_pass(2 * LOOK);
    for (int i = 0; i < PROMPT - 1; i++) answer(LOOK);
    scripted_pass(LOOK);
    CHECK(waits_here(waiting(30)));
}

/* ---- another pump ------------------------------------------------------ */

/* Nothing is left of what the pump before it knew. */
static void next_pump_begins_anew(void) {
    azc_id in = taken_from();
    drop(in);
    sim_idle();
    CHECK(world.pollers == 1);
    in = waiting(10);
    CHECK(waits_here(in) && is_quiet());
    report(in);
    drop(in);
    CHECK(waits_here(waiting(10)) && is_quiet());
}

/* The end of a private pump is none of the loop's business. */
static void another_pump_ends(void) {
    azc_id in = waiting_here(10), pipe = open_full(PIPE, AZC_OUT, 300);
    drop(pipe);
    sim_idle();
    world.takes_all = true;
    report(in);
    scripted_pass(LATE);
    CHECK(is_received_by_pump(0, token - 1, 10));
}

/* Such a report may come late: of a pump that has ended, or about a closed port. */
static void reports_of_others_are_ignored(void) {
    waiting_here(10);
    azc__loop_report(NULL, AZC_LOOP_REPORT | port);
    azc__loop_report(file_of(loop)->poller, AZC_LOOP_REPORT | (port + 1));
    scripted_wake(file_of(loop)->poller);
    sim_idle();
    CHECK(is_quiet());
}

/* ---- the end of a loop ------------------------------------------------- */

/* Its poller was reported, and nobody has looked after it yet. */
static void loop_ends_before_its_report(void) {
    azc_id in = waiting_here(10);
    CHECK(scripted_report(fd_of(in)));
    CHECK(azc_port_move(port) == 1 && tells(token, 0, 10) && nothing_is_told());
    CHECK(azc_port_close(port) == 0);
    sim_idle();
    CHECK(world.pollers == 1 && file_of(loop)->closed);
    recorded = 0;
    CHECK(azc_port_open(&port) == 0);
}

static void play_child(void) {
    sim_fork_ends();
    CHECK(world.abandoned == 2); /* the pump's poller, and the loop's */
    CHECK(!scripted_wakers());
    recorded = 0;
    CHECK(azc_port_open(&port) == 0);
    watch();
    azc_id in = waiting(10);
    CHECK(waits_here(in));
    report(in);
    CHECK(azc_port_move(port) == 1 && is_received_here(0, token, 10));
    fflush(NULL);
    _exit(0);
}

static void forked(void) {
    int status = -1;
    waiting_here(10);
    pid_t child = sim_fork();
    if (child == 0) play_child();
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* ---- all situations -------------------------------------------------- */

static const situation situations[] = {
    {"a port is watched twice", watched_twice},
    {"a loop receives", loop_receives},
    {"a receive that is closed is forgotten", closed_receive_is_forgotten},
    {"a turn takes all that is ready", a_turn_takes_all},
    {"a turn ends", a_turn_ends},
    {"a turn goes on", a_turn_goes_on},
    {"a receive with a `then` waits in the pump", receive_with_then_waits_in_the_pump},
    {"long receives wait in the pump", long_receives_wait_in_the_pump},
    {"watching fails for now", watching_fails_for_now},
    {"arming in the loop's poller fails for now", arming_here_fails_for_now},
    {"the pump takes over", pump_takes_over},
    {"the pump moves what waits for the loop", pump_moves_what_waits_here},
    {"a busy loop is looked at", busy_loop_is_looked_at},
    {"an idle loop is left alone", idle_loop_is_left_alone},
    {"watching fails after a look", watching_fails_after_a_look},
    {"work is given back", work_is_given_back},
    {"a loop does not answer", loop_does_not_answer},
    {"the pump gives up asking", pump_gives_up_asking},
    {"the next pump begins anew", next_pump_begins_anew},
    {"another pump ends", another_pump_ends},
    {"reports of others are ignored", reports_of_others_are_ignored},
    {"a loop ends before its report", loop_ends_before_its_report},
    {"a process forks", forked},
};

int main(int argc, char **argv) {
    int count = (int)(sizeof situations / sizeof *situations);
    return situations_play(situations, count, argc > 1 ? argv[1] : NULL);
}
