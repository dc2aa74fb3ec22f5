/* pump.c - the threads that finish what a call could not finish at once.
 *
 * A pump is a poller, a thread, and the channels that it drives:
 *   - one pump for all sockets that send, one for all that receive: a socket's
 *     system call never waits for the peer;
 *   - one pump for each pipe, tty or file that was ever busy: the peer can
 *     stop a system call on a pipe inside the kernel, and nobody else may
 *     suffer from that.
 *
 * A pump starts with the first channel that needs it and ends with the last.
 * It holds a reference on each of its channels, from attach until the end of
 * the turn in which the channel left: a turn may still carry a report about a
 * channel that has just been closed.
 *
 * Who ends what: azc__pump_detach (the freeing thread) ends a pump whose last
 * channel goes, and waits for the thread.  Only if the thread is inside a call
 * that a peer holds up, it is left to end and free itself.
 */
#include <errno.h>
#include <string.h>

#include "channel.h"
#include "poller.h"

enum { READY_MAX = 64, STARVED_PAUSE_US = 5000, DISTURBED_PAUSE_US = 500 };

typedef struct azc_list {
    azc_channel *first, *last;
} azc_list;

struct azc_pump {
    pthread_mutex_t lock;
    azc_registered registered;
    azc_poller *poller;
    pthread_t thread;
    azc_list ready;  /* to be driven in the next turn */
    azc_list later;  /* the same, but after a pause; or at the end of this
                      * turn, when a reader has mostly gone on already */
    azc_list napping; /* the same, but after a pause */
    int pause_us;    /* ... of so long */
    azc_channel *leaving; /* closed, to be let go of after this turn */
    int users;       /* channels, under shared_lock */
    bool shared, stopping, abandoned;
    bool left; /* the only channel has: what is reported of it is old */
};

static pthread_mutex_t shared_lock = PTHREAD_MUTEX_INITIALIZER;
static azc_pump *shared[2];

static azc_pump **shared_for(const azc_channel *channel) {
    return &shared[channel->flags & AZC_OUT ? 1 : 0];
}

/* A channel is in one of the lists at most. */
static void list_add(azc_list *list, azc_channel *channel) {
    if (channel->pump_listed) return;
    channel->pump_listed = true;
    channel->pump_next = NULL;
    if (list->last)
        list->last->pump_next = channel;
    else
        list->first = channel;
    list->last = channel;
}

static void list_append(azc_list *list, azc_list *more) {
    if (!more->first) return;
    if (list->last)
        list->last->pump_next = more->first;
    else
        list->first = more->first;
    list->last = more->last;
    *more = (azc_list){NULL, NULL};
}

static azc_channel *list_take(azc_list *list) {
    azc_channel *channel = list->first;
    if (!channel) return NULL;
    list->first = channel->pump_next;
    if (!list->first) list->last = NULL;
    channel->pump_listed = false;
    return channel;
}

/* ---- the thread ------------------------------------------------------ */

/* Drives all that are listed as ready now; those listed meanwhile wait. */
static void drive_ready(azc_pump *pump) {
    pthread_mutex_lock(&pump->lock);
    azc_list ready = pump->ready;
    pump->ready = (azc_list){NULL, NULL};
    azc_channel *channel;
    while ((channel = list_take(&ready))) {
        pthread_mutex_unlock(&pump->lock);
        azc__channel_resume(channel);
        pthread_mutex_lock(&pump->lock);
    }
    pthread_mutex_unlock(&pump->lock);
}

/* One that was listed meanwhile stays until the next turn has looked at it. */
static azc_channel *take_leaving(azc_pump *pump) {
    azc_channel **place = &pump->leaving;
    while (*place && (*place)->pump_listed) place = &(*place)->leaving_next;
    azc_channel *channel = *place;
    if (channel) *place = channel->leaving_next;
    return channel;
}

static void let_go(azc_pump *pump) {
    for (;;) {
        pthread_mutex_lock(&pump->lock);
        azc_channel *channel = take_leaving(pump);
        pthread_mutex_unlock(&pump->lock);
        if (!channel) return;
        azc__channel_unref(channel);
    }
}

/* One turn; false when the pump is at its end. */
static bool turn(azc_pump *pump) {
    void *who[READY_MAX];
    pthread_mutex_lock(&pump->lock);
    bool pauses = pump->later.first || pump->napping.first;
    bool stop = pump->stopping && !pump->ready.first && !pauses;
    int timeout = pump->ready.first ? 0 : pauses ? pump->pause_us : -1;
    pthread_mutex_unlock(&pump->lock);
    if (stop) return false;
    int count = azc__poller_wait(pump->poller, who, READY_MAX, timeout);
    pthread_mutex_lock(&pump->lock);
    list_append(&pump->ready, &pump->napping);
    if (pump->left) count = 0;
    pthread_mutex_unlock(&pump->lock);
    for (int i = 0; i < count; i++) azc__channel_resume(who[i]);
    pthread_mutex_lock(&pump->lock);
    list_append(&pump->ready, &pump->later);
    pthread_mutex_unlock(&pump->lock);
    drive_ready(pump);
    let_go(pump);
    return true;
}

static void pump_free(azc_pump *pump) {
    azc__unregister(&pump->registered);
    azc__poller_close(pump->poller);
    pthread_mutex_destroy(&pump->lock);
    azc_sys.release(pump);
}

static void *run(void *arg) {
    azc_pump *pump = arg;
    while (turn(pump)) {
    }
    let_go(pump);
    pthread_mutex_lock(&pump->lock);
    bool abandoned = pump->abandoned;
    pthread_mutex_unlock(&pump->lock);
    if (abandoned) pump_free(pump);
    return NULL;
}

/* ---- joining and leaving --------------------------------------------- */

static int pump_new(bool is_shared, azc_pump **out) {
    azc_pump *pump = azc_sys.allocate(sizeof *pump);
    if (!pump) return -ENOMEM;
    memset(pump, 0, sizeof *pump);
    pump->shared = is_shared;
    int r = azc__poller_open(&pump->poller);
    if (r < 0) {
        azc_sys.release(pump);
        return r;
    }
    pthread_mutex_init(&pump->lock, NULL);
    azc__register(REGISTERED_PUMP, &pump->registered, pump);
    r = azc_sys.thread_start(&pump->thread, run, pump);
    if (r < 0) {
        pump_free(pump);
        return r;
    }
    *out = pump;
    return 0;
}

/* Gives the channel its pump; the channel's lock is held. */
static int attach(azc_channel *channel) {
    azc_pump *pump = NULL;
    int r = 0;
    if (!channel->lane->shared) {
        r = pump_new(false, &pump);
    } else {
        pthread_mutex_lock(&shared_lock);
        azc_pump **place = shared_for(channel);
        if (!*place) r = pump_new(true, place);
        if (r == 0) (*place)->users++;
        pump = *place;
        pthread_mutex_unlock(&shared_lock);
    }
    if (r < 0) return r;
    channel->pump = pump;
    channel->refs++;
    return 0;
}

static void wake(azc_pump *pump) {
    if (!pthread_equal(pthread_self(), pump->thread))
        azc__poller_wake(pump->poller);
}

static void list_and_wake(azc_pump *pump, azc_list *list,
                          azc_channel *channel) {
    pthread_mutex_lock(&pump->lock);
    list_add(list, channel);
    pthread_mutex_unlock(&pump->lock);
    wake(pump);
}

static void pause_in(azc_pump *pump, azc_list *list, azc_channel *channel,
                     unsigned us) {
    pthread_mutex_lock(&pump->lock);
    pump->pause_us = (int)us;
    pthread_mutex_unlock(&pump->lock);
    list_and_wake(pump, list, channel);
}

static void look_later(azc_pump *pump, azc_channel *channel, unsigned us) {
    pause_in(pump, &pump->later, channel, us);
}

/* For one that the poller would report again at once. */
static void nap(azc_pump *pump, azc_channel *channel, unsigned us) {
    pause_in(pump, &pump->napping, channel, us);
}

static int poll_for(azc_channel *channel, int what) {
    int r = azc__poller_arm(channel->pump->poller, channel->fd, what,
                            channel->known, channel);
    channel->known = channel->known || r == 0;
    return r;
}

/* What is lent will be told of; or else it has to be asked for. */
static int await_loans(azc_pump *pump, azc_channel *channel) {
    if (channel->nap_us && channel->loans) {
        nap(pump, channel, channel->nap_us);
        return 0;
    }
    if (channel->nap_us) {
        look_later(pump, channel, channel->nap_us);
        return 0;
    }
    if (channel->watched) return 0;
    int r = poll_for(channel, POLLER_ERRORS);
    channel->watched = r == 0;
    return r;
}

/* The channel has bytes to move: drives it once its fd is ready.  Called with
 * the channel's lock held; drove says why the last drive stopped. */
int azc__pump_arm(azc_channel *channel, int drove) {
    int r = channel->pump ? 0 : attach(channel);
    if (r < 0) return r;
    azc_pump *pump = channel->pump;
    if (drove == DROVE_LENT) /* not armed: a new message must be, at once */
        return await_loans(pump, channel);
    channel->armed = true;
    channel->watched = false;
    bool pauses = drove == DROVE_STARVED || drove == DROVE_DISTURBED;
    if (channel->lane->polled && !channel->kept && !pauses) {
        r = poll_for(channel, azc__outward(channel) ? POLLER_OUT : POLLER_IN);
        if (r != -EPERM) return r;
    }
    /* Nobody will tell when it is ready.  Mostly it always is; a device may
     * have said that it is not. */
    if (drove == DROVE_DISTURBED)
        nap(pump, channel, DISTURBED_PAUSE_US);
    else if (drove == DROVE_STARVED || drove == DROVE_BLOCKED)
        look_later(pump, channel, STARVED_PAUSE_US);
    else
        list_and_wake(pump, &pump->ready, channel);
    return 0;
}

/* Makes the pump look at a channel whose state was changed. */
void azc__pump_kick(azc_channel *channel) {
    list_and_wake(channel->pump, &channel->pump->ready, channel);
}

/* The channel is closed: no report about its fd is wanted any more.  The
 * pump's reference goes at the end of the turn. */
void azc__pump_leave(azc_channel *channel) {
    azc_pump *pump = channel->pump;
    if (!pump) return;
    if (channel->known && channel->fd >= 0)
        azc__poller_forget(pump->poller, channel->fd);
    if (pump->shared && channel->file->lost &&
        (channel->armed || channel->loans))
        return; /* the poller may still report it: it stays for ever */
    pthread_mutex_lock(&pump->lock);
    pump->left = !pump->shared;
    channel->leaving_next = pump->leaving;
    pump->leaving = channel;
    pthread_mutex_unlock(&pump->lock);
}

/* The channel is about to be freed; closed says that it has left. */
void azc__pump_detach(azc_channel *channel, bool closed) {
    azc_pump *pump = channel->pump;
    if (!pump) return;
    if (pump->shared) {
        pthread_mutex_lock(&shared_lock);
        bool last = --pump->users == 0;
        if (last) *shared_for(channel) = NULL;
        pthread_mutex_unlock(&shared_lock);
        if (!last) return;
        closed = true; /* no peer can hold up a socket's call */
    }
    pthread_t thread = pump->thread;
    if (!closed) azc_sys.thread_detach(thread);
    pthread_mutex_lock(&pump->lock);
    pump->stopping = true;
    pump->abandoned = !closed;
    azc__poller_wake(pump->poller);
    pthread_mutex_unlock(&pump->lock);
    if (!closed) return;
    azc_sys.thread_join(thread);
    pump_free(pump);
}

/* ---- fork ------------------------------------------------------------ */

void azc__pump_fork_lock(void) { pthread_mutex_lock(&shared_lock); }

void azc__pump_fork_unlock(void) { pthread_mutex_unlock(&shared_lock); }

void azc__pump_fork_child(azc_pump *pump) {
    for (int i = 0; i < 2; i++) {
        if (shared[i] == pump) shared[i] = NULL;
    }
    azc__poller_abandon(pump->poller);
}
