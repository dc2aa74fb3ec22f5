/* scripted.c - a kernel that gives scripted answers; see scripted.h. */
#include "scripted.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "sys.h"

enum { POISON = 0xdd, FIRST_WAKER = 500, WAKERS = 32, REPORTS = 8, POLLERS = 8 };

/* (a new one has the address of the last that was closed) */
struct azc_poller {
    bool open;
    int fd; /* of a loop's poller, or 0 */
    bool woken;
    uint64_t until; /* end of its wait */
    int waiting;    /* the thread that waits */
    uint64_t reports[REPORTS];
    int count;
};

typedef struct block {
    struct block *next;
    size_t size;
    bool released;
    max_align_t memory[];
} block;

kernel world;
static block *blocks;
static bool open_wakers[2 * WAKERS], signalled[WAKERS]; /* (by ends; by pairs) */
static azc_poller pollers[POLLERS];

/* ---- memory ---------------------------------------------------------- */

static void *allocate(size_t n) {
    if (world.no_memory && --world.no_memory == 0) return NULL;
    block *it = malloc(sizeof *it + n);
    if (!it) abort();
    *it = (block){.next = blocks, .size = n};
    blocks = it;
    return it->memory;
}

static void release(void *memory) {
    if (!memory) return;
    block *it = (block *)(void *)((char *)memory - offsetof(block, memory));
    SIM_CHECK(!it->released, "memory is released twice");
    it->released = true;
    memset(memory, POISON, it->size);
}

static bool is_poison(const block *it) {
    const unsigned char *at = (const unsigned char *)it->memory;
    for (size_t i = 0; i < it->size; i++)
        if (at[i] != POISON) return false;
    return true;
}

static void release_blocks(void) {
    while (blocks) {
        block *it = blocks;
        SIM_CHECK(it->released, "%zu bytes are left", it->size);
        SIM_CHECK(is_poison(it), "released memory was written to");
        blocks = it->next;
        free(it);
    }
}

static ssize_t copy(void *to, const void *from, size_t n) {
    if (world.unreadable) return -EFAULT;
    memcpy(to, from, n);
    return (ssize_t)n;
}

static size_t page_size(void) { return 4096; }

static void *map(size_t n) {
    void *at =
        mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static void prefer_huge(void *at, size_t n) { (void)at, (void)n; }

static int remap(void *from, size_t n, void *to) {
    if (world.keeps_pages) return -ENOMEM;
    world.taken_back = to;
    memcpy(to, from, n);
    return munmap(from, n);
}

static int replace(void *at, size_t n) {
    (void)at, (void)n;
    return -ENOMEM;
}

/* ---- files ----------------------------------------------------------- */

int scripted_file(int kind) {
    SIM_CHECK(world.count < FDS, "too many files");
    world.files[world.count] = (file){.kind = kind};
    return world.first_fd + world.count++;
}

file *file_of(int fd) {
    int i = fd - world.first_fd;
    SIM_CHECK(i >= 0 && i < world.count, "no fd: %d", fd);
    return &world.files[i];
}

static int fake_identify(int fd, struct stat *st) {
    static const mode_t modes[] = {S_IFSOCK, S_IFIFO, S_IFCHR, S_IFREG, S_IFCHR};
    file *it = file_of(fd);
    it->looks++;
    memset(st, 0, sizeof *st);
    st->st_mode = modes[it->kind];
    st->st_ino = (ino_t)fd + (it->replaced ? FDS : 0);
    return 0;
}

static int fake_is_tty(int fd) { return file_of(fd)->kind == TTY; }

static int succeed(int fd) {
    (void)fd;
    return 0;
}

static int takes_loans(int fd) { return fd >= 0 && !world.no_loans; }

static int set_nonblock(int fd) {
    file_of(fd)->nonblock = true;
    return 0;
}

static int fake_no_sigpipe(int fd) {
    file_of(fd)->no_sigpipe = true;
    return 0;
}

static int fake_linger(int fd) { return fd < 0 ? fd : world.lingers; }

static int fake_shutdown(int fd) { return fd < 0 ? fd : world.shutdown_says; }

static bool is_waker(int fd) {
    return fd >= FIRST_WAKER && fd < FIRST_WAKER + 2 * WAKERS;
}

static int fake_close(int fd) {
    bool *open = &open_wakers[is_waker(fd) ? fd - FIRST_WAKER : 0];
    if (is_waker(fd)) {
        SIM_CHECK(*open, "waker %d is closed twice", fd);
        *open = false;
        return 0;
    }
    SIM_CHECK(!file_of(fd)->closed, "fd %d is closed twice", fd);
    file_of(fd)->closed = true;
    return 0;
}

static void close_between(sys_between *between) { sys_close_both(between->ends); }

/* ---- calls that move bytes ------------------------------------------- */

void scripted_say(const int *script, int count) {
    SIM_CHECK(count <= ANSWERS, "%d answers", count);
    memset(world.meanwhile, 0, sizeof world.meanwhile);
    world.script = script;
    world.answers = count;
    world.answered = 0;
}

void scripted_meanwhile(int i, void (*act)(void)) { world.meanwhile[i] = act; }

static size_t size_of(const struct iovec *vec, int count) {
    size_t n = 0;
    for (int i = 0; i < count; i++) n += vec[i].iov_len;
    return n;
}

static int next_answer(void (**meanwhile)(void)) {
    *meanwhile = NULL;
    if (world.answered == world.answers) return world.takes_all ? ALL : -EAGAIN;
    *meanwhile = world.meanwhile[world.answered];
    return world.script[world.answered++];
}

static ssize_t move(int fd, const struct iovec *vec, int count, call how) {
    SIM_CHECK(!sim_holds_locks(), "a call with a lock held");
    SIM_CHECK(world.ncalls < CALLS, "too many calls");
    void (*meanwhile)(void);
    int answer = next_answer(&meanwhile);
    call *call = &world.calls[world.ncalls++];
    world.now += world.ns_per_call;
    *call = how;
    call->fd = fd;
    call->bytes = size_of(vec, count);
    call->in_caller = sim_self() == 0;
    call->round = world.rounds;
    call->looks = file_of(fd)->looks;
    if (meanwhile) meanwhile();
    call->returned = answer == ALL ? (int)call->bytes : answer;
    sim_trace("fd %ld, %ld bytes: %ld", fd, (int64_t)call->bytes, call->returned);
    SIM_CHECK(call->returned <= (int)call->bytes, "more than there is");
    return call->returned;
}

static ssize_t plain(int fd, const struct iovec *vec, int count) {
    return move(fd, vec, count, (call){0});
}

static ssize_t on_pipe(int fd, const struct iovec *vec, int count, int how) {
    return move(fd, vec, count, (call){.nowait = how & SYS_NOWAIT});
}

static ssize_t fake_write_piece(int fd, const void *data, size_t n) {
    struct iovec vec = {(void *)(uintptr_t)data, n};
    return move(fd, &vec, 1, (call){0});
}

static ssize_t fake_lend(int fd, sys_between *between, const struct iovec *vec,
                         int count) {
    (void)between;
    return move(fd, vec, count, (call){.lends = true});
}

static ssize_t fake_send(int fd, const struct iovec *vec, int count,
                         const azc_fds *fds) {
    return move(fd, vec, count, (call){.with_fds = fds != NULL});
}

static ssize_t fake_recv(int fd, const struct iovec *vec, int count, azc_fds *fds) {
    return move(fd, vec, count, (call){.with_fds = fds != NULL});
}

static ssize_t fake_unread(int fd, bool socket) {
    (void)fd, (void)socket;
    return world.unread;
}

static void fake_block_sigpipe(sys_sigpipe *state) {
    state->blocked = true;
    world.sigpipes_held++;
    world.sigpipes++;
}

static void fake_restore_sigpipe(const sys_sigpipe *state, ssize_t written) {
    (void)written;
    SIM_CHECK(state->blocked, "SIGPIPE was not blocked");
    world.sigpipes_held--;
}

size_t scripted_bytes(void) {
    size_t bytes = 0;
    for (int i = 0; i < world.ncalls; i++)
        if (world.calls[i].returned > 0) bytes += (size_t)world.calls[i].returned;
    return bytes;
}

/* ---- wakers ----------------------------------------------------------- */

static int open_waker(int ends[2]) {
    int i = 0;
    while (i < 2 * WAKERS && (open_wakers[i] || open_wakers[i + 1])) i += 2;
    SIM_CHECK(i < 2 * WAKERS, "too many wakers");
    open_wakers[i] = open_wakers[i + 1] = true;
    signalled[i / 2] = false;
    ends[0] = FIRST_WAKER + i;
    ends[1] = ends[0] + 1;
    return 0;
}

int scripted_wakers(void) {
    int count = 0;
    for (int i = 0; i < 2 * WAKERS; i++) count += open_wakers[i];
    return count;
}

static bool *signal_of(int fd, int end) {
    SIM_CHECK(is_waker(fd) && fd % 2 == end, "fd %d is not this end of a waker", fd);
    return &signalled[(fd - FIRST_WAKER) / 2];
}

static void fake_signal(int fd) { *signal_of(fd, 1) = true; }

static void fake_clear(int fd) { *signal_of(fd, 0) = false; }

bool scripted_signalled(int fd) { return *signal_of(fd, 0); }

static bool is_signalled(void *fd) { return scripted_signalled((int)(intptr_t)fd); }

/* Only a relay waits here, until it is woken; other fds are always ready. */
static int fake_poll(struct pollfd *fds, nfds_t count, int timeout_ms) {
    if (timeout_ms) sim_wait(is_signalled, (void *)(intptr_t)fds[0].fd, SIM_FOREVER);
    if (world.poll_error) return world.poll_error;
    int ready = 0;
    for (nfds_t i = 0; i < count; i++) {
        fds[i].revents = (world.full ? 0 : fds[i].events) | world.told;
        ready += fds[i].revents != 0;
    }
    return ready;
}

/* ---- pollers --------------------------------------------------------- */

int azc__poller_open(azc_poller **out, bool wakes) {
    azc_poller *it = pollers;
    while (it < pollers + POLLERS && it->open) it++;
    SIM_CHECK(it < pollers + POLLERS, "too many pollers");
    *it = (azc_poller){.open = true, .waiting = -1};
    *out = it;
    world.pollers++;
    if (wakes) return 0;
    it->fd = scripted_file(LOOP);
    file_of(it->fd)->polls = it;
    return 0;
}

void azc__poller_close(azc_poller *poller) {
    for (int i = 0; i < world.count; i++)
        if (world.files[i].poller == poller) world.files[i].poller = NULL;
    if (poller->fd) azc_sys.close(poller->fd);
    SIM_CHECK(poller->open, "a poller is closed twice");
    world.pollers--;
    poller->open = false;
}

int azc__poller_fd(const azc_poller *poller) { return poller->fd; }

bool azc__poller_is_readable(const azc_poller *poller) { return poller->count; }

void azc__poller_abandon(azc_poller *poller) {
    SIM_CHECK(poller->waiting, "a poller is abandoned by its own thread");
    world.abandoned++;
}

int azc__poller_arm(azc_poller *poller, int fd, int what, uint64_t who) {
    file *it = file_of(fd);
    int r = it->arm_fails;
    (void)what;
    it->arm_fails = 0;
    it->arms++;
    sim_trace("fd %ld is armed: %ld", fd, r, 0);
    if (r < 0) return r;
    it->poller = poller;
    it->who = who;
    if (it->ready || (it->polls && it->polls->count)) scripted_report(fd);
    return 0;
}

static void drop_report(azc_poller *poller, uint64_t who) {
    int kept = 0;
    for (int i = 0; i < poller->count; i++)
        if (poller->reports[i] != who) poller->reports[kept++] = poller->reports[i];
    poller->count = kept;
}

void azc__poller_forget(azc_poller *poller, int fd) {
    file *it = file_of(fd);
    drop_report(poller, it->who);
    bool forgets = it->poller == poller;
    bool loops = poller->fd || (it->poller && it->poller->fd);
    SIM_CHECK(!it->poller || forgets || loops, "another's fd %d", fd);
    if (forgets) it->poller = NULL;
    it->forgotten++;
}

void azc__poller_wake(azc_poller *poller) {
    SIM_CHECK(poller->waiting != sim_self(), "a pump wakes itself");
    world.wakes++;
    poller->woken = true;
}

static uint64_t any_armed(void) {
    for (int i = 0; i < world.count; i++)
        if (world.files[i].poller && !world.files[i].polls) return world.files[i].who;
    return 0;
}

static bool wait_is_over(void *arg) {
    const azc_poller *poller = arg;
    return poller->woken || poller->count || poller->until <= world.now;
}

static void wait_for_reports(azc_poller *poller, int timeout_us) {
    SIM_CHECK(!sim_holds_locks(), "a thread waits with a lock held");
    sim_trace("waits for %ld us", timeout_us, 0, 0);
    world.timeouts[world.rounds++ % ROUNDS] = timeout_us;
    poller->until = world.now + (uint64_t)timeout_us * 1000;
    poller->waiting = sim_self();
    sim_wait(wait_is_over, poller, SIM_FOREVER);
}

int azc__poller_wait(azc_poller *poller, uint64_t *who, int max, int timeout_us) {
    SIM_CHECK(!poller->fd || !timeout_us, "a wait in a loop's poller");
    if (poller->fd)
        world.takes++;
    else
        wait_for_reports(poller, timeout_us);
    int count = poller->count < max ? poller->count : max;
    memcpy(who, poller->reports, (size_t)count * sizeof *who);
    /* (other entries name a channel that is not ready: using one makes a call) */
    for (int i = count; i < max; i++) who[i] = any_armed();
    poller->count -= count;
    memmove(poller->reports, poller->reports + count,
            (size_t)poller->count * sizeof *who);
    poller->woken = false;
    return count;
}

bool scripted_report(int fd) {
    file *it = file_of(fd);
    azc_poller *by = it->poller;
    if (!by) return false;
    SIM_CHECK(by->count < REPORTS, "too many reports");
    by->reports[by->count++] = it->who;
    it->poller = NULL;
    if (by->fd) scripted_report(by->fd);
    return true;
}

void scripted_wake(azc_poller *poller) { poller->woken = true; }

int scripted_timeout(void) { return world.timeouts[(world.rounds - 1) % ROUNDS]; }

/* ---- threads and time ------------------------------------------------ */

static int fake_thread_start(pthread_t *thread, void *(*run)(void *), void *arg) {
    if (world.no_thread) {
        world.no_thread--;
        return -EAGAIN;
    }
    world.threads++;
    int number = sim_spawn(run, arg);
    sim_detach(number);
    *thread = (pthread_t)(uintptr_t)(number + 1);
    return 0;
}

static int fake_has_one_cpu(void) { return world.one_cpu; }

static uint64_t fake_now_ns(void) {
    world.clocks++;
    return world.now;
}

static void fake_sleep_us(unsigned us) {
    world.now += us * UINT64_C(1000);
    world.sleeps++;
}

void scripted_pass_ns(uint64_t ns) {
    world.now += ns;
    sim_idle();
}

void scripted_pass(uint64_t us) { scripted_pass_ns(us * 1000); }

/* ---- beginning and ending -------------------------------------------- */

struct azc_sys azc_sys = {
    .write_file = plain,
    .write_pipe = on_pipe,
    .read = on_pipe,
    .write_piece = fake_write_piece,
    .block_sigpipe = fake_block_sigpipe,
    .restore_sigpipe = fake_restore_sigpipe,
    .lend = fake_lend,
    .unread = fake_unread,
    .send = fake_send,
    .recv = fake_recv,
    .poll = fake_poll,
    .identify = fake_identify,
    .is_tty = fake_is_tty,
    .set_nonblock = set_nonblock,
    .is_nonblocking = succeed,
    .no_sigpipe = fake_no_sigpipe,
    .takes_loans = takes_loans,
    .linger = fake_linger,
    .shutdown = fake_shutdown,
    .close = fake_close,
    .close_between = close_between,
    .open_waker = open_waker,
    .signal = fake_signal,
    .clear = fake_clear,
    .allocate = allocate,
    .release = release,
    .copy = copy,
    .page_size = page_size,
    .map = map,
    .unmap = munmap,
    .prefer_huge = prefer_huge,
    .remap = remap,
    .replace = replace,
    .thread_start = fake_thread_start,
    .has_one_cpu = fake_has_one_cpu,
    .now_ns = fake_now_ns,
    .sleep_us = fake_sleep_us,
};

void scripted_begin(void) {
    memset(&world, 0, sizeof world);
    world.now = 1000 * UINT64_C(1000000000);
    world.first_fd = FIRST_FD;
    memset(open_wakers, 0, sizeof open_wakers);
    memset(pollers, 0, sizeof pollers);
    sim_begin(1, false);
}

void scripted_end(void) {
    sim_idle();
    SIM_CHECK(!world.pollers, "%d pumps are left", world.pollers);
    SIM_CHECK(!scripted_wakers(), "%d ends of wakers are left", scripted_wakers());
    sim_end();
    sim_forget_numbers();
    release_blocks();
}
