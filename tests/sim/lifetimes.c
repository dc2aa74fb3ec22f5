/* lifetimes.c - how numbers, ports and channels begin and end, over the kernel of
 * scripted.c: csrc/handle.c, port.c, channel.c, closing.c and fork.c.
 *
 * The table at the end lists the situations.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "port.h"
#include "situations.h"

/* ---- numbers --------------------------------------------------------- */

static uint32_t index_of(azc_id id) { return (uint32_t)id & ((1 << 20) - 1); }

static void numbers_are_used_again(void) {
    azc_id a = open_channel(SOCKET, AZC_OUT), b = open_channel(SOCKET, AZC_OUT);
    CHECK(index_of(a) == 0 && index_of(b) == 1 && azc__channels.used == 2);
    drop(a);
    drop(b);
    azc_id c = open_channel(SOCKET, AZC_OUT), d = open_channel(SOCKET, AZC_OUT);
    CHECK(index_of(c) == 1 && index_of(d) == 0 && azc__channels.used == 2);
    CHECK(c != b && d != a && azc_fd(a) == -ESHUTDOWN && azc_fd(c) == fd_of(c));
}

static void numbers_that_never_were(void) {
    azc_id a = open_channel(SOCKET, AZC_OUT);
    CHECK(azc_fd(a + 1) == -ESHUTDOWN && azc_fd(a + 1000) == -ESHUTDOWN);
    CHECK(!azc__handle_slot(&azc__channels, azc__channels.used));
}

/* ---- ports ----------------------------------------------------------- */

static void closed_port_is_refused(void) {
    azc_id closed, out = open_channel(SOCKET, AZC_OUT);
    struct iovec all = {memory, 300};
    CHECK(azc_port_open(&closed) == 0 && azc_port_close(closed) == 0);
    KERNEL_SAYS(-EAGAIN);
    CHECK(azc_sendv(out, closed, 1, &all, 1, NULL, 0, 0) == -ESHUTDOWN);
    CHECK(azc_close(out, closed, 1) == -ESHUTDOWN && inside(out)->state == OPEN);
    azc__port_retry(closed, NULL);
    CHECK(!azc__port_is_signalled(closed) && azc_port_fd(closed) == -ESHUTDOWN);
}

static void port_is_signalled_once(void) {
    int fd = azc_port_fd(port);
    CHECK(!azc__port_is_signalled(port) && !scripted_signalled(fd));
    azc__port_retry(port, NULL);
    CHECK(azc__port_is_signalled(port) && scripted_signalled(fd));
    CHECK(nothing_is_told());
    CHECK(!azc__port_is_signalled(port) && !scripted_signalled(fd));
}

/* The end takes the place of an earlier event that was not acknowledged. */
static void end_replaces_room(void) {
    azc_event event;
    azc_id out = open_channel(SOCKET, AZC_OUT);
    CHECK(azc_set_limit(out, 2048) == 0);
    KERNEL_SAYS(-EAGAIN, ALL, -EAGAIN);
    CHECK(put(out, 2000) == -EINPROGRESS);
    CHECK(put_from(out, memory, 100, true) == -EBUSY);
    sim_idle();
    report(out);
    CHECK(tells(token - 1, 0, 2000));
    CHECK(azc_port_take(port, recorded, &event, 1) == 1 && event.status == AZC_ROOM);
    KERNEL_SAYS(ALL);
    report(out);
    CHECK(tells(token, 0, 100) && nothing_is_told());
}

/* (a channel that ends may have posted that there is room) */
static void freed_note_tells_nothing(void) {
    azc_note *note;
    CHECK(azc__note_new(port, 7, &note) == 0 && azc_port_is_busy(port) == 1);
    azc__note_post(note, 0, AZC_ROOM, 0);
    azc__note_free(note);
    CHECK(nothing_is_told() && azc_port_is_busy(port) == 0);
}

static void port_gets_no_number(void) {
    azc_id none;
    uint32_t used = azc__ports.used;
    int wakers = scripted_wakers();
    azc__ports.used = SLOTS_A_CHUNK;
    world.no_memory = 2;
    CHECK(azc_port_open(&none) == -ENOMEM && scripted_wakers() == wakers);
    azc__ports.used = used;
}

/* ---- opening --------------------------------------------------------- */

static void opened_from_received_fds(void) {
    azc_id id;
    azc_fds fds = {.count = 2};
    fds.fds[0] = scripted_file(SOCKET);
    CHECK(azc_open_from(&fds, AZC_OUT, &id) == -EBADF && fds.count == 2);
    fds.count = 1;
    CHECK(azc_open_from(&fds, 0, &id) == -EINVAL && fds.count == 1);
    CHECK(azc_open_from(&fds, AZC_OUT, &id) == 0 && fds.count == 0);
    CHECK(azc_open_from(&fds, AZC_OUT, &id) == -EBADF);
    CHECK(azc_fd(id) == fds.fds[0] && azc_free(id) == 0);
}

static void kinds_of_files_are_known(void) {
    azc_id socket = open_channel(SOCKET, AZC_OUT), pipe = open_channel(PIPE, AZC_OUT);
    CHECK(file_of(fd_of(socket))->no_sigpipe && !file_of(fd_of(pipe))->no_sigpipe);
    CHECK(S_ISSOCK(inside(socket)->mode) && S_ISFIFO(inside(pipe)->mode));
}

static void fd_is_0(void) {
    world.first_fd = 0;
    azc_id out = open_channel(SOCKET, AZC_OUT), in;
    CHECK(azc_fd(out) == 0 && azc_open_opposite(out, &in) == 0 && azc_fd(in) == 0);
    CHECK(azc_close(out, 0, 0) == 1 && !file_of(0)->closed);
    CHECK(azc_fd(out) == -ESHUTDOWN && azc_open_opposite(out, &out) == -EBADF);
    world.lingers = 1;
    CHECK(azc_close(in, 0, 0) == -EINPROGRESS && world.threads == 1);
    sim_idle();
    CHECK(file_of(0)->closed && azc_free(in) == 0);
}

static void *close_meanwhile(void *unused) {
    azc_close(writing, 0, 0);
    return unused;
}

/* Its number would take memory.  If the other was closed meanwhile, it closes the fd. */
static void opposite_gets_no_number(void) {
    azc_id in;
    world.first_fd = 0;
    for (int i = 0; i < FDS - 1; i++) {
        world.count = 0;
        writing = open_channel(SOCKET, AZC_OUT);
        uint32_t used = azc__channels.used;
        sim_detach(sim_spawn(close_meanwhile, NULL));
        azc__channels.used = SLOTS_A_CHUNK;
        world.no_memory = 2;
        int r = azc_open_opposite(writing, &in);
        CHECK(r == -ENOMEM || r == -EBADF);
        azc__channels.used = used;
        world.no_memory = 0;
        sim_idle();
        CHECK(inside(writing)->state == CLOSED && world.files[0].closed);
    }
}

static void shutdown_tells_its_result(void) {
    azc_id out = open_channel(SOCKET, AZC_OUT);
    CHECK(azc_shutdown(out) == 0);
    world.shutdown_says = -ENOTCONN;
    CHECK(azc_shutdown(out) == -ENOTCONN);
    CHECK(azc_close(out, 0, 0) == 1 && azc_shutdown(out) == -ESHUTDOWN);
}

static void state_is_told(void) {
    azc_stats stats;
    azc_id out = open_channel(PIPE, AZC_OUT | AZC_OWN | AZC_READS);
    CHECK(azc_set_limit(out, 2048) == 0);
    KERNEL_SAYS(100);
    CHECK(put(out, 2000) == -EINPROGRESS);
    CHECK(put_from(out, memory, 1000, true) == -EBUSY);
    inside(out)->leftover = 7;
    CHECK(azc_get_stats(out, &stats) == 0 && stats.bytes == 100);
    CHECK(stats.queued_bytes == 1900 && stats.queued == 1 && stats.waiting == 1);
    CHECK(stats.leftover == 7 && stats.lends == 1 && stats.error == 0);
}

/* The sender of more bytes can run only if this receive does not ask again. */
static void one_cpu(void) {
    for (world.one_cpu = 0; world.one_cpu < 2; world.one_cpu++) {
        azc_id in = open_channel(SOCKET, AZC_IN);
        KERNEL_SAYS(16 * KIB, -EAGAIN, -EAGAIN, -EAGAIN);
        world.ncalls = 0;
        CHECK(get(in, 100 * KIB) == -EINPROGRESS);
        CHECK(world.ncalls == (world.one_cpu ? 1 : 3));
    }
}

/* ---- closing --------------------------------------------------------- */

/* How many threads it takes to close an idle file of this kind. */
static int threads_to_close(int kind) {
    azc_id id = open_channel(kind, AZC_OUT);
    const file *it = file_of(fd_of(id));
    int threads = world.threads;
    CHECK(azc_close(id, port, 2000) == -EINPROGRESS);
    sim_idle();
    CHECK(it->closed && tells(2000, 0, 0) && azc_free(id) == 0);
    return world.threads - threads;
}

static void slow_files_are_closed_in_a_thread(void) {
    CHECK(threads_to_close(PIPE) == 0 && threads_to_close(SOCKET) == 0);
    CHECK(threads_to_close(REGULAR) == 1 && threads_to_close(TTY) == 1);
    CHECK(threads_to_close(DEVICE) == 1);
    world.lingers = 1;
    CHECK(threads_to_close(SOCKET) == 1);
    world.no_thread = 1;
    CHECK(threads_to_close(REGULAR) == 0);
}

static void no_memory_for_a_thread(void) {
    azc_id id = open_channel(REGULAR, AZC_OUT);
    world.no_memory = 1;
    CHECK(azc_close(id, 0, 0) == 1 && file_of(FIRST_FD)->closed && !world.threads);
}

static void private_pump_closes(void) {
    azc_id tty = open_full(TTY, AZC_OUT, 300);
    CHECK(world.threads == 1);
    drop(tty);
    CHECK(file_of(FIRST_FD)->closed && world.threads == 1);
}

/* ---- forking and the exit -------------------------------------------- */

static azc_id held;
static bool may_go;

static bool goes(void *unused) {
    (void)unused;
    return may_go;
}

static void *hold_its_lock(void *unused) {
    azc_channel *channel = azc__find(held);
    sim_wait(goes, NULL, SIM_FOREVER);
    azc__leave(channel);
    return unused;
}

/* In the child there is no thread that would release the lock. */
static void lock_was_held_at_a_fork(void) {
    int status = -1;
    held = open_channel(SOCKET, AZC_OUT);
    may_go = false;
    sim_detach(sim_spawn(hold_its_lock, NULL));
    sim_idle();
    pid_t child = sim_fork();
    if (child == 0) {
        sim_fork_ends();
        CHECK(azc_fd(held) == -ECHILD);
        fflush(NULL);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    may_go = true;
    sim_idle();
}

static void check_child(const bool *closes) {
    sim_fork_ends();
    for (int i = 0; i < world.count; i++) CHECK(world.files[i].closed == closes[i]);
    CHECK(!scripted_wakers());
    fflush(NULL);
    _exit(0);
}

static void fork_and_check(const bool *closes) {
    int status = -1;
    pid_t child = sim_fork();
    if (child == 0) check_child(closes);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* It closes its copies of the fds that a peer waits for, if they are ours. */
static void child_closes_fds(void) {
    static const bool closes[] = {true, false, true, false, false,
                                  true, true,  true, true};
    world.first_fd = 0;
    azc_id out = open_channel(SOCKET, AZC_OUT), in;
    CHECK(azc_open_opposite(out, &in) == 0);
    open_channel(REGULAR, AZC_OUT);
    open_channel(TTY, AZC_OUT);
    inside(open_channel(SOCKET, AZC_OUT))->file->lost = true;
    file_of(fd_of(open_channel(SOCKET, AZC_OUT)))->replaced = true;
    CHECK(azc_close(open_channel(PIPE, AZC_OUT), 0, 0) == 1);
    int *between = inside(out)->lender.between.ends;
    for (int i = 0; i < 2; i++) between[i] = scripted_file(PIPE);
    fork_and_check(closes);
    CHECK(azc_free(in) == 0);
}

static void child_closes_a_relays_fds(void) {
    static const bool closes[] = {true, true};
    int failed;
    azc_id relay;
    azc_relay_request wanted = {.source = open_channel(SOCKET, AZC_IN),
                                .sink = open_channel(SOCKET, AZC_OUT),
                                .port = port,
                                .token = 3000,
                                .nbytes = 10};
    CHECK(azc_relay_open(&wanted, &relay, &failed) == -EINPROGRESS);
    sim_idle();
    CHECK(scripted_wakers() == 4);
    fork_and_check(closes);
    CHECK(azc_relay_free(relay) == 0);
}

/* The child shares the pipe, but not what the parent lent to it. */
static void child_forgets_loans(void) {
    azc_id pipe = open_channel(PIPE, LENDS);
    const azc_party *lends = &inside(pipe)->lender.party;
    int status = -1;
    CHECK(lends->joined);
    pid_t child = sim_fork();
    if (child == 0) {
        azc_party passes;
        sim_fork_ends();
        CHECK(azc__party_join(&passes, lends->device, lends->inode, false));
        fflush(NULL);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void stop_during_a_call(void) {
    uint64_t before = world.now;
    CHECK(azc_stop(0) == -ETIMEDOUT && !world.sleeps);
    CHECK(azc_stop(3) == -ETIMEDOUT && world.sleeps == 3);
    CHECK(world.now == before + 3000000);
}

static void exit_waits_for_a_call(void) {
    azc_id out = open_channel(SOCKET, AZC_OUT); /* has the first slot */
    azc_id idle = open_channel(SOCKET, AZC_OUT);
    KERNEL_SAYS(ALL);
    scripted_meanwhile(0, stop_during_a_call);
    put(out, 300);
    CHECK(azc_stop(1) == 0 && world.sleeps == 3);
    CHECK(inside(idle)->state == CLOSED && inside(out)->state == CLOSED);
}

static void unsent_bytes_are_counted(void) {
    azc_id out = open_channel(SOCKET, AZC_OUT), in = open_channel(SOCKET, AZC_IN);
    CHECK(azc_unsent() == 0);
    KERNEL_SAYS(-EAGAIN);
    CHECK(get(in, 1000) == -EINPROGRESS);
    KERNEL_SAYS(100);
    CHECK(put(out, 300) == -EINPROGRESS && put(out, 40) == -EINPROGRESS);
    CHECK(azc_unsent() == 240);
    inside(out)->queue.head->expected = 1000;
    CHECK(azc_unsent() == 940);
}

/* ---- all situations -------------------------------------------------- */

static const situation situations[] = {
    {"numbers are used again", numbers_are_used_again},
    {"numbers that never were", numbers_that_never_were},
    {"a closed port is refused", closed_port_is_refused},
    {"a port is signalled once", port_is_signalled_once},
    {"the end replaces an event about room", end_replaces_room},
    {"a note that is freed tells nothing", freed_note_tells_nothing},
    {"a port gets no number", port_gets_no_number},
    {"a channel is opened from received fds", opened_from_received_fds},
    {"kinds of files are known", kinds_of_files_are_known},
    {"an fd is 0", fd_is_0},
    {"the opposite gets no number", opposite_gets_no_number},
    {"a shutdown tells its result", shutdown_tells_its_result},
    {"a channel's state is told", state_is_told},
    {"there is one CPU", one_cpu},
    {"slow files are closed in a thread", slow_files_are_closed_in_a_thread},
    {"no memory for a thread", no_memory_for_a_thread},
    {"a private pump closes", private_pump_closes},
    {"a lock was held at a fork", lock_was_held_at_a_fork},
    {"a child closes fds", child_closes_fds},
    {"a child closes a relay's fds", child_closes_a_relays_fds},
    {"a child forgets loans", child_forgets_loans},
    {"the exit waits for a call", exit_waits_for_a_call},
    {"unsent bytes are counted", unsent_bytes_are_counted},
};

int main(int argc, char **argv) {
    int count = (int)(sizeof situations / sizeof *situations);
    return situations_play(situations, count, argc > 1 ? argv[1] : NULL);
}
