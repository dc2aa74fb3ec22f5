/* splicing.c - splice, sendfile and a relay's own pipe; see splicing.h. */
#include "splicing.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"
#include "poller.h"
#include "sys.h"
#include "threads.h"

enum {
    PIPES = 256,
    FIRST_END = 3000,
    TAKEN_MAX = 1 << 20,
    POLLED = 3,
    FRUITLESS_MAX = 60, /* polls without progress at one time */
};

typedef struct own_pipe {
    bool open[2];
    size_t capacity, level;
    unsigned char *data;
} own_pipe;

uint64_t sim_spliced;

static struct {
    own_pipe pipes[PIPES];
    int count;
    uint64_t moment;      /* time and progress at the last poll */
    int fruitless;        /* polls since then without a change */
    struct azc_sys files; /* the kernel's calls for all other fds */
    unsigned char taken[TAKEN_MAX];
} splicing;

/* ---- pipes ------------------------------------------------------------ */

static bool is_own(int fd) { return fd >= FIRST_END; }

static own_pipe *pipe_of(int fd) {
    int i = (fd - FIRST_END) / 2, end = (fd - FIRST_END) % 2;
    SIM_CHECK(i < splicing.count && splicing.pipes[i].open[end],
              "no such end of a pipe: %d", fd);
    return &splicing.pipes[i];
}

static int fake_pipe(int fds[2]) {
    if (kernel_strikes(kernel_rates.no_fd, FAULT_NO_FD)) {
        kernel_excuses.no_fd = true;
        return -EMFILE;
    }
    SIM_CHECK(splicing.count < PIPES, "too many pipes");
    own_pipe *it = &splicing.pipes[splicing.count];
    *it = (own_pipe){.open = {true, true}, .capacity = 4096};
    fds[0] = FIRST_END + 2 * splicing.count++;
    fds[1] = fds[0] + 1;
    return 0;
}

/* The pipe may keep its size. */
static void fake_enlarge(int fd, int bytes) {
    if (sim_chance(700)) pipe_of(fd)->capacity = (size_t)bytes;
}

static int fake_close(int fd) {
    if (!is_own(fd)) return splicing.files.close(fd);
    own_pipe *it = pipe_of(fd);
    it->open[(fd - FIRST_END) % 2] = false;
    if (it->open[0] || it->open[1]) return 0;
    free(it->data);
    it->data = NULL;
    return 0;
}

static void append(own_pipe *it, const unsigned char *data, size_t n) {
    it->data = realloc(it->data, it->level + n);
    if (!it->data) abort();
    memcpy(it->data + it->level, data, n);
    it->level += n;
}

static void drop_first(own_pipe *it, size_t n) {
    it->level -= n;
    memmove(it->data, it->data + n, it->level);
}

/* Reads only what the pipe holds: an empty one would block the caller for good. */
static ssize_t fake_read(int fd, const struct iovec *vec, int count, int how) {
    if (!is_own(fd)) return splicing.files.read(fd, vec, count, how);
    own_pipe *it = pipe_of(fd);
    SIM_CHECK(it->level && count == 1, "an empty pipe is read");
    if (kernel_strikes(kernel_rates.interrupted, FAULT_INTERRUPTED)) return -EINTR;
    size_t n = vec->iov_len < it->level ? vec->iov_len : it->level;
    n = kernel_cut(n);
    memcpy(vec->iov_base, it->data, n);
    drop_first(it, n);
    return (ssize_t)n;
}

/* ---- between two ------------------------------------------------------ */

static size_t least(size_t n, size_t m) { return n < m ? n : m; }

static ssize_t take(sim_file *from, size_t n) {
    struct iovec vec = {splicing.taken, least(n, TAKEN_MAX)};
    return kernel_take(from, &vec, 1, false);
}

static ssize_t put(sim_file *to, unsigned char *data, size_t n) {
    struct iovec vec = {data, n};
    ssize_t r = kernel_put(to, &vec, 1, n);
    SIM_CHECK(r == (ssize_t)n, "what was taken is not put");
    sim_spliced += n;
    return r;
}

static ssize_t put_piped(own_pipe *from, int to, size_t n) {
    sim_file *file = kernel_file(to);
    bool allowed = kernel_begin_move(file, true, 1);
    ssize_t r = allowed ? kernel_room(file, false) : -EAGAIN;
    if (r > 0) {
        n = kernel_cut(least(least(n, from->level), (size_t)r));
        r = put(file, from->data, n);
        drop_first(from, n);
    }
    kernel_end_move(file, true, r);
    return r;
}

static ssize_t take_piped(int from, own_pipe *to, size_t n) {
    sim_file *file = kernel_file(from);
    if (to->level == to->capacity) return -EAGAIN;
    bool allowed = kernel_begin_move(file, false, 1);
    ssize_t r = allowed ? take(file, least(n, to->capacity - to->level)) : -EAGAIN;
    if (r > 0) append(to, splicing.taken, (size_t)r);
    kernel_end_move(file, false, r);
    return r;
}

static ssize_t move_directly(int from, int to, size_t n) {
    sim_file *source = kernel_file(from), *sink = kernel_file(to);
    bool allowed = kernel_begin_move(sink, true, 1);
    allowed &= kernel_begin_move(source, false, 1);
    ssize_t r = allowed ? kernel_room(sink, false) : -EAGAIN;
    if (r > 0) r = take(source, least(n, (size_t)r));
    if (r > 0) r = put(sink, splicing.taken, (size_t)r);
    kernel_end_move(source, false, r);
    kernel_end_move(sink, true, r);
    return r;
}

/* The kernel may refuse any two files at any time. */
static bool is_refused(void) {
    return kernel_strikes(kernel_rates.refused / 4, FAULT_REFUSED);
}

static ssize_t fake_splice(int from, int to, size_t n) {
    static const int refusals[] = {-EINVAL, -ENOSYS, -EOPNOTSUPP};
    SIM_CHECK(!sim_holds_locks(), "a splice with a lock held");
    SIM_CHECK(n, "a splice of nothing");
    if (is_refused()) return refusals[sim_below(3)];
    ssize_t r = is_own(from) ? put_piped(pipe_of(from), to, n)
                : is_own(to) ? take_piped(from, pipe_of(to), n)
                             : move_directly(from, to, n);
    sim_trace("splice %ld to %ld: %ld", from, to, r);
    return r;
}

static ssize_t fake_sendfile(int from, int to, size_t n) {
    SIM_CHECK(kernel_file(from)->kind == REGULAR, "sendfile from no file");
    if (is_refused()) return -EINVAL;
    ssize_t r = move_directly(from, to, n);
    sim_trace("sendfile %ld to %ld: %ld", from, to, r);
    return r;
}

/* ---- waiting ---------------------------------------------------------- */

static short events_of(const struct pollfd *it) {
    if (kernel_is_waker(it->fd)) return kernel_signalled(it->fd) ? POLLIN : 0;
    sim_file *file = kernel_file(it->fd);
    if (it->events & POLLIN && kernel_is_ready(file, POLLER_IN)) return POLLIN;
    if (it->events & POLLOUT && kernel_is_ready(file, POLLER_OUT)) return POLLOUT;
    if (!it->events && file->flow[1].ended) return POLLERR;
    return 0;
}

static bool any_ready(void *arg) {
    const struct pollfd *fds = arg;
    for (int i = 0; i < POLLED && fds[i].fd >= 0; i++)
        if (events_of(&fds[i])) return true;
    return false;
}

/* A thread that polls again and again without progress is in a busy loop. */
static void check_fruitless(void) {
    uint64_t moment = sim_now() + kernel_progress;
    splicing.fruitless = moment == splicing.moment ? splicing.fruitless + 1 : 0;
    splicing.moment = moment;
    SIM_CHECK(splicing.fruitless < FRUITLESS_MAX, "a relay is a busy loop");
}

static int fake_poll(struct pollfd *fds, nfds_t count, int timeout_ms) {
    struct pollfd polled[POLLED + 1] = {{.fd = -1}, {.fd = -1}, {.fd = -1}};
    int ready = 0;
    if (timeout_ms == 0) return splicing.files.poll(fds, count, 0);
    SIM_CHECK(count <= POLLED, "a poll of %d", (int)count);
    SIM_CHECK(!sim_holds_locks(), "a thread waits with a lock held");
    check_fruitless();
    if (kernel_strikes(kernel_rates.interrupted, FAULT_INTERRUPTED)) return -EINTR;
    memcpy(polled, fds, count * sizeof *fds);
    sim_wait(any_ready, polled, timeout_ms);
    for (nfds_t i = 0; i < count; i++) {
        fds[i].revents = events_of(&fds[i]);
        ready += fds[i].revents != 0;
    }
    return ready;
}

/* Other owners of a socket may change it at any time. */
static int fake_is_nonblocking(int fd) {
    SIM_CHECK(kernel_file(fd)->kind == SOCKET, "not a socket: %d", fd);
    return !sim_chance(50);
}

/* ---- beginning and ending --------------------------------------------- */

void splicing_begin(void) {
    splicing.count = splicing.fruitless = 0;
    if (azc_sys.pipe) return;
    splicing.files = azc_sys;
    azc_sys.pipe = fake_pipe;
    azc_sys.enlarge = fake_enlarge;
    azc_sys.close = fake_close;
    azc_sys.read = fake_read;
    azc_sys.splice = fake_splice;
    azc_sys.sendfile = fake_sendfile;
    azc_sys.poll = fake_poll;
    azc_sys.is_nonblocking = fake_is_nonblocking;
}

void splicing_end(void) {
    for (int i = 0; i < splicing.count; i++)
        SIM_CHECK(!splicing.pipes[i].open[0] && !splicing.pipes[i].open[1],
                  "a pipe of a relay is left open");
}
