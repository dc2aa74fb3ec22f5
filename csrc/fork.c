/* fork.c - the ends of a process: a fork's child, and the interpreter's exit. */
#include "fork.h"

#include <errno.h>

#include "channel.h"
#include "closing.h"
#include "lender.h"
#include "loop.h"
#include "pool.h"
#include "relay.h"
#ifndef AZC_PORTABLE
#include "ring.h"
#endif
#include "split.h"

/* ---- fork ------------------------------------------------------------ */

void azc__fork_prepare(void) {
    azc__pump_fork_lock();
    azc__handles_fork_lock();
    azc__loops_fork_lock();
    azc__pool_fork_lock();
    azc__parties_fork_lock();
}

void azc__fork_parent(void) {
    azc__parties_fork_unlock();
    azc__pool_fork_unlock();
    azc__loops_fork_unlock();
    azc__handles_fork_unlock();
    azc__pump_fork_unlock();
}

static void forget_pool(void *pool) { (void)pool; }

void azc__fork_child(void) {
    azc__handle_fork_child(&azc__channels, azc__channel_fork_child);
    azc__pump_fork_done();
    azc__loops_fork_child();
    azc__parties_fork_child();
    azc__handle_fork_child(&azc__ports, azc__port_fork_child);
    azc__handle_fork_child(&azc__pools, forget_pool);
    azc__handle_fork_child(&azc__relays, azc__relay_fork_child);
#ifndef AZC_PORTABLE
    azc__handle_fork_child(&azc__rings, azc__ring_fork_child);
#endif
    azc__handle_fork_child(&azc__splits, azc__split_fork_child);
    azc__fork_parent();
}

__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(azc__fork_prepare, azc__fork_parent, azc__fork_child);
}

/* ---- exit ------------------------------------------------------------ */

static void close_all(void) {
    for (uint32_t i = 0; i < azc__channels.used; i++) {
        azc_channel *channel = azc__handle_lock_at(&azc__channels, i);
        if (!channel) continue;
        azc_id id = channel->id;
        azc__leave(channel);
        azc_close(id, 0, 0);
    }
}

/* Is a thread inside a system call that uses borrowed memory? */
static bool is_any_busy(void) {
    bool busy = false;
    for (uint32_t i = 0; i < azc__channels.used && !busy; i++) {
        azc_channel *channel = azc__handle_lock_at(&azc__channels, i);
        if (!channel) continue;
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

static uint64_t unsent_of(const azc_op *op) {
    uint64_t total = op->total > op->expected ? op->total : op->expected;
    return total - op->sent;
}

uint64_t azc_unsent(void) {
    uint64_t unsent = 0;
    for (uint32_t i = 0; i < azc__channels.used; i++) {
        azc_channel *channel = azc__handle_lock_at(&azc__channels, i);
        if (!channel) continue;
        for (azc_op *op = channel->queue.head; op && azc__outward(channel);
             op = op->next)
            unsent += unsent_of(op);
        azc__leave(channel);
    }
    return unsent;
}
