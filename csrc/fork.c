/* fork.c - the ends of a process: a fork's child, and the interpreter's exit.
 *
 * A forked child has the memory of all channels but none of the threads, and a lock that
 * was held at the fork is never released there.  So before the fork the parent takes the
 * few locks that belong to no object (pthread_atfork: no Python runs in between).  The
 * child makes new locks for the objects, closes its copies of their fds (those of regular
 * files stay open: see azc__channel_fork_child) and forgets the objects.  Their memory is
 * never freed; calls with their numbers return -ECHILD.
 */
#include <errno.h>

#include "channel.h"
#include "ending.h"
#include "lender.h"
#include "loop.h"
#include "passing.h"
#ifndef AZC_PORTABLE
#include "ring.h"
#endif

/* ---- fork ------------------------------------------------------------ */

static void prepare(void) {
    pthread_mutex_lock(&azc__pumps_lock);
    for (int i = 0; i < TABLES; i++) pthread_mutex_lock(&azc__tables[i]->lock);
    pthread_mutex_lock(&azc__loops_lock);
    pthread_mutex_lock(&azc__parties_lock);
}

static void in_parent(void) {
    pthread_mutex_unlock(&azc__parties_lock);
    pthread_mutex_unlock(&azc__loops_lock);
    for (int i = 0; i < TABLES; i++) pthread_mutex_unlock(&azc__tables[i]->lock);
    pthread_mutex_unlock(&azc__pumps_lock);
}

static void in_child(void) {
    azc__handle_fork_child(&azc__channels, azc__channel_fork_child);
    azc__pump_fork_done();
    azc__loops_fork_child();
    azc__parties_fork_child();
    azc__handle_fork_child(&azc__ports, azc__port_fork_child);
    azc__handle_fork_child(&azc__pools, NULL);
    azc__handle_fork_child(&azc__relays, azc__relay_fork_child);
#ifndef AZC_PORTABLE
    azc__handle_fork_child(&azc__rings, azc__ring_fork_child);
#endif
    in_parent();
}

__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(prepare, in_parent, in_child);
}

/* ---- exit ------------------------------------------------------------ */

static void close_all(void) {
    azc_channel *channel;
    for (uint32_t i = 0; (channel = azc__handle_next(&azc__channels, &i));) {
        azc_id id = channel->id;
        azc__leave(channel);
        azc_close(id, 0, 0);
    }
}

/* Is a thread inside a system call that uses borrowed memory? */
static bool is_any_busy(void) {
    bool busy = false;
    azc_channel *channel;
    uint32_t i = 0;
    while (!busy && (channel = azc__handle_next(&azc__channels, &i))) {
        busy = channel->in_call;
        azc__leave(channel);
    }
    return busy;
}

int azc_stop(int ms) {
    uint64_t deadline = azc_sys.now_ns() + (uint64_t)ms * 1000000;
    bool busy;
    close_all();
    while ((busy = is_any_busy()) && azc_sys.now_ns() < deadline)
        azc_sys.sleep_us(1000);
    return busy ? -ETIMEDOUT : 0;
}

uint64_t azc_unsent(void) {
    uint64_t unsent = 0;
    azc_channel *channel;
    for (uint32_t i = 0; (channel = azc__handle_next(&azc__channels, &i));) {
        for (azc_op *op = channel->queue.head; op && azc__outward(channel);
             op = op->next)
            unsent += (op->total > op->expected ? op->total : op->expected) - op->sent;
        azc__leave(channel);
    }
    return unsent;
}
