/* loop.c - event loops that receive by themselves.
 *
 * The states are in loop.h.
 */
#include "loop.h"

#include <errno.h>

#include "channel.h"
#include "sabotage.h"

enum {
    LOOK_US = 1000,     /* between two looks of the pump */
    LATE_US = 300,      /* a loop is late if its ready work waits longer */
    PROMPT = 8,         /* answers in a row, within LOOK_US each */
    LONGEST_US = 64000, /* the longest wait for an answer */
    TURN_US = 500,      /* of a loop's turn, until it may do other work */
    REPORTS = 4,        /* between two looks at the clock */
    LONG_RECEIVE = 1 << 20,
};

enum watch { QUIET, LOOKING, TAKEN };

typedef struct azc_loop {
    struct azc_loop *next;
    azc_id port;
    azc_poller *poller;
    unsigned users;  /* threads in its poller, and one while it is open */
    unsigned rounds; /* how often the loop called azc_port_move */
    /* for the pump */
    azc_poller *watcher; /* or NULL: no pump looks */
    enum watch watch;
    bool is_reported;  /* our poller was readable */
    bool is_late;      /* it was readable at the last look, too */
    unsigned seen;     /* the rounds at the last look */
    unsigned answered; /* wakes in a row that were answered */
    unsigned pause_us; /* between the last wake and the next */
    uint64_t due;
} azc_loop;

pthread_mutex_t azc__loops_lock = PTHREAD_MUTEX_INITIALIZER;
static azc_loop *loops;

static void lock(void) { pthread_mutex_lock(&azc__loops_lock); }

static void unlock(void) { pthread_mutex_unlock(&azc__loops_lock); }

/* The pump sends what a socket did not take at once: measured, its turns cost less than a
 * loop's.  It also makes long receives from a sender that pauses, which take many turns,
 * and receives with a `then`, which would hold a loop up. */
static bool is_for_pump(const azc_channel *channel) {
    const azc_op *op = channel->queue.cursor;
    if (azc__outward(channel) || !op || op->then) return true;
    bool pauses = channel->vain == IN_VAIN || channel->alone;
    return pauses && op->need > op->sent + LONG_RECEIVE;
}

static azc_loop *find(azc_id port) {
    azc_loop *it = loops;
    while (it && it->port != port) it = it->next;
    return it;
}

static void release(azc_loop *it) {
    if (--it->users) return;
    azc__poller_close(it->poller);
    azc_sys.release(it);
}

/* ---- opening and closing --------------------------------------------- */

int azc_port_watch(azc_id port) {
    int r = azc_port_fd(port);
    if (r < 0) return r;
    azc_loop *it = azc_sys.allocate(sizeof *it);
    if (!it) return -ENOMEM;
    *it = (azc_loop){.port = port, .users = 1};
    r = azc__poller_open(&it->poller, false);
    if (r < 0) {
        azc_sys.release(it);
        return r;
    }
    lock();
    azc_loop *before = find(port); /* of a call that was interrupted */
    if (before) {
        release(it);
        it = before;
    } else {
        it->next = loops;
        loops = it;
    }
    int fd = azc__poller_fd(it->poller);
    unlock();
    return fd;
}

bool azc__loop_close(azc_id port) {
    azc_loop **at = &loops;
    lock();
    while (*at && (*at)->port != port) at = &(*at)->next;
    azc_loop *it = *at;
    if (it) *at = it->next;
    if (it) release(it);
    unlock();
    return it != NULL;
}

/* ---- waiting --------------------------------------------------------- */

/* Lets the pump wait until the loop's poller is readable. */
static int watch_quietly(const azc_loop *it) {
    return azc__poller_arm(it->watcher, azc__poller_fd(it->poller), POLLER_IN,
                           AZC_LOOP_REPORT | it->port);
}

static int begin_to_watch(azc_loop *it, azc_poller *watcher) {
    if (it->watcher == watcher) return 0;
    it->watcher = watcher;
    it->watch = QUIET;
    it->is_reported = false;
    it->due = UINT64_MAX;
    int r = watch_quietly(it);
    if (r < 0) it->watcher = NULL;
    return r;
}

int azc__loop_arm(azc_channel *channel, azc_poller *watcher) {
    int r = 0;
    if (is_for_pump(channel)) return 0;
    lock();
    azc_loop *it = find(channel->last_port);
    if (it && begin_to_watch(it, watcher) == 0 && it->watch != TAKEN) {
        r = azc__poller_arm(it->poller, channel->fd, POLLER_IN, channel->id);
        r = r < 0 ? r : 1;
        channel->pumping.loop = it->port;
    } else if (it && it->due == UINT64_MAX) {
        it->due = 0; /* the pump wakes the loop again, to see whether it answers */
        it->pause_us = LOOK_US;
    }
    unlock();
    return r;
}

void azc__loop_forget(azc_channel *channel) {
    if (azc__outward(channel)) return;
    lock();
    azc_loop *it = find(channel->pumping.loop);
    if (it) azc__poller_forget(it->poller, channel->fd);
    unlock();
}

/* ---- moving ---------------------------------------------------------- */

/* A report comes only once, so this takes no more when no time is left for them. */
static void move_ready(azc_loop *it, void (*resume)(azc_id channel)) {
    uint64_t who[REPORTS];
    uint64_t end = azc_sys.now_ns() + TURN_US * UINT64_C(1000);
    int count;
    do {
        count = azc__poller_wait(it->poller, who, REPORTS, 0);
        for (int i = 0; i < count; i++) resume(who[i]);
    } while (count == REPORTS && azc_sys.now_ns() < end);
}

int azc__loop_move(azc_id port, void (*resume)(azc_id channel)) {
    lock();
    azc_loop *it = find(port);
    if (it) {
        it->rounds++;
        it->users++;
    }
    unlock();
    if (!it) return -ESHUTDOWN;
    move_ready(it, resume);
    lock();
    release(it);
    unlock();
    return 0;
}

/* ---- watching, in the pump's thread ------------------------------------ */

void azc__loop_report(const azc_poller *watcher, uint64_t report) {
    lock();
    azc_loop *it = find(report ^ AZC_LOOP_REPORT);
    if (it && it->watcher == watcher) it->is_reported = true;
    unlock();
}

static void look_again(azc_loop *it, uint64_t now, unsigned us) {
    it->due = now + us * UINT64_C(1000);
}

static void begin_to_look(azc_loop *it, uint64_t now, bool is_late) {
    it->watch = LOOKING;
    it->seen = it->rounds;
    it->is_late = is_late;
    look_again(it, now, is_late ? LATE_US : LOOK_US);
}

static void wake(azc_loop *it, uint64_t now) {
    azc__port_retry(it->port, NULL);
    look_again(it, now, it->pause_us);
}

static void take(azc_loop *it, uint64_t now) {
    it->watch = TAKEN;
    it->is_reported = true; /* so that we move what is ready */
    it->answered = 0;
    it->pause_us = LOOK_US;
    wake(it, now);
}

static void look(azc_loop *it, uint64_t now) {
    if (it->rounds != it->seen) {
        begin_to_look(it, now, false);
    } else if (!azc__poller_is_readable(it->poller)) {
        it->watch = QUIET;
        it->due = UINT64_MAX;
        if (watch_quietly(it) < 0) look_again(it, now, LOOK_US);
    } else if (it->is_late && !SABOTAGED(LATE)) {
        take(it, now);
    } else {
        begin_to_look(it, now, true);
    }
}

static void hear_answer(azc_loop *it, uint64_t now) {
    bool answered = !azc__port_is_signalled(it->port);
    it->answered = answered ? it->answered + 1 : 0;
    it->pause_us = answered ? LOOK_US : it->pause_us * 2;
    if (it->answered == PROMPT)
        begin_to_look(it, now, false);
    else if (it->pause_us > LONGEST_US)
        it->due = UINT64_MAX; /* until there is more to do */
    else
        wake(it, now);
}

/* True: the pump has to move what is ready. */
static bool attend(azc_loop *it, uint64_t now) {
    bool is_due = it->due <= now;
    if (it->watch == QUIET && it->is_reported)
        begin_to_look(it, now, true);
    else if (it->watch == TAKEN && is_due)
        hear_answer(it, now);
    else if (is_due)
        look(it, now);
    bool is_reported = it->is_reported;
    it->is_reported = false;
    return it->watch == TAKEN && is_reported;
}

/* The first loop that is due or was reported; if there is none, *next is when one is. */
static azc_loop *to_attend(const azc_poller *watcher, uint64_t now, uint64_t *next) {
    *next = UINT64_MAX;
    for (azc_loop *it = loops; it; it = it->next) {
        if (it->watcher != watcher) continue;
        if (it->is_reported || it->due <= now) return it;
        if (it->due < *next) *next = it->due;
    }
    return NULL;
}

uint64_t azc__loops_watch(azc_poller *watcher, void (*resume)(azc_id channel),
                          uint64_t now) {
    uint64_t next;
    azc_loop *it;
    lock();
    while ((it = to_attend(watcher, now, &next))) {
        if (!attend(it, now)) continue;
        it->users++;
        unlock();
        move_ready(it, resume);
        lock();
        if (it->watcher == watcher && it->watch == TAKEN) watch_quietly(it);
        release(it);
    }
    unlock();
    return next;
}

void azc__loops_unwatch(azc_poller *watcher) {
    lock();
    for (azc_loop *it = loops; it; it = it->next)
        if (it->watcher == watcher) it->watcher = NULL;
    unlock();
}

/* ---- fork ------------------------------------------------------------ */

/* (the memory is not freed, like that of a pump) */
void azc__loops_fork_child(void) {
    for (azc_loop *it = loops; it; it = it->next) azc__poller_abandon(it->poller);
    loops = NULL;
}
