/* pump.c - the threads that finish what a call could not finish at once.
 *
 * A pump is a poller, a thread, and the channels that it resumes:
 *   - one pump for all sockets that send, one for all that receive: a socket's
 *     system call never waits for the peer;
 *   - a private one for each pipe, tty or file that was ever busy: the peer can
 *     hold up a system call on a pipe inside the kernel, and no other channel may
 *     suffer from that.
 *
 * A pump starts with the first channel that needs it and ends with the last.  Its
 * thread is detached: it frees the pump when it finds that it is to stop.
 *
 * A pump does not keep channels alive.  A channel leaves the pump's lists when it is
 * closed, and the poller reports numbers, which may name nothing by then.
 *
 * The pump of the receiving sockets also watches the event loops that receive by
 * themselves (loop.h), and takes the place of those that are late.
 *
 * epoll is silent about a file whose number other code has closed.  So a pump checks
 * once a second whether the numbers it waits for are still ours.
 */
#include <errno.h>

#include "channel.h"
#include "ending.h"
#include "loop.h"
#include "poller.h"

enum { READY_MAX = 64, SECOND_US = 1000000 };

struct azc_list {
    azc_channel *first, *last;
};

struct azc_pump {
    pthread_mutex_t lock;
    azc_poller *poller;
    pthread_t thread;
    void (*resume)(azc_id channel);
    azc_list ready;    /* channels to resume in the next round of the thread */
    azc_list napping;  /* channels to resume when they are due */
    azc_id private_to; /* this channel; 0: the pump is shared */
    int users;         /* channels of a shared pump, under azc__pumps_lock */
    uint64_t watch_at; /* when to look after the loops */
    uint64_t check_at;
    bool stopping;
};

pthread_mutex_t azc__pumps_lock = PTHREAD_MUTEX_INITIALIZER;
static azc_pump *shared_out, *shared_in;

static azc_pump **shared_for(const azc_channel *channel) {
    return channel->flags & AZC_OUT ? &shared_out : &shared_in;
}

/* ---- lists, with the pump's lock -------------------------------------- */

static void list_remove(azc_channel *channel) {
    azc_pumping *it = &channel->pumping;
    azc_list *list = it->list;
    if (!list) return;
    if (it->before)
        it->before->pumping.next = it->next;
    else
        list->first = it->next;
    if (it->next)
        it->next->pumping.before = it->before;
    else
        list->last = it->before;
    it->list = NULL;
}

static void list_add(azc_list *list, azc_channel *channel) {
    azc_pumping *it = &channel->pumping;
    it->list = list;
    it->next = NULL;
    it->before = list->last;
    if (list->last)
        list->last->pumping.next = channel;
    else
        list->first = channel;
    list->last = channel;
}

/* Moves napping channels that are due to the ready ones; returns when the next is due. */
static uint64_t wake_the_due(azc_pump *pump, uint64_t now) {
    uint64_t next = UINT64_MAX;
    for (azc_channel *it = pump->napping.first, *after; it; it = after) {
        after = it->pumping.next;
        if (it->pumping.due <= now) {
            list_remove(it);
            list_add(&pump->ready, it);
        } else if (it->pumping.due < next) {
            next = it->pumping.due;
        }
    }
    return next;
}

/* ---- the thread ------------------------------------------------------ */

/* Resumes all channels that are ready now, but not those that get ready meanwhile. */
static void resume_ready(azc_pump *pump) {
    pthread_mutex_lock(&pump->lock);
    const azc_channel *last = pump->ready.last;
    for (bool more = last != NULL; more && pump->ready.first;) {
        azc_channel *channel = pump->ready.first;
        azc_id id = channel->id;
        more = channel != last;
        list_remove(channel);
        pthread_mutex_unlock(&pump->lock);
        pump->resume(id);
        pthread_mutex_lock(&pump->lock);
    }
    pthread_mutex_unlock(&pump->lock);
}

static void check_number(azc_pump *pump, azc_channel *channel) {
    if (channel->pumping.pump == pump && channel->pumping.armed)
        azc__was_replaced(channel);
    azc__leave(channel);
}

/* Checks once a second whether the fds' numbers are still ours. */
static void check_numbers(azc_pump *pump, uint64_t now) {
    if (now < pump->check_at) return;
    pump->check_at = now + SECOND_US * UINT64_C(1000);
    azc_channel *channel;
    if (pump->private_to) {
        channel = azc__enter(pump->private_to);
        if (channel) check_number(pump, channel);
        return;
    }
    for (uint32_t i = 0; (channel = azc__handle_next(&azc__channels, &i));)
        check_number(pump, channel);
}

/* Looks after the loops that are due, or whose pollers were reported. */
static void watch_loops(azc_pump *pump, const uint64_t *who, int count, uint64_t now) {
    if (pump->private_to) return;
    for (int i = 0; i < count; i++)
        if (who[i] & AZC_LOOP_REPORT) azc__loop_report(pump->poller, who[i]);
    pump->watch_at = azc__loops_watch(pump->poller, pump->resume, now);
}

/* How many microseconds to wait in this round; -1: the pump is to stop. */
static int timeout_of(azc_pump *pump, uint64_t now) {
    pthread_mutex_lock(&pump->lock);
    uint64_t next = wake_the_due(pump, now);
    if (pump->watch_at < next) next = pump->watch_at;
    int timeout = SECOND_US;
    if (pump->ready.first || next <= now)
        timeout = 0;
    else if (next - now < SECOND_US * UINT64_C(1000))
        timeout = (int)((next - now + 999) / 1000);
    if (pump->stopping) timeout = -1;
    pthread_mutex_unlock(&pump->lock);
    return timeout;
}

static void release(azc_pump *pump) {
    azc__poller_close(pump->poller);
    pthread_mutex_destroy(&pump->lock);
    azc_sys.release(pump);
}

static void *run(void *arg) {
    azc_pump *pump = arg;
    uint64_t who[READY_MAX];
    int timeout;
    while ((timeout = timeout_of(pump, azc_sys.now_ns())) >= 0) {
        int count = azc__poller_wait(pump->poller, who, READY_MAX, timeout);
        resume_ready(pump); /* before the reports: a channel gets one turn a round */
        for (int i = 0; i < count; i++)
            if (!(who[i] & AZC_LOOP_REPORT)) pump->resume(who[i]);
        uint64_t now = azc_sys.now_ns();
        watch_loops(pump, who, count, now);
        check_numbers(pump, now);
    }
    azc__loops_unwatch(pump->poller);
    release(pump);
    return NULL;
}

/* ---- joining and leaving --------------------------------------------- */

static int pump_new(azc_id private_to, void (*resume)(azc_id), azc_pump **out) {
    azc_pump *pump = sys_zeros(sizeof *pump);
    if (!pump) return -ENOMEM;
    pump->private_to = private_to;
    pump->resume = resume;
    pump->watch_at = UINT64_MAX;
    int r = azc__poller_open(&pump->poller, true);
    if (r < 0) {
        azc_sys.release(pump);
        return r;
    }
    pthread_mutex_init(&pump->lock, NULL);
    r = azc_sys.thread_start(&pump->thread, run, pump);
    if (r < 0)
        release(pump);
    else
        *out = pump;
    return r;
}

int azc__pump_attach(azc_channel *channel, void (*resume)(azc_id channel)) {
    if (!channel->lane->shared)
        return pump_new(channel->id, resume, &channel->pumping.pump);
    pthread_mutex_lock(&azc__pumps_lock);
    azc_pump **place = shared_for(channel);
    int r = *place ? 0 : pump_new(0, resume, place);
    if (r == 0) (*place)->users++;
    channel->pumping.pump = *place;
    pthread_mutex_unlock(&azc__pumps_lock);
    return r;
}

/* (in its own thread the pump is awake) */
static void wake(azc_pump *pump) {
    if (!pthread_equal(pthread_self(), pump->thread)) azc__poller_wake(pump->poller);
}

static void enlist(azc_channel *channel, azc_list *list, uint64_t due) {
    azc_pump *pump = channel->pumping.pump;
    pthread_mutex_lock(&pump->lock);
    if (channel->pumping.list != &pump->ready) {
        list_remove(channel);
        channel->pumping.due = due;
        list_add(list, channel);
    }
    wake(pump);
    pthread_mutex_unlock(&pump->lock);
}

void azc__pump_kick(azc_channel *channel) {
    enlist(channel, &channel->pumping.pump->ready, 0);
}

void azc__pump_nap(azc_channel *channel, unsigned us) {
    uint64_t due = azc_sys.now_ns() + us * UINT64_C(1000);
    enlist(channel, &channel->pumping.pump->napping, due);
}

int azc__pump_poll(azc_channel *channel) {
    azc_pump *pump = channel->pumping.pump;
    int r = pump->private_to ? 0 : azc__loop_arm(channel, pump->poller);
    if (r) return r < 0 ? r : 0;
    return azc__poller_arm(pump->poller, channel->fd,
                           azc__outward(channel) ? POLLER_OUT : POLLER_IN, channel->id);
}

static void stop(azc_pump *pump) {
    pthread_mutex_lock(&pump->lock);
    pump->stopping = true;
    wake(pump);
    pthread_mutex_unlock(&pump->lock);
}

/* (If the fd's number is lost, its place in the poller is another file's.) */
void azc__pump_leave(azc_channel *channel) {
    azc_pumping *it = &channel->pumping;
    azc_pump *pump = it->pump;
    if (!pump) return;
    if (!channel->file->lost) {
        azc__poller_forget(pump->poller, channel->fd);
        azc__loop_forget(channel);
    }
    pthread_mutex_lock(&pump->lock);
    list_remove(channel);
    pthread_mutex_unlock(&pump->lock);
    it->pump = NULL;
    if (pump->private_to) {
        stop(pump);
        return;
    }
    pthread_mutex_lock(&azc__pumps_lock);
    bool last = --pump->users == 0;
    if (last) *shared_for(channel) = NULL;
    pthread_mutex_unlock(&azc__pumps_lock);
    if (last) stop(pump);
}

bool azc__pump_is_private(const azc_channel *channel) {
    return channel->pumping.pump && channel->pumping.pump->private_to;
}

/* ---- fork ------------------------------------------------------------ */

/* The pump's memory stays: the thread that would free it does not exist here. */
void azc__pump_fork_child(const azc_channel *channel) {
    if (azc__pump_is_private(channel))
        azc__poller_abandon(channel->pumping.pump->poller);
}

static void forget_shared(azc_pump **place) {
    if (*place) azc__poller_abandon((*place)->poller);
    *place = NULL;
}

void azc__pump_fork_done(void) {
    forget_shared(&shared_out);
    forget_shared(&shared_in);
}
