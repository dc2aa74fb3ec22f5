/* poller.c - the simulated epoll and eventfd behind csrc/poller.h.
 *
 * An armed fd is reported once.  A wait may report any part of the ready fds, in any
 * order, and now and then one that is not ready.
 */
#include "poller.h"

#include <errno.h>
#include <string.h>

#include "kernel.h"
#include "sys.h"
#include "threads.h"

enum {
    WAKERS = 64,
    ENTRIES = 32,
    POLLERS = 32,
    FIRST_WAKER = 2000,
    FIRST_POLLER = 3000,
    FRUITLESS_MAX = 60, /* waits that neither block nor report anything */
};

/* As in epoll: a number, and the file that it named at the time. */
typedef struct entry {
    sim_file *file;
    azc_poller *inner; /* instead of a file */
    bool used, armed;
    int what;
    bool spurious; /* it will be reported without being ready */
    uint64_t who;
} entry;

struct azc_poller {
    bool wakes; /* a thread waits in it */
    entry entries[ENTRIES];
    bool woken;
    uint64_t progress; /* at the first of the fruitless waits */
    int fruitless;
};

static struct {
    bool open[WAKERS], signalled[WAKERS];
    azc_poller *pollers[POLLERS];
} polling;

static int no_fd(void) {
    if (!kernel_strikes(kernel_rates.no_fd, FAULT_NO_FD)) return 0;
    kernel_excuses.no_fd = true;
    return -EMFILE;
}

int kernel_open_waker(int ends[2]) {
    int i = 0, r = no_fd();
    ends[0] = ends[1] = -1;
    if (r < 0) return r;
    while (i < WAKERS && polling.open[i]) i++;
    SIM_CHECK(i < WAKERS, "too many wakers");
    polling.open[i] = true;
    polling.signalled[i] = false;
    ends[0] = ends[1] = FIRST_WAKER + i;
    return 0;
}

bool kernel_is_waker(int fd) { return fd >= FIRST_WAKER && fd < FIRST_WAKER + WAKERS; }

static bool *signal_of(int number) {
    SIM_CHECK(kernel_is_waker(number) && polling.open[number - FIRST_WAKER],
              "not a waker");
    return &polling.signalled[number - FIRST_WAKER];
}

bool kernel_signalled(int number) { return *signal_of(number); }

void kernel_close_waker(int fd) {
    signal_of(fd);
    polling.open[fd - FIRST_WAKER] = false;
}

void kernel_signal(int fd) {
    *signal_of(fd) = true;
    sim_yield();
}

void kernel_clear(int fd) {
    *signal_of(fd) = false;
    sim_yield();
}

int azc__poller_open(azc_poller **out, bool wakes) {
    int i = 0, r = no_fd();
    if (r < 0) return r;
    azc_poller *poller = azc_sys.allocate(sizeof *poller);
    if (!poller) return -ENOMEM;
    memset(poller, 0, sizeof *poller);
    poller->wakes = wakes;
    while (i < POLLERS && polling.pollers[i]) i++;
    SIM_CHECK(i < POLLERS, "too many pollers");
    polling.pollers[i] = *out = poller;
    return 0;
}

static bool has_report(void *arg);

static bool is_reported(const entry *it) {
    if (!it->used || !it->armed) return false;
    return it->spurious ||
           (it->inner ? has_report(it->inner) : kernel_is_ready(it->file, it->what));
}

static bool has_report(void *arg) {
    const azc_poller *poller = arg;
    if (poller->woken) return true;
    for (int i = 0; i < ENTRIES; i++)
        if (is_reported(&poller->entries[i])) return true;
    return false;
}

static entry *find(azc_poller *poller, const sim_file *file, const azc_poller *inner) {
    for (int i = 0; i < ENTRIES; i++) {
        entry *it = &poller->entries[i];
        if (it->used && it->file == file && it->inner == inner) return it;
    }
    return NULL;
}

int azc__poller_fd(const azc_poller *poller) {
    int i = 0;
    while (i < POLLERS && polling.pollers[i] != poller) i++;
    SIM_CHECK(i < POLLERS && !poller->wakes, "not a poller to be watched");
    return FIRST_POLLER + i;
}

static azc_poller *poller_of(int number) {
    int i = number - FIRST_POLLER;
    azc_poller *it = i >= 0 && i < POLLERS ? polling.pollers[i] : NULL;
    SIM_CHECK(i < 0 || it, "not a poller");
    return it;
}

bool azc__poller_is_readable(const azc_poller *poller) {
    return has_report((void *)(uintptr_t)poller);
}

bool kernel_readable(int number) { return has_report(poller_of(number)); }

void azc__poller_abandon(azc_poller *poller) {
    for (int i = 0; i < POLLERS; i++)
        if (polling.pollers[i] == poller) polling.pollers[i] = NULL;
}

void azc__poller_close(azc_poller *poller) {
    azc__poller_abandon(poller);
    for (int i = 0; i < POLLERS; i++) {
        entry *it = polling.pollers[i] ? find(polling.pollers[i], NULL, poller) : NULL;
        if (it) it->used = false;
    }
    azc_sys.release(poller);
}

static entry *find_room(azc_poller *poller) {
    int i = 0;
    while (i < ENTRIES && poller->entries[i].used) i++;
    SIM_CHECK(i < ENTRIES, "too many fds in a poller");
    return &poller->entries[i];
}

int azc__poller_arm(azc_poller *poller, int fd, int what, uint64_t who) {
    sim_yield();
    azc_poller *inner = poller_of(fd);
    if (!inner && kernel_is_nothing(fd)) return -EBADF;
    sim_file *file = inner ? NULL : kernel_file(fd);
    SIM_CHECK(inner || !kernel_always_ready(file), "fd %d cannot be polled", fd);
    entry *it = find(poller, file, inner);
    if (file && file->unpollable) return -EPERM;
    if (no_fd() < 0) return -ENOMEM;
    if (!it) it = find_room(poller);
    *it = (entry){.file = file,
                  .inner = inner,
                  .used = true,
                  .armed = true,
                  .what = what,
                  .who = who};
    return 0;
}

void azc__poller_forget(azc_poller *poller, int fd) {
    sim_yield();
    if (kernel_is_nothing(fd)) return;
    sim_file *file = kernel_file(fd);
    entry *it = find(poller, file, NULL);
    /* a foreign number does not name the description that is known here */
    if (it && !file->stolen) it->used = false;
}

/* As in the kernel, a description that is closed everywhere is forgotten. */
void poller_drop_closed(const sim_file *file) {
    for (int i = 0; i < POLLERS; i++) {
        entry *it = polling.pollers[i] ? find(polling.pollers[i], file, NULL) : NULL;
        if (it) it->used = false;
    }
}

/* One armed fd will be reported although it is not ready. */
void kernel_report_falsely(void) {
    for (int i = 0; i < POLLERS; i++) {
        azc_poller *poller = polling.pollers[i];
        for (int k = 0; poller && k < ENTRIES; k++) {
            entry *it = &poller->entries[k];
            if (!it->used || !it->armed || it->spurious) continue;
            if (!kernel_strikes(kernel_rates.spurious, FAULT_SPURIOUS)) continue;
            it->spurious = true;
        }
    }
}

/* A thread that never sleeps although nothing moves is in a busy loop. */
static void check_fruitless(azc_poller *poller, int timeout_ms) {
    if (!poller->wakes || timeout_ms != 0 || poller->progress != kernel_progress)
        poller->fruitless = 0;
    poller->progress = kernel_progress;
    SIM_CHECK(++poller->fruitless < FRUITLESS_MAX, "a busy loop");
}

static int collect(azc_poller *poller, uint64_t *who, int max) {
    int count = 0, first = (int)sim_below(ENTRIES);
    for (int i = 0; i < ENTRIES && count < max; i++) {
        entry *it = &poller->entries[(first + i) % ENTRIES];
        if (!is_reported(it)) continue;
        if (count && sim_chance(300)) continue; /* reported another time */
        it->armed = it->spurious = false;
        who[count++] = it->who;
    }
    return count;
}

int azc__poller_wait(azc_poller *poller, uint64_t *who, int max, int timeout_us) {
    int timeout_ms = timeout_us < 0 ? -1 : (timeout_us + 999) / 1000;
    SIM_CHECK(!sim_holds_locks(), "a thread waits with a lock held");
    check_fruitless(poller, timeout_ms);
    if (timeout_ms == 0)
        sim_pause();
    else
        sim_wait(has_report, poller, timeout_ms);
    if (poller->woken) poller->woken = false;
    int count = collect(poller, who, max);
    sim_yield();
    return count;
}

void azc__poller_wake(azc_poller *poller) {
    poller->woken = true;
    sim_yield();
}

void poller_end(void) {
    for (int i = 0; i < WAKERS; i++)
        SIM_CHECK(!polling.open[i], "a waker is left open");
    for (int i = 0; i < POLLERS; i++)
        SIM_CHECK(!polling.pollers[i], "a poller is left open");
}
