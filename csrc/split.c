/* split.c - one pipe to many readers. */
#include "split.h"

#include <errno.h>
#include <stdatomic.h>

#include "handle.h"
#include "lender.h"
#include "port.h"
#include "sabotage.h"
#include "sys.h"

enum {
    MOST = 1 << 20,
    COPIED = 64 << 10,
    NEVER = -1,
    PAUSE_US = 2000, /* until the next try without memory */
};

struct azc_split_reader {
    int fd;       /* the write end of its pipe */
    int read_end; /* until it was asked for; then -1 */
    size_t ahead;
    uint64_t held_ns; /* how long it has held up the others */
    bool full;
    atomic_int outcome;
    atomic_int owners;
    azc_split_reader *next;
};

typedef struct azc_split {
    azc_id id;
    int source, file, null;
    int wake[2];
    azc_party party; /* to the source's pages */
    azc_note *note;  /* tells the end */
    uint64_t patience_ns;
    uint64_t starved_since; /* no memory in the kernel; 0: there is */
    size_t unit;
    size_t
        window; /* bytes at the source's beginning that all are to have next */
    azc_split_reader *reading;
    int count; /* of these */
    struct pollfd *polled;
    int room;     /* in polled, for readers */
    char *copied; /* without tee: the window; else NULL */
    size_t start; /* of the window's bytes that are not taken yet, in copied */
    atomic_uint_fast64_t taken, filed, readers, dropped;
    atomic_int file_error, copies;
    atomic_bool stopping;

    /* under the lock of its number */
    azc_split_reader *joining;
    bool over;    /* nobody can join, */
    bool through; /* the thread has let go, */
    bool freed;   /* and so has the program */
} azc_split;

static void close_fd(int *fd) {
    int was = *fd;
    *fd =
        -1; /* first: a fork in between must not close the number's next file */
    if (was >= 0) azc_sys.close(was);
}

static void close_source_and_file(azc_split *it) {
    close_fd(&it->source);
    close_fd(&it->file);
    close_fd(&it->null);
}

static void close_readers(azc_split_reader *list) {
    for (; list; list = list->next) close_fd(&list->fd);
}

/* The lists may be in the middle of a change: a reader that is missed keeps its pipe
 * open until the child ends. */
void azc__split_fork_child(void *split) {
    azc_split *it = split;
    close_source_and_file(it);
    sys_close_both(it->wake);
    close_readers(it->reading);
    close_readers(it->joining);
}

static azc_split *find(azc_id id) { return azc__handle_lock(&azc__splits, id); }

static void release(azc_split *it) {
    azc_sys.release(it->polled);
    azc_sys.release(it->copied);
    azc_sys.release(it);
}

/* With the lock of its number, which is released. */
static void leave(azc_split *it) {
    azc_id id = it->id;
    if (it->through && it->freed) {
        azc__handle_drop(&azc__splits, id);
        release(it);
    } else {
        azc__handle_unlock(&azc__splits, id);
    }
}

/* ---- readers ------------------------------------------------------------ */

static void let_go(azc_split_reader *reader) {
    if (atomic_fetch_sub(&reader->owners, 1) == 1) azc_sys.release(reader);
}

void azc_split_let_go(azc_split_reader **at) {
    azc_split_reader *reader = *at;
    *at = NULL;
    if (!reader) return;
    close_fd(&reader->read_end);
    let_go(reader);
}

int azc_split_read_end(azc_split_reader *reader) {
    int fd = reader->read_end;
    reader->read_end = -1;
    return fd;
}

int azc_split_outcome(azc_split_reader *reader) {
    return atomic_load(&reader->outcome);
}

static void end_reader(azc_split_reader *reader, int outcome) {
    atomic_store(&reader->outcome, outcome); /* known before the end is seen */
    close_fd(&reader->fd);
    let_go(reader);
}

/* Takes a reader out of the list. */
static void drop(azc_split *it, azc_split_reader **at, int outcome) {
    azc_split_reader *reader = *at;
    *at = reader->next;
    it->count--;
    atomic_fetch_sub(&it->readers, 1);
    if (outcome == AZC_TOO_SLOW) atomic_fetch_add(&it->dropped, 1);
    end_reader(reader, outcome);
}

static azc_split_reader *reader_new(const int ends[2]) {
    azc_split_reader *reader = sys_zeros(sizeof *reader);
    if (!reader) return NULL;
    reader->read_end = ends[0];
    reader->fd = ends[1];
    atomic_init(&reader->outcome, AZC_READING);
    atomic_init(&reader->owners, 2);
    return reader;
}

int azc_split_join(azc_id id, int pipe_size, azc_split_reader **joined) {
    int ends[2], r = azc_sys.pipe(ends);
    if (r < 0) return r;
    azc_sys.enlarge(ends[1], pipe_size);
    azc_split_reader *reader = reader_new(ends);
    azc_split *it = find(id);
    if (!reader) r = -ENOMEM;
    if (!it) r = azc__handle_why(&azc__splits, id);
    if (it && it->over) r = -ESHUTDOWN;
    if (r == 0) {
        reader->next = it->joining;
        it->joining = *joined = reader;
        azc_sys.signal(it->wake[1]);
    }
    if (it) leave(it);
    if (r == 0) return 0;
    sys_close_both(ends);
    azc_sys.release(reader);
    return r;
}

static bool somebody_joins(azc_split *it) {
    find(it->id);
    bool joining = it->joining;
    leave(it);
    return joining;
}

/* Those who have joined and not begun; with the end, no others can. */
static azc_split_reader *take_joining(azc_split *it, bool end) {
    find(it->id);
    azc_split_reader *list = it->joining;
    it->joining = NULL;
    it->over = end;
    leave(it);
    return list;
}

static bool is_inside_unit(const azc_split *it) {
    return atomic_load(&it->taken) % it->unit != 0;
}

/* Lets those who have joined begin, if they can here. */
static int begin_readers(azc_split *it) {
    if (is_inside_unit(it)) return 0;
    azc_split_reader *new = take_joining(it, false);
    while (new) {
        azc_split_reader *next = new->next;
        new->next = it->reading;
        it->reading = new;
        it->count++;
        atomic_fetch_add(&it->readers, 1);
        new = next;
    }
    if (it->count <= it->room) return 0;
    size_t room = 2 * (size_t)it->count;
    struct pollfd *more = azc_sys.allocate((room + 2) * sizeof(struct pollfd));
    if (!more) return -ENOMEM;
    azc_sys.release(it->polled);
    it->polled = more;
    it->room = (int)room;
    return 0;
}

/* ---- bytes to one reader ------------------------------------------------ */

static bool is_not_offered(ssize_t r) {
    return r == -EINVAL || r == -ENOSYS || r == -EPERM;
}

/* From here on the window is read, and written to each. */
static int begin_to_copy(azc_split *it) {
    it->copied = azc_sys.allocate(COPIED);
    if (!it->copied) return -ENOMEM;
    atomic_store(&it->copies, 1);
    it->window = it->start = 0;
    return 0;
}

static ssize_t give(azc_split *it, azc_split_reader *reader) {
    if (!it->copied) return azc_sys.tee(it->source, reader->fd, it->window);
    const struct iovec rest = {it->copied + it->start + reader->ahead,
                               it->window - reader->ahead};
    return azc_sys.write_pipe(reader->fd, &rest, 1, 0); /* it is non-blocking */
}

/* Can it be given more?  tee always begins at the first byte. */
static bool is_ready(const azc_split *it, const azc_split_reader *reader) {
    return it->copied ? reader->ahead < it->window : reader->ahead == 0;
}

/* Offers each reader what it does not have; returns how many bytes all have, or an
 * error. */
static ssize_t give_all(azc_split *it) {
    size_t least = it->window;
    azc_split_reader **at = &it->reading;
    while (*at) {
        azc_split_reader *reader = *at;
        reader->full = false;
        if (is_ready(it, reader)) {
            ssize_t r = give(it, reader);
            if (r == -EPIPE) {
                drop(it, at, AZC_LEFT);
                continue;
            }
            if (!it->copied && is_not_offered(r)) return begin_to_copy(it);
            if (r < 0 && r != -EAGAIN) return r;
            if (r == 0) return -EIO; /* somebody else reads from the source */
            reader->full = r < 0;
            reader->ahead += r < 0 ? 0 : (size_t)r;
        }
        bool counts = !(reader->full && SABOTAGED(SPLIT));
        if (counts && reader->ahead < least) least = reader->ahead;
        at = &reader->next;
    }
    return (ssize_t)least;
}

/* ---- taking what all have ---------------------------------------------- */

static ssize_t write_to_file(azc_split *it, const char *bytes, size_t n) {
    const struct iovec vec = {(void *)bytes, n};
    return azc_sys.write_file(it->file, &vec, 1);
}

/* After its first error the file gets no more, and is closed. */
static void note_filed(azc_split *it, ssize_t r) {
    if (r > 0) {
        atomic_fetch_add(&it->filed, (uint64_t)r);
    } else {
        atomic_store(&it->file_error, r < 0 ? (int)r : -EIO);
        close_fd(&it->file);
    }
}

/* Where a file cannot be spliced to: one that appends, say. */
static ssize_t copy_to_file(azc_split *it, size_t n) {
    char bytes[4096];
    const struct iovec vec = {bytes, n < sizeof bytes ? n : sizeof bytes};
    ssize_t got = azc_sys.read_pipe(it->source, &vec, 1, 0), written = 0;
    while (written < got && it->file >= 0) {
        ssize_t r = write_to_file(it, bytes + written, (size_t)(got - written));
        note_filed(it, r);
        written += r;
    }
    return got;
}

/* The kernel has no memory, and perhaps will have some. */
static bool is_starved(azc_split *it, ssize_t r) {
    return (r == -ENOMEM || r == -ENOBUFS) &&
           sys_is_patient(&it->starved_since);
}

/* Some of the first n bytes, to the file or to nowhere. */
static ssize_t take_some(azc_split *it, size_t n) {
    if (it->file < 0) {
        return it->copied ? (ssize_t)n
                          : azc_sys.splice(it->source, it->null, n);
    }
    ssize_t r = it->copied ? write_to_file(it, it->copied + it->start, n)
                           : azc_sys.splice(it->source, it->file, n);
    if (r == -EAGAIN || is_starved(it, r)) return r;
    if (!it->copied && r == -ENOSYS) return r;
    if (!it->copied && r == -EINVAL) return copy_to_file(it, n);
    note_filed(it, r);
    return r > 0 ? r : take_some(it, n); /* the readers go on without it */
}

static int take(azc_split *it, size_t n) {
    for (size_t left = n; left;) {
        ssize_t r = take_some(it, left);
        if (!it->copied && is_not_offered(r) && !it->reading)
            return begin_to_copy(it);
        if (r <= 0) return r == 0 || r == -EAGAIN ? -EIO : (int)r;
        left -= (size_t)r;
        it->window -= (size_t)r;
        it->start += (size_t)r;
        atomic_fetch_add(&it->taken, (uint64_t)r);
        for (azc_split_reader *one = it->reading; one; one = one->next)
            one->ahead -= (size_t)r;
    }
    return 0;
}

/* ---- waiting ------------------------------------------------------------ */

static void add_polled(azc_split *it, int at, int fd, short events) {
    it->polled[at] = (struct pollfd){.fd = fd, .events = events};
}

/* How many milliseconds the most impatient wait may last. */
static int patience_ms(const azc_split *it) {
    if (it->patience_ns == UINT64_MAX) return NEVER;
    uint64_t longest = 0;
    for (azc_split_reader *one = it->reading; one; one = one->next)
        if (one->full && one->held_ns > longest) longest = one->held_ns;
    if (longest >= it->patience_ns) return 0;
    uint64_t ms = (it->patience_ns - longest) / 1000000 + 1;
    return ms < 3600000 ? (int)ms : 3600000;
}

/* Counts the time against those who are full, and drops whoever has spent it all. */
static void judge(azc_split *it, uint64_t waited_ns) {
    for (azc_split_reader **at = &it->reading; *at;) {
        azc_split_reader *reader = *at;
        if (reader->full) reader->held_ns += waited_ns;
        if (reader->full && reader->held_ns >= it->patience_ns)
            drop(it, at, AZC_TOO_SLOW);
        else
            at = &reader->next;
    }
}

/* Those who have read all that they have may be slow again. */
static void forgive(azc_split *it) {
    for (azc_split_reader *one = it->reading; one; one = one->next)
        if (one->held_ns && !one->full && azc_sys.unread(one->fd, false) == 0)
            one->held_ns = 0;
}

static void drop_who_left(azc_split *it) {
    const struct pollfd *polled = it->polled + 2;
    for (azc_split_reader **at = &it->reading; *at; polled++) {
        if (polled->revents & POLLERR)
            drop(it, at, AZC_LEFT);
        else
            at = &(*at)->next;
    }
}

/* Waits for the source, if there is no window, else for those who are full.  Returns 1
 * at the source's end. */
static int wait_for_any(azc_split *it) {
    bool held = it->window > 0;
    int n = 2;
    add_polled(it, 0, it->wake[0], POLLIN);
    add_polled(it, 1, held ? -1 : it->source, POLLIN);
    for (azc_split_reader *one = it->reading; one; one = one->next)
        add_polled(it, n++, one->fd, one->full ? POLLOUT : 0);
    uint64_t before = azc_sys.now_ns();
    int r = azc_sys.poll(it->polled, (nfds_t)n, held ? patience_ms(it) : NEVER);
    if (r < 0) return r;
    if (it->polled[0].revents) azc_sys.clear(it->wake[0]);
    int source = it->polled[1].revents;
    drop_who_left(it);
    if (held) judge(it, azc_sys.now_ns() - before);
    return source && !(source & POLLIN);
}

/* ---- the thread --------------------------------------------------------- */

static size_t to_next_unit(const azc_split *it) {
    return it->unit - atomic_load(&it->taken) % it->unit;
}

/* How many bytes all are to have next: what the source has, or a part.  0: none yet.
 * A reader that joins while they are counted is seen by begin_readers. */
static ssize_t look(azc_split *it) {
    ssize_t n = azc_sys.unread(it->source, false);
    size_t most = it->copied ? COPIED : MOST;
    if (is_inside_unit(it) && somebody_joins(it) && to_next_unit(it) < most)
        most = to_next_unit(it);
    if (n > (ssize_t)most) n = (ssize_t)most;
    if (n <= 0 || !it->copied) return n;
    const struct iovec vec = {it->copied, (size_t)n};
    it->start = 0;
    ssize_t r = azc_sys.read_pipe(it->source, &vec, 1, SYS_NOWAIT);
    if (r == -EOPNOTSUPP) r = azc_sys.read_pipe(it->source, &vec, 1, 0);
    return r == -EAGAIN ? 0 : r; /* somebody else has read it */
}

/* Returns 1 at the source's end. */
static int round_of_all(azc_split *it) {
    if (it->window == 0) {
        ssize_t n = look(it);
        if (n < 0) return (int)n;
        it->window = (size_t)n;
    }
    int r = begin_readers(it); /* after the look: see there */
    if (r < 0) return r;
    if (it->window == 0) return wait_for_any(it);
    forgive(it);
    ssize_t common = give_all(it);
    if (common < 0) return (int)common;
    if (it->window == 0) return 0; /* it is copied from now on */
    return common ? take(it, (size_t)common) : wait_for_any(it);
}

static void end_all(azc_split *it, int outcome) {
    while (it->reading) drop(it, &it->reading, outcome);
    azc__party_leave(&it->party);
    azc_split_reader *list = take_joining(it, true);
    while (list) {
        azc_split_reader *next = list->next;
        end_reader(list, outcome);
        list = next;
    }
}

static bool goes_on(azc_split *it, int r) {
    if (r == 0) it->starved_since = 0;
    if (!is_starved(it, r)) return r == 0;
    azc_sys.sleep_us(PAUSE_US);
    return true;
}

static void *run(void *arg) {
    azc_split *it = arg;
    int r = 0;
    while (!atomic_load(&it->stopping))
        if (!goes_on(it, r = round_of_all(it))) break;
    if (r == 0 || (r < 0 && atomic_load(&it->stopping))) r = -ECANCELED;
    end_all(it, r == 1 ? AZC_HAS_ALL : AZC_STOPPED);
    close_source_and_file(it);
    azc__note_post(it->note, 0, r == 1 ? 0 : r, 0);
    find(it->id);
    sys_close_both(it->wake);
    it->through = true;
    leave(it);
    return NULL;
}

static int stop(azc_id id, bool frees) {
    azc_split *it = find(id);
    if (!it) return azc__handle_why(&azc__splits, id);
    atomic_store(&it->stopping, true);
    azc_sys.signal(it->wake[1]);
    it->freed = it->freed || frees;
    leave(it);
    return 0;
}

int azc_split_stop(azc_id id) { return stop(id, false); }

int azc_split_free(azc_id id) { return stop(id, true); }

int azc_split_get(azc_id id, azc_split_state *state) {
    azc_split *it = find(id);
    if (!it) return azc__handle_why(&azc__splits, id);
    bool copies = atomic_load(&it->copies) != 0;
    *state = (azc_split_state){
        .taken = atomic_load(&it->taken),
        .filed = atomic_load(&it->filed),
        .readers = atomic_load(&it->readers),
        .dropped = atomic_load(&it->dropped),
        .file_error = atomic_load(&it->file_error),
        .copies = copies,
        .rest = it->over && copies ? it->window : 0,
        .bytes = it->over && copies ? it->copied + it->start : NULL,
    };
    leave(it);
    return 0;
}

/* ---- its life ----------------------------------------------------------- */

/* tee would show the readers what the pages hold later. */
static bool carries_loans(azc_split *it) {
    struct stat source;
    return azc_sys.identify(it->source, &source) == 0 &&
           !azc__party_join(&it->party, source.st_dev, source.st_ino, false);
}

static int duplicate(int *fd, int given) {
    if (given >= 0) *fd = azc_sys.dup(given);
    return *fd < 0 && given >= 0 ? *fd : 0;
}

/* All that it needs but its thread; what there is of it is undone by `undo`. */
static int prepare(azc_split *it, const azc_split_request *wanted) {
    int r = azc_sys.open_waker(it->wake);
    if (r == 0) r = duplicate(&it->source, wanted->source);
    if (r == 0) r = duplicate(&it->file, wanted->file);
    if (r == 0) r = duplicate(&it->null, wanted->null);
    it->polled = azc_sys.allocate(2 * sizeof(struct pollfd));
    if (r == 0 && !it->polled) r = -ENOMEM;
    if (r == 0) r = azc__note_new(wanted->port, wanted->token, &it->note);
    if (r == 0 && carries_loans(it)) r = begin_to_copy(it);
    if (r == 0 && !(it->id = azc__handle_new(&azc__splits, it))) r = -ENOMEM;
    return r;
}

static void undo(azc_split *it) {
    if (it->id && find(it->id)) azc__handle_drop(&azc__splits, it->id);
    azc__party_leave(&it->party);
    azc__note_free(it->note);
    close_source_and_file(it);
    sys_close_both(it->wake);
    release(it);
}

int azc_split_open(const azc_split_request *wanted, azc_id *split) {
    pthread_t thread;
    azc_split *it = sys_zeros(sizeof *it);
    if (!it) return -ENOMEM;
    it->source = it->file = it->null = -1;
    it->patience_ns = wanted->patience_us > UINT64_MAX / 1000
                          ? UINT64_MAX
                          : wanted->patience_us * 1000;
    it->unit = wanted->unit;
    int r = prepare(it, wanted);
    *split = it->id;
    if (r == 0) r = azc_sys.thread_start(&thread, run, it);
    if (r < 0) {
        *split = 0;
        undo(it);
    }
    return r;
}
