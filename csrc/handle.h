/* handle.h - numbers for objects that may be asked for after their end.
 *
 * A number is an index into a table and a generation, which is never used again.
 * The slots of a table are never freed, so a number can always be looked up: under
 * the slot's lock it is compared with the one that the slot has now.  That lock is
 * the object's own as well.
 */
#ifndef AZC_HANDLE_H
#define AZC_HANDLE_H
#include "azc.h"
#include "sys.h"

enum { SLOTS_A_CHUNK = 256, CHUNKS = 4096 };

typedef struct azc_slot {
    pthread_mutex_t lock;
    azc_id id;    /* of the object; or, if there is none, the last one's */
    void *object; /* NULL also in a forked child, of the parent's objects */
    bool inherited;
    uint32_t next_free;
} azc_slot;

typedef struct azc_table {
    pthread_mutex_t lock; /* no slot's is taken while it is held */
    _Atomic(azc_slot *) chunks[CHUNKS];
    _Atomic uint32_t used; /* slots */
    uint32_t free;         /* the first of those with no object, plus one */
} azc_table;

extern azc_table azc__channels, azc__ports, azc__pools;

/* 0: there is no memory.  The object may be named later, when it knows its number. */
azc_id azc__handle_new(azc_table *table, void *object);
void azc__handle_set(azc_table *table, azc_id id, void *object);

/* The slot of a number that is or was used. */
azc_slot *azc__handle_slot(azc_table *table, azc_id id);

/* The object, with its lock held; or NULL, and azc__handle_why says why. */
void *azc__handle_lock(azc_table *table, azc_id id);
void azc__handle_unlock(azc_table *table, azc_id id);
int azc__handle_why(azc_table *table, azc_id id);

/* The number names nothing any more.  The lock is let go of. */
void azc__handle_drop(azc_table *table, azc_id id);

/* All objects by turns, index by index: as azc__handle_lock. */
void *azc__handle_lock_at(azc_table *table, uint32_t index);

/* Around a fork, and in the child for each object: its memory stays as it is. */
void azc__handle_fork_lock(azc_table *table);
void azc__handle_fork_unlock(azc_table *table);
void azc__handle_fork_child(azc_table *table, void (*abandon)(void *object));

#endif
