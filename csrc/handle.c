/* handle.c - numbers for objects that may be asked for after their end. */
#include "handle.h"

#include <errno.h>

#include "sabotage.h"

#ifdef AZC_SABOTAGE
int azc_sabotage;
#endif

enum { INDEX_BITS = 20 };

#define GENERATION (UINT64_C(1) << INDEX_BITS)

azc_table azc__channels = {.lock = PTHREAD_MUTEX_INITIALIZER};
azc_table azc__ports = {.lock = PTHREAD_MUTEX_INITIALIZER};
azc_table azc__pools = {.lock = PTHREAD_MUTEX_INITIALIZER};
azc_table azc__relays = {.lock = PTHREAD_MUTEX_INITIALIZER};
azc_table azc__rings = {.lock = PTHREAD_MUTEX_INITIALIZER};
azc_table *const azc__tables[TABLES] = {&azc__channels, &azc__ports, &azc__pools,
                                        &azc__relays, &azc__rings};

static azc_slot *slot_at(azc_table *table, uint32_t index) {
    if (index >= table->used) return NULL;
    return &table->chunks[index / SLOTS_A_CHUNK][index % SLOTS_A_CHUNK];
}

azc_slot *azc__handle_slot(azc_table *table, azc_id id) {
    return slot_at(table, (uint32_t)(id & (GENERATION - 1)));
}

/* add_slot and free_slot: with the table's lock held. */
static azc_slot *add_slot(azc_table *table) {
    uint32_t index = table->used, chunk = index / SLOTS_A_CHUNK;
    if (chunk == CHUNKS) return NULL;
    if (!table->chunks[chunk]) {
        azc_slot *more = sys_zeros(SLOTS_A_CHUNK * sizeof *more);
        if (!more) return NULL;
        table->chunks[chunk] = more;
    }
    azc_slot *slot = &table->chunks[chunk][index % SLOTS_A_CHUNK];
    pthread_mutex_init(&slot->lock, NULL);
    slot->id = index;
    table->used = index + 1;
    return slot;
}

static azc_slot *free_slot(azc_table *table) {
    if (!table->free) return NULL;
    azc_slot *slot = slot_at(table, table->free - 1);
    table->free = slot->next_free;
    return slot;
}

azc_id azc__handle_new(azc_table *table, void *object) {
    pthread_mutex_lock(&table->lock);
    azc_slot *slot = free_slot(table);
    if (!slot) slot = add_slot(table);
    pthread_mutex_unlock(&table->lock);
    if (!slot) return 0;
    pthread_mutex_lock(&slot->lock);
    azc_id id = slot->id += GENERATION;
    slot->object = object;
    pthread_mutex_unlock(&slot->lock);
    return id;
}

void azc__handle_set(azc_table *table, azc_id id, void *object) {
    azc_slot *slot = azc__handle_slot(table, id);
    pthread_mutex_lock(&slot->lock);
    slot->object = object;
    pthread_mutex_unlock(&slot->lock);
}

void *azc__handle_lock(azc_table *table, azc_id id) {
    azc_slot *slot = azc__handle_slot(table, id);
    if (!slot) return NULL;
    pthread_mutex_lock(&slot->lock);
    if (slot->object && (slot->id == id || SABOTAGED(HANDLE))) return slot->object;
    pthread_mutex_unlock(&slot->lock);
    return NULL;
}

void azc__handle_unlock(azc_table *table, azc_id id) {
    pthread_mutex_unlock(&azc__handle_slot(table, id)->lock);
}

int azc__handle_why(azc_table *table, azc_id id) {
    azc_slot *slot = azc__handle_slot(table, id);
    if (!slot) return -ESHUTDOWN;
    pthread_mutex_lock(&slot->lock);
    bool inherited = slot->inherited && slot->id == id;
    pthread_mutex_unlock(&slot->lock);
    return inherited ? -ECHILD : -ESHUTDOWN;
}

void azc__handle_drop(azc_table *table, azc_id id) {
    azc_slot *slot = azc__handle_slot(table, id);
    slot->object = NULL;
    pthread_mutex_unlock(&slot->lock);
    pthread_mutex_lock(&table->lock);
    slot->next_free = table->free;
    table->free = (uint32_t)(id & (GENERATION - 1)) + 1;
    pthread_mutex_unlock(&table->lock);
}

void *azc__handle_next(azc_table *table, uint32_t *index) {
    while (*index < table->used) {
        azc_slot *slot = slot_at(table, (*index)++);
        pthread_mutex_lock(&slot->lock);
        if (slot->object) return slot->object;
        pthread_mutex_unlock(&slot->lock);
    }
    return NULL;
}

/* ---- fork ------------------------------------------------------------ */

/* New locks: a thread that does not exist here may have held the old ones. */
void azc__handle_fork_child(azc_table *table, void (*abandon)(void *object)) {
    for (uint32_t i = 0; i < table->used; i++) {
        azc_slot *slot = slot_at(table, i);
        pthread_mutex_init(&slot->lock, NULL);
        if (!slot->object) continue;
        if (abandon) abandon(slot->object);
        slot->object = NULL;
        slot->inherited = true;
    }
}
