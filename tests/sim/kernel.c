/* kernel.c - the simulated kernel: files, faults, memory; see kernel.h. */
#include "kernel.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "locks.h"
#include "poller.h"
#include "sys.h"
#include "threads.h"

enum { PATTERN = 65521, BAD_RANGES = 64, PATIENCE_MS = 1500 };

uint64_t sim_faults[FAULTS], sim_bytes;
const char *const sim_fault_names[FAULTS] = {
    "short count", "EAGAIN",    "EINTR",     "out of buffers", "broken",
    "bad memory",  "no memory", "no thread", "no fd",          "spurious",
    "peer died",   "fd stolen", "succeeded", "stalled",        "loan refused",
    "late count",  "no pages",  "kept",      "blocking",       "lingers",
};
sim_rates kernel_rates;
bool kernel_in_child;
uint64_t kernel_progress;
sim_excuses kernel_excuses;
int kernel_allocations_left;
bool (*kernel_is_caller)(int thread);
void (*kernel_on_move)(sim_file *file, bool out);

typedef struct range {
    const char *from;
    size_t n;
} range;

static struct {
    sim_file files[SIM_FILES];
    int count;
    int file_of[SIM_FILES]; /* by number */
    range bad[BAD_RANGES];
    int64_t allocated;
    bool faults_off;
} kernel;

/* ---- faults ---------------------------------------------------------- */

bool kernel_strikes(unsigned rate, int fault) {
    if (kernel.faults_off || !sim_chance(rate)) return false;
    sim_faults[fault]++;
    kernel_progress++;
    return true;
}

void kernel_set_faults(bool on) { kernel.faults_off = !on; }

static unsigned draw_rate(unsigned often) {
    const unsigned rates[] = {0, 8, 60, often};
    return rates[sim_below(4)];
}

sim_rates kernel_draw_rates(void) {
    sim_rates rates = {0};
    if (sim_chance(256)) return rates; /* a kernel without faults */
    rates.cut = draw_rate(700);
    rates.again = draw_rate(300);
    rates.interrupted = draw_rate(200);
    rates.starved = draw_rate(200);
    rates.spurious = draw_rate(500);
    rates.one_cpu = draw_rate(500);
    if (sim_chance(256)) rates.broken = draw_rate(100) / 4;
    if (sim_chance(200)) rates.no_memory = draw_rate(150);
    if (sim_chance(150)) rates.no_thread = draw_rate(400);
    if (sim_chance(150)) rates.no_fd = draw_rate(200);
    if (sim_chance(256)) rates.refused = draw_rate(200) / 2;
    if (sim_chance(256)) rates.no_pages = draw_rate(600);
    if (sim_chance(100)) rates.kept = draw_rate(600);
    return rates;
}

static void *allocate(size_t n) {
    if (kernel_strikes(kernel_rates.no_memory, FAULT_NO_MEMORY)) {
        kernel_excuses.no_memory = true;
        sim_trace("allocate(%ld) fails", (int64_t)n, 0, 0);
        return NULL;
    }
    if (kernel_allocations_left == 0) return NULL;
    if (kernel_allocations_left > 0) kernel_allocations_left--;
    kernel.allocated++;
    return malloc(n);
}

static void release(void *memory) {
    if (memory) kernel.allocated--;
    free(memory);
}

/* ---- patterns -------------------------------------------------------- */

static const unsigned char *pattern(void) {
    static unsigned char table[PATTERN];
    if (!table[0]) {
        uint64_t z = 1;
        for (int i = 0; i < PATTERN; i++) {
            z = z * 6364136223846793005u + 1442695040888963407u;
            table[i] = (z >> 57) & 0x7f;
        }
        table[0] = 1;
    }
    return table;
}

static size_t pattern_start(uint64_t stream, uint64_t offset) {
    uint64_t z = (stream + 1) * 0x9e3779b97f4a7c15;
    return (size_t)(((z >> 20) + offset) % PATTERN);
}

void pattern_fill(void *to, uint64_t stream, uint64_t offset, size_t n) {
    size_t at = pattern_start(stream, offset);
    for (size_t done = 0; done < n; at = 0) {
        size_t step = n - done < PATTERN - at ? n - done : PATTERN - at;
        memcpy((char *)to + done, pattern() + at, step);
        done += step;
    }
}

bool pattern_equals(const void *data, uint64_t stream, uint64_t offset, size_t n) {
    size_t at = pattern_start(stream, offset);
    for (size_t done = 0; done < n; at = 0) {
        size_t step = n - done < PATTERN - at ? n - done : PATTERN - at;
        if (memcmp((const char *)data + done, pattern() + at, step)) return false;
        done += step;
    }
    return true;
}

uint64_t kernel_stream_of(const sim_file *file) {
    return 1000000 + (uint64_t)(file - kernel.files);
}

/* ---- bad memory ------------------------------------------------------ */

void kernel_mark_bad(const void *from, size_t n) {
    for (int i = 0; i < BAD_RANGES; i++) {
        if (kernel.bad[i].from) continue;
        kernel.bad[i] = (range){from, n};
        return;
    }
    sim_fail("too many bad ranges");
}

void kernel_unmark_bad(const void *from) {
    for (int i = 0; i < BAD_RANGES; i++)
        if (kernel.bad[i].from == from) kernel.bad[i].from = NULL;
}

/* Returns how many of the n bytes precede the first bad one. */
static size_t readable(const char *data, size_t n) {
    for (int i = 0; i < BAD_RANGES; i++) {
        const range *bad = &kernel.bad[i];
        if (!bad->from || data >= bad->from + bad->n || data + n <= bad->from) continue;
        n = data >= bad->from ? 0 : (size_t)(bad->from - data);
    }
    return n;
}

static ssize_t copy(void *to, const void *from, size_t n) {
    sim_yield();
    if (readable(from, n) < n || readable(to, n) < n) {
        sim_faults[FAULT_BAD_MEMORY]++;
        return -EFAULT;
    }
    memcpy(to, from, n);
    sim_yield();
    return (ssize_t)n;
}

static size_t fake_page_size(void) { return 4096; }

static void fake_prefer_huge(void *at, size_t n) {
    SIM_CHECK(lending_is_mapped(at, n), "advice for strange memory");
}

/* ---- files ----------------------------------------------------------- */

size_t kernel_draw_capacity(void) {
    static const size_t sizes[] = {1, 4096, 8192, 65536, 1 << 20};
    return sizes[sim_below(5)];
}

sim_file *kernel_new_file(int kind, size_t capacity) {
    SIM_CHECK(kernel.count < SIM_FILES, "too many files");
    sim_file *file = &kernel.files[kernel.count];
    sim_flow before = file->flow[1]; /* keep its memory for reuse */
    memset(file, 0, sizeof *file);
    file->flow[1].log = before.log;
    file->flow[1].log_room = before.log_room;
    file->flow[1].loans = before.loans;
    file->flow[1].loans_room = before.loans_room;
    file->kind = kind;
    kernel.file_of[kernel.count] = kernel.count;
    file->number = SIM_FIRST_FD + kernel.count++;
    file->open = true;
    file->unpollable = kind == TTY && sim_chance(250);
    if (kind == TTY || (kind == SOCKET && sim_chance(150)))
        file->linger = 1 + (int)sim_below(50);
    file->flow[0].capacity = file->flow[1].capacity = capacity;
    return file;
}

sim_file *kernel_new_successor(sim_file *of, int kind, size_t capacity) {
    sim_file *file = kernel_new_file(kind, capacity);
    sim_faults[FAULT_SUCCEEDED]++;
    kernel.file_of[of->number - SIM_FIRST_FD] = (int)(file - kernel.files);
    file->number = of->number;
    file->succeeds = true;
    return file;
}

sim_file *kernel_file(int number) {
    int i = number - SIM_FIRST_FD;
    SIM_CHECK(i >= 0 && i < kernel.count, "no such fd: %d", number);
    i = kernel.file_of[i];
    SIM_CHECK(kernel.files[i].open, "fd %d is closed", number);
    return &kernel.files[i];
}

bool kernel_is_nothing(int number) {
    const sim_file *file = &kernel.files[kernel.file_of[number - SIM_FIRST_FD]];
    return file->succeeds && !file->open;
}

int kernel_files(void) { return kernel.count; }

sim_file *kernel_file_at(int index) { return &kernel.files[index]; }

bool kernel_always_ready(const sim_file *file) {
    return file->kind == REGULAR || file->kind == DEVICE;
}

bool kernel_is_ready(sim_file *file, int what) {
    const sim_flow *flow = &file->flow[what != POLLER_IN];
    if (kernel_always_ready(file) || flow->ended) return true;
    return what == POLLER_OUT ? flow->capacity > flow->level : flow->level > 0;
}

static int fake_is_tty(int fd) { return kernel_file(fd)->kind == TTY; }

static int fake_translates(int fd) { return kernel_file(fd)->number % 2; }

static int fake_no_sigpipe(int fd) {
    SIM_CHECK(kernel_file(fd)->kind == SOCKET, "not a socket: %d", fd);
    return 0;
}

static int fake_takes_loans(int fd) { return kernel_file(fd)->kind == SOCKET; }

static int fake_set_nonblock(int fd) {
    int kind = kernel_file(fd)->kind;
    SIM_CHECK(kind == PIPE || kind == FIFO, "not a pipe: %d", fd);
    kernel_file(fd)->blocking = false;
    return 0;
}

/* A second of linger is a millisecond here. */
static int fake_linger(int fd) {
    if (kernel_is_nothing(fd)) return 0;
    const sim_file *file = kernel_file(fd);
    return file->kind == SOCKET ? file->linger : 0;
}

static int fake_identify(int fd, struct stat *st) {
    static const mode_t modes[KINDS] = {S_IFSOCK, S_IFIFO, S_IFIFO,
                                        S_IFCHR,  S_IFREG, S_IFCHR};
    if (fd < 0 || kernel_is_nothing(fd)) return -EBADF;
    sim_file *file = kernel_file(fd);
    sim_yield();
    memset(st, 0, sizeof *st);
    st->st_mode = modes[file->kind];
    st->st_ino = (ino_t)(file - kernel.files) + (file->stolen ? 5000 : 0);
    st->st_dev = 7;
    return 0;
}

static bool never(void *ignored) {
    (void)ignored;
    return false;
}

/* Only the close of the last copy may block, so a child's never does.  The close may
 * block the caller if no thread can do it instead. */
static void linger(const sim_file *file) {
    bool is_ours = sim_self() && !kernel_is_caller(sim_self());
    bool excused = kernel_excuses.no_thread || kernel_excuses.no_memory;
    if (kernel_in_child || !file->linger) return;
    SIM_CHECK(is_ours || excused, "a close that lasts holds the program up, fd %d",
              file->number);
    sim_faults[FAULT_LINGERS]++;
    sim_wait(never, NULL, file->linger);
}

static int fake_close(int fd) {
    if (kernel_is_waker(fd)) return kernel_close_waker(fd), 0;
    SIM_CHECK(kernel_in_child || !sim_holds_locks(), "close with a lock held");
    sim_yield();
    sim_file *file = kernel_file(fd);
    linger(file);
    SIM_CHECK(!file->stolen, "fd %d is closed, but it is a stranger's", fd);
    SIM_CHECK(kernel_in_child || (!file->flow[0].busy && !file->flow[1].busy),
              "fd %d is closed during a call", fd);
    sim_trace("close fd %ld", fd, 0, 0);
    poller_drop_closed(file);
    file->open = false;
    sim_yield();
    return 0;
}

static int fake_shutdown(int fd) {
    peer_end(&kernel_file(fd)->flow[1], -EPIPE);
    return 0;
}

/* Reports POLLERR when the reader is gone. */
static int poll_for_end(struct pollfd *fd) {
    const sim_flow *flow = &kernel_file(fd->fd)->flow[1];
    sim_yield();
    if (kernel_strikes(kernel_rates.interrupted, FAULT_INTERRUPTED)) return -EINTR;
    fd->revents = flow->ended ? POLLERR : 0;
    return flow->ended;
}

/* Reports POLLOUT, too, when the socket has room. */
static int poll_socket(struct pollfd *fd) {
    sim_file *file = kernel_file(fd->fd);
    int r = poll_for_end(fd);
    if (r < 0) return r;
    if (fd->revents) file->flow[1].fatal = -ECONNRESET;
    if (kernel_is_ready(file, POLLER_OUT)) fd->revents |= POLLOUT;
    return fd->revents != 0;
}

/* The thread whose next poll asks how far a socket's reader is.  The number may belong
 * to another file by now, whose own channel counts its calls. */
static int asker = -1;

static int fake_poll(struct pollfd *fds, nfds_t count, int timeout_ms) {
    const bool asks = asker == sim_self();
    asker = -1;
    SIM_CHECK(count == 1 && timeout_ms == 0, "an unexpected poll");
    SIM_CHECK(!sim_holds_locks(), "poll with a lock held");
    if (kernel_is_nothing(fds[0].fd)) {
        fds[0].revents = POLLNVAL;
        return 1;
    }
    if (!fds[0].events) return poll_for_end(fds);
    bool out = fds[0].events & POLLOUT;
    sim_file *file = kernel_file(fds[0].fd);
    if (file->kind == SOCKET) return poll_socket(fds);
    if (asks) return sim_chance(512) ? 0 : (fds[0].revents = POLLOUT) != 0;
    sim_flow *flow = &file->flow[out];
    if (kernel_on_move) kernel_on_move(file, out);
    sim_yield();
    if (kernel_strikes(kernel_rates.interrupted, FAULT_INTERRUPTED)) {
        flow->calls++;
        return -EINTR;
    }
    bool ready = kernel_is_ready(file, out ? POLLER_OUT : POLLER_IN);
    if (!ready && kernel_strikes(kernel_rates.spurious / 4, FAULT_SPURIOUS))
        ready = true;
    fds[0].revents = ready ? fds[0].events : 0;
    if (!ready) {
        flow->calls++;
        flow->waits++;
    }
    return ready;
}

/* ---- moving bytes ---------------------------------------------------- */

static bool is_moving(void *flow) { return !((sim_flow *)flow)->stalled; }

static bool has_room(void *arg) {
    sim_flow *flow = arg;
    return flow->ended || flow->level < flow->capacity;
}

static bool has_bytes(void *arg) {
    sim_flow *flow = arg;
    return flow->ended || flow->level > 0;
}

static int fatal(sim_flow *flow, int error) {
    if (!flow->fatal) flow->fatal = error;
    return flow->fatal;
}

static int breaks(sim_flow *flow, int error) {
    flow->ended = true;
    return fatal(flow, error);
}

static int starves(sim_flow *flow) {
    kernel_progress++;
    if (!flow->starved_since) flow->starved_since = sim_now();
    if (sim_now() - flow->starved_since > PATIENCE_MS) flow->starved_long = true;
    return sim_chance(512) ? -ENOBUFS : -ENOMEM;
}

/* Draws a fault that any call can meet; 0 for none. */
static int meets_fault(sim_flow *flow) {
    if (flow->starving) return starves(flow);
    if (kernel_strikes(kernel_rates.interrupted, FAULT_INTERRUPTED)) return -EINTR;
    if (kernel_strikes(kernel_rates.again, FAULT_AGAIN)) return -EAGAIN;
    if (kernel_strikes(kernel_rates.starved, FAULT_STARVED)) return starves(flow);
    if (kernel_strikes(kernel_rates.broken, FAULT_BROKEN))
        return sim_chance(512) ? -EIO : -ECONNRESET;
    return 0;
}

static void make_room_in_log(sim_flow *flow, size_t n) {
    if (flow->moved + n <= flow->log_room) return;
    flow->log_room = 2 * (flow->log_room + n);
    flow->log = realloc(flow->log, flow->log_room);
    if (!flow->log) abort();
}

static void log_bytes(sim_flow *flow, const char *data, size_t n) {
    if (!n) return;
    make_room_in_log(flow, n);
    unsigned char *to = flow->log + flow->moved;
    memcpy(to, data, n);
    SIM_CHECK(!memchr(to, 0xdb, n), "the reader sees what was stored later");
    flow->moved += n;
}

static size_t total_of(const struct iovec *vec, int count) {
    size_t total = 0;
    for (int i = 0; i < count; i++) total += vec[i].iov_len;
    return total;
}

/* Draws how many of n bytes are moved this time. */
size_t kernel_cut(size_t n) {
    if (n > 1 && kernel_strikes(kernel_rates.cut, FAULT_CUT))
        return 1 + sim_below(n > 4 && sim_chance(256) ? 3 : n - 1);
    return n;
}

/* A socket checks all its memory before it takes a byte. */
static bool all_readable(const struct iovec *vec, int count, size_t n) {
    for (int i = 0; i < count && n; i++) {
        size_t step = vec[i].iov_len < n ? vec[i].iov_len : n;
        if (readable(vec[i].iov_base, step) < step) return false;
        n -= step;
    }
    return true;
}

static ssize_t accept_bytes(sim_file *file, const struct iovec *vec, int count,
                            size_t n) {
    sim_flow *flow = &file->flow[1];
    size_t done = 0;
    if (file->kind == SOCKET && !all_readable(vec, count, n)) {
        sim_faults[FAULT_BAD_MEMORY]++;
        return -EFAULT;
    }
    for (int i = 0; i < count && done < n; i++) {
        size_t step = vec[i].iov_len < n - done ? vec[i].iov_len : n - done;
        size_t good = readable(vec[i].iov_base, step);
        log_bytes(flow, vec[i].iov_base, good);
        done += good;
        if (good < step) {
            sim_faults[FAULT_BAD_MEMORY]++;
            if (!done) return -EFAULT;
            break;
        }
        if (i < 4) sim_yield();
    }
    return (ssize_t)done;
}

ssize_t kernel_room(sim_file *file, bool waits) {
    sim_flow *flow = &file->flow[1];
    int error = meets_fault(flow);
    if (error == -EIO || error == -ECONNRESET)
        return breaks(flow, error == -EIO ? -EIO : -EPIPE);
    if (error) return error;
    if (waits) sim_wait(has_room, flow, SIM_FOREVER);
    if (flow->ended) return fatal(flow, flow->fatal ? flow->fatal : -EPIPE);
    if (kernel_always_ready(file)) return (ssize_t)1 << 40;
    if (flow->level >= flow->capacity) return -EAGAIN;
    return (ssize_t)(flow->capacity - flow->level);
}

ssize_t kernel_put(sim_file *file, const struct iovec *vec, int count, size_t n) {
    ssize_t r = accept_bytes(file, vec, count, n);
    if (r > 0 && !kernel_always_ready(file)) file->flow[1].level += (size_t)r;
    return r;
}

static ssize_t write_bytes(sim_file *file, const struct iovec *vec, int count,
                           bool waits) {
    ssize_t room = kernel_room(file, waits);
    size_t n = total_of(vec, count);
    if (room < 0) return room;
    return kernel_put(file, vec, count,
                      kernel_cut(n < (size_t)room ? n : (size_t)room));
}

/* Returns how many of n bytes precede the first bad one. */
static size_t writable(const struct iovec *vec, int count, size_t n) {
    size_t good = 0;
    for (int i = 0; i < count && good < n; i++) {
        size_t step = vec[i].iov_len < n - good ? vec[i].iov_len : n - good;
        size_t now = readable(vec[i].iov_base, step);
        good += now;
        if (now < step) break;
    }
    return good;
}

/* Stores n bytes of the peer's stream in the pieces. */
static void scatter(sim_file *file, const struct iovec *vec, int count, size_t n) {
    sim_flow *flow = &file->flow[0];
    for (int i = 0; i < count && n; i++) {
        size_t step = vec[i].iov_len < n ? vec[i].iov_len : n;
        pattern_fill(vec[i].iov_base, kernel_stream_of(file), flow->moved, step);
        flow->moved += step;
        n -= step;
    }
}

ssize_t kernel_take(sim_file *file, const struct iovec *vec, int count, bool waits) {
    sim_flow *flow = &file->flow[0];
    int error = meets_fault(flow);
    if (error == -EIO && (file->kind == TTY || file->kind == FIFO)) {
        /* a terminal's end; a FIFO is treated alike, but has no EIO */
        flow->ended = flow->eof_told = true;
        flow->level = 0;
        return -EIO;
    }
    if (error == -EIO || error == -ECONNRESET) {
        flow->ended = true;
        flow->level = 0;
        return fatal(flow, error);
    }
    if (error) return error;
    if (waits) sim_wait(has_bytes, flow, SIM_FOREVER);
    if (!flow->level && flow->ended) {
        if (flow->fatal) return flow->fatal;
        flow->eof_told = true;
        return file->kind == TTY ? -EIO : 0;
    }
    if (!flow->level && !kernel_always_ready(file)) return -EAGAIN;
    flow->eof_told |= !flow->level;
    size_t n = total_of(vec, count);
    n = kernel_cut(n < flow->level ? n : flow->level);
    size_t good = writable(vec, count, n);
    if (good < n) sim_faults[FAULT_BAD_MEMORY]++;
    if (n && !good) return -EFAULT;
    n = good;
    scatter(file, vec, count, n);
    flow->level -= n;
    return (ssize_t)n;
}

/* Checks what must hold when a call begins. */
static void check_call(sim_file *file, sim_flow *flow, bool out, int count) {
    SIM_CHECK(!sim_holds_locks(), "a call with a lock held");
    SIM_CHECK(!flow->busy, "two calls at once on fd %d", file->number);
    SIM_CHECK(!flow->no_more || ++flow->late_calls < 2,
              "a call after the close of fd %d", file->number);
    SIM_CHECK(count > 0 && count <= 1024, "%d pieces in a call", count);
    SIM_CHECK(!file->stolen || kernel_is_caller(sim_self()),
              "bytes for fd %d, which is a stranger's", file->number);
    if (kernel_on_move) kernel_on_move(file, out);
}

static void count_result(sim_flow *flow, ssize_t r) {
    flow->calls++;
    if (r == -EAGAIN)
        flow->waits++;
    else
        kernel_progress++;
    if (r > 0) sim_bytes += (uint64_t)r;
    if (r >= 0 || r == -EAGAIN) flow->starved_since = 0;
}

bool kernel_begin_move(sim_file *file, bool out, int count) {
    sim_flow *flow = &file->flow[out];
    check_call(file, flow, out, count);
    flow->busy = true;
    sim_yield();
    bool refused = flow->stalled && file->kind == DEVICE;
    if (flow->stalled && !refused) sim_wait(is_moving, flow, SIM_FOREVER);
    return !refused;
}

void kernel_end_move(sim_file *file, bool out, ssize_t r) {
    sim_yield();
    file->flow[out].busy = false;
    count_result(&file->flow[out], r);
}

static ssize_t move(int fd, const struct iovec *vec, int count, bool out, bool waits) {
    sim_file *file = kernel_file(fd);
    bool allowed = kernel_begin_move(file, out, count);
    ssize_t r = file->stolen ? -EBADF
                : !allowed   ? -EAGAIN
                : out        ? write_bytes(file, vec, count, waits)
                             : kernel_take(file, vec, count, waits);
    if (file->stolen && out) fatal(&file->flow[1], -EBADF);
    kernel_end_move(file, out, r);
    sim_trace(out ? "write fd %ld, %ld bytes: %ld" : "read fd %ld, %ld: %ld", fd,
              (int64_t)total_of(vec, count), r);
    return r;
}

static bool call_waits(int fd) {
    int kind = kernel_file(fd)->kind;
    return kind == FIFO || kind == TTY || kind == PIPE;
}

/* A write waits for its last byte.  A FIFO that is ready has room for a page. */
static ssize_t fake_write_file(int fd, const struct iovec *vec, int count) {
    SIM_CHECK(!call_waits(fd) || total_of(vec, count) <= 4096,
              "a write to fd %d may wait for its reader", fd);
    return move(fd, vec, count, true, call_waits(fd));
}

/* SYS_NOWAIT does not work for FIFOs, nor for pipes that pages were lent to. */
static bool refuses(int fd, int how, bool out) {
    sim_file *file = kernel_file(fd);
    SIM_CHECK(file->kind == PIPE || file->kind == FIFO, "not a pipe: %d", fd);
    bool knows = file->kind == PIPE && !file->flow[1].lent;
    if (knows || !(how & SYS_NOWAIT)) return false;
    check_call(file, &file->flow[out], out, 1);
    file->flow[out].calls++;
    sim_yield();
    return true;
}

/* A call waits in a full or empty pipe whose O_NONBLOCK is gone.  The flag may go just
 * before a call, so a caller's thread may meet that once; here it does not wait even
 * then. */
static ssize_t move_pipe(int fd, const struct iovec *vec, int count, bool out,
                         int how) {
    sim_file *file = kernel_file(fd);
    bool blocks = file->blocking && !(how & SYS_NOWAIT);
    bool is_caller = kernel_is_caller(sim_self());
    ssize_t r = move(fd, vec, count, out, blocks && !is_caller);
    if (blocks && is_caller && file->blocking && r == -EAGAIN)
        SIM_CHECK(!file->waits_told++, "a caller waits in a call on fd %d", fd);
    return r;
}

static ssize_t fake_write_pipe(int fd, const struct iovec *vec, int count, int how) {
    if (refuses(fd, how, true)) return -EOPNOTSUPP;
    return move_pipe(fd, vec, count, true, how);
}

static ssize_t fake_write_piece(int fd, const void *data, size_t n) {
    struct iovec vec = {(void *)(uintptr_t)data, n};
    return move_pipe(fd, &vec, 1, true, 0);
}

static void fake_block_sigpipe(sys_sigpipe *state) { state->blocked = true; }

static void fake_restore_sigpipe(const sys_sigpipe *state, ssize_t written) {
    (void)written;
    SIM_CHECK(state->blocked, "SIGPIPE is restored, but was not blocked");
}

static ssize_t fake_read(int fd, const struct iovec *vec, int count, int how) {
    if (!how && kernel_file(fd)->kind != PIPE)
        return move(fd, vec, count, false, call_waits(fd));
    if (refuses(fd, how, false)) return -EOPNOTSUPP;
    return move_pipe(fd, vec, count, false, how);
}

/* ---- lending --------------------------------------------------------- */

/* Notes where the next n bytes are, without looking at them. */
static void lend_bytes(sim_flow *flow, const struct iovec *vec, size_t n) {
    make_room_in_log(flow, n);
    flow->lent += n;
    flow->level += n;
    for (; n; vec++) {
        size_t step = vec->iov_len < n ? vec->iov_len : n;
        if (step) lending_add(flow, vec->iov_base, step);
        flow->moved += step;
        n -= step;
    }
}

static ssize_t lend_pages(sim_file *file, const struct iovec *vec, int count) {
    static const int refusals[] = {-EINVAL, -EPERM, -ENOSYS, -EFAULT};
    sim_flow *flow = &file->flow[1];
    if (kernel_strikes(kernel_rates.refused, FAULT_REFUSED)) {
        flow->refused = true;
        return refusals[sim_below(4)];
    }
    int error = meets_fault(flow);
    if (error == -EIO || error == -ECONNRESET) return breaks(flow, -EPIPE);
    if (error) return error;
    if (flow->ended) return fatal(flow, flow->fatal ? flow->fatal : -EPIPE);
    if (flow->level >= flow->capacity) return -EAGAIN;
    size_t n = total_of(vec, count), room = flow->capacity - flow->level;
    n = kernel_cut(n < room ? n : room);
    lend_bytes(flow, vec, n);
    return (ssize_t)n;
}

static void check_loan(const sim_file *file, const struct iovec *vec, int count) {
    const sim_flow *flow = &file->flow[1];
    SIM_CHECK(flow->may_lend, "pages are lent to any reader, fd %d", file->number);
    SIM_CHECK(!flow->refused, "pages are lent though the kernel has refused");
    for (int i = 0; i < count; i++)
        SIM_CHECK(lending_is_mapped(vec[i].iov_base, vec[i].iov_len),
                  "what is lent belongs to no pool");
}

/* Lends at most one piece to a socket. */
static ssize_t fake_lend(int fd, sys_between *between, const struct iovec *vec,
                         int count) {
    sim_file *file = kernel_file(fd);
    sim_flow *flow = &file->flow[1];
    bool socket = file->kind == SOCKET;
    SIM_CHECK(socket == (between != NULL), "no way to lend to fd %d", fd);
    if (socket) count = 1;
    check_call(file, flow, true, count);
    check_loan(file, vec, count);
    flow->busy = true;
    sim_yield();
    if (flow->stalled) sim_wait(is_moving, flow, SIM_FOREVER);
    ssize_t r = file->stolen ? -EBADF : lend_pages(file, vec, count);
    if (file->stolen) fatal(flow, -EBADF);
    sim_yield();
    flow->busy = false;
    count_result(flow, r);
    flow->waits += socket && r > 0 && (size_t)r < vec->iov_len;
    sim_trace("lend fd %ld, %ld bytes: %ld", fd, (int64_t)total_of(vec, count), r);
    return r;
}

/* A foreign file may answer anything.  Others may write into the pipe, too, and an
 * answer may be out of date when it comes. */
static ssize_t unread_of(int fd, bool socket) {
    if (kernel_is_nothing(fd)) return -EBADF;
    sim_file *file = kernel_file(fd);
    sim_flow *flow = &file->flow[1];
    if (file->succeeds) return sim_chance(512) ? 0 : -ENOTTY;
    SIM_CHECK(flow->may_lend, "nothing was ever lent to fd %d", fd);
    SIM_CHECK(!sim_holds_locks(), "a question with a lock held");
    SIM_CHECK(!flow->busy, "two calls at once on fd %d", fd);
    SIM_CHECK(!flow->no_more || ++flow->late_calls < 2,
              "a question after the close of fd %d", fd);
    flow->busy = true;
    sim_yield();
    if (flow->stalled) sim_wait(is_moving, flow, SIM_FOREVER);
    if (flow->reads_on) peer_read(flow, 1 + sim_below(2 * flow->level));
    size_t unread = socket && flow->ended ? 0 : flow->level; /* discarded */
    SIM_CHECK(socket == (file->kind == SOCKET), "what is asked of fd %d?", fd);
    /* (a socket counts whole buffers, with their heads) */
    if (kernel_strikes(kernel_rates.spurious, FAULT_LATE) ||
        (socket && unread && sim_chance(512)))
        unread += 1 + sim_below(5000);
    bool stranger = file->stolen;
    sim_yield();
    flow->busy = false;
    sim_trace("unread of fd %ld: %ld", fd, (int64_t)unread, 0);
    if (stranger) return sim_chance(512) ? 0 : -ENOTTY;
    return (ssize_t)unread;
}

static ssize_t fake_unread(int fd, bool socket) {
    ssize_t n = unread_of(fd, socket);
    asker = socket && n >= 0 ? sim_self() : -1;
    return n;
}

/* ---- sockets --------------------------------------------------------- */

/* A call that moves fewer bytes has met a full or empty socket. */
static ssize_t move_on_socket(int fd, const struct iovec *vec, int count, bool out) {
    SIM_CHECK(kernel_file(fd)->kind == SOCKET, "not a socket: %d", fd);
    ssize_t r = move(fd, vec, count, out, false);
    bool short_of = r > 0 && (uint64_t)r < total_of(vec, count);
    kernel_file(fd)->flow[out].waits += short_of;
    return r;
}

static ssize_t fake_send(int fd, const struct iovec *vec, int count,
                         const azc_fds *fds) {
    (void)fds;
    return move_on_socket(fd, vec, count, true);
}

static ssize_t fake_recv(int fd, const struct iovec *vec, int count, azc_fds *fds) {
    (void)fds;
    return move_on_socket(fd, vec, count, false);
}

/* ---- the other side -------------------------------------------------- */

/* A dead peer does not read. */
void peer_read(sim_flow *flow, size_t n) {
    if (flow->may_lend && flow->ended) return;
    if (n > flow->level) n = flow->level;
    flow->level -= n;
    flow->read += n;
    lending_look(flow);
}

/* A process that opens a pipe through /proc can read what a dead reader has left. */
void peer_read_remains(sim_flow *flow) {
    flow->read += flow->level;
    flow->level = 0;
    lending_look(flow);
}

void peer_feed(sim_flow *flow, size_t n) {
    if (flow->ended) return;
    flow->level += n;
    flow->fed += n;
}

void peer_end(sim_flow *flow, int error) {
    if (flow->ended) return;
    sim_faults[FAULT_PEER_DIED]++;
    if (error) breaks(flow, error);
    flow->ended = true;
    if (error && !flow->may_lend) flow->level = 0;
}

/* Our number has been closed behind our back, and names another file now.  If a copy of
 * the old description is still open elsewhere, its readiness is still reported. */
void peer_steal(sim_file *file) {
    sim_faults[FAULT_STOLEN]++;
    file->stolen = true;
    file->gone = sim_chance(512);
    if (file->gone) poller_drop_closed(file);
}

/* O_NONBLOCK belongs to the description, which is shared. */
void peer_unset_nonblock(sim_file *file) {
    sim_faults[FAULT_BLOCKING]++;
    file->blocking = true;
    file->waits_told = 0;
}

/* ---- threads, as csrc sees them -------------------------------------- */

static int fake_thread_start(pthread_t *thread, void *(*run)(void *), void *arg) {
    int number = -1;
    if (!kernel_strikes(kernel_rates.no_thread, FAULT_NO_THREAD))
        number = sim_spawn(run, arg);
    if (number < 0) {
        kernel_excuses.no_thread = true;
        return -EAGAIN;
    }
    sim_detach(number);
    *thread = (pthread_t)(uintptr_t)(number + 1);
    sim_trace("thread %ld starts", number, 0, 0);
    return 0;
}

static int fake_has_one_cpu(void) { return sim_chance(kernel_rates.one_cpu); }

/* Time passes for a thread that asks for it repeatedly. */
static uint64_t fake_now_ns(void) {
    if (sim_chance(256)) sim_pass_time(); /* a nap lasts longer than a few looks */
    return sim_now() * 1000000;
}

static void fake_sleep_us(unsigned us) {
    SIM_CHECK(!sim_holds_locks(), "a sleep with a lock held");
    sim_wait(never, NULL, (us + 999) / 1000);
}

/* ---- beginning and ending -------------------------------------------- */

struct azc_sys azc_sys = {
    .write_file = fake_write_file,
    .write_pipe = fake_write_pipe,
    .write_piece = fake_write_piece,
    .block_sigpipe = fake_block_sigpipe,
    .restore_sigpipe = fake_restore_sigpipe,
    .read = fake_read,
    .lend = fake_lend,
    .unread = fake_unread,
    .send = fake_send,
    .recv = fake_recv,
    .poll = fake_poll,
    .identify = fake_identify,
    .is_tty = fake_is_tty,
    .translates = fake_translates,
    .set_nonblock = fake_set_nonblock,
    .no_sigpipe = fake_no_sigpipe,
    .takes_loans = fake_takes_loans,
    .linger = fake_linger,
    .close = fake_close,
    .shutdown = fake_shutdown,
    .open_waker = kernel_open_waker,
    .signal = kernel_signal,
    .clear = kernel_clear,
    .allocate = allocate,
    .release = release,
    .copy = copy,
    .page_size = fake_page_size,
    .map = lending_map,
    .unmap = lending_unmap,
    .prefer_huge = fake_prefer_huge,
    .remap = lending_remap,
    .replace = lending_replace,
    .thread_start = fake_thread_start,
    .has_one_cpu = fake_has_one_cpu,
    .now_ns = fake_now_ns,
    .sleep_us = fake_sleep_us,
};

void kernel_begin(void) {
    kernel.count = 0;
    kernel.allocated = 0;
    kernel.faults_off = false;
    memset(kernel.bad, 0, sizeof kernel.bad);
    kernel_excuses = (sim_excuses){0};
    kernel_allocations_left = -1;
    lending_begin();
}

void kernel_end(void) {
    sim_forget_numbers();
    for (int i = 0; i < kernel.count; i++)
        SIM_CHECK(!kernel.files[i].open || kernel.files[i].stolen, "fd %d is left open",
                  kernel.files[i].number);
    poller_end();
    lending_end();
    SIM_CHECK(kernel.allocated == 0, "%ld allocations are left",
              (long)kernel.allocated);
}
