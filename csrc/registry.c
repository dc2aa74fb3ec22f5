/* registry.c - every channel, pump and port there is: for exit and for fork.
 *
 * A forked child has the memory of all of them but none of the threads, and
 * any lock may be held for ever there.  So the parent holds the registry's own
 * lock across the fork, and the child only closes its copies of the fds and
 * marks each as dead.  What a dead one occupies is never freed.
 */
#include "registry.h"

#include "channel.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static azc_registered *first[REGISTERED_KINDS];

void azc__register(int kind, azc_registered *entry, void *object) {
    pthread_mutex_lock(&lock);
    entry->object = object;
    entry->dead = false;
    entry->next = first[kind];
    entry->previous = &first[kind];
    if (entry->next) entry->next->previous = &entry->next;
    first[kind] = entry;
    pthread_mutex_unlock(&lock);
}

void azc__unregister(azc_registered *entry) {
    pthread_mutex_lock(&lock);
    *entry->previous = entry->next;
    if (entry->next) entry->next->previous = entry->previous;
    pthread_mutex_unlock(&lock);
}

bool azc__is_dead(const azc_registered *entry) { return entry->dead; }

/* Lists channels, each held for the caller; those beyond max are left out. */
int azc__registry_channels(azc_channel **channels, int max) {
    int count = 0;
    pthread_mutex_lock(&lock);
    for (azc_registered *it = first[REGISTERED_CHANNEL]; it && count < max;
         it = it->next) {
        if (azc__channel_hold(it->object)) channels[count++] = it->object;
    }
    pthread_mutex_unlock(&lock);
    return count;
}

void azc_fork_prepare(void) {
    azc__pump_fork_lock();
    azc__pool_fork_lock();
    pthread_mutex_lock(&lock);
}

void azc_fork_parent(void) {
    pthread_mutex_unlock(&lock);
    azc__pool_fork_unlock();
    azc__pump_fork_unlock();
}

void azc_fork_child(void) {
    for (int kind = 0; kind < REGISTERED_KINDS; kind++) {
        for (azc_registered *it = first[kind]; it; it = it->next) {
            it->dead = true;
            if (kind == REGISTERED_CHANNEL) azc__channel_fork_child(it->object);
            if (kind == REGISTERED_PUMP) azc__pump_fork_child(it->object);
            if (kind == REGISTERED_PORT) azc__port_fork_child(it->object);
        }
        first[kind] = NULL;
    }
    pthread_mutex_unlock(&lock);
    azc__pool_fork_unlock();
    azc__pump_fork_unlock();
}
