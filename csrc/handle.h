/* handle.h - numbers for objects that may be asked for after their end.
 *
 * A number is the index of a slot in a table, and a generation, which is never used
 * again.  Slots are never freed, so any number can be looked up: under the slot's lock
 * it is compared with the slot's number.  That lock is also the object's lock.
 */
#ifndef AZC_HANDLE_H
#define AZC_HANDLE_H
#include "azc.h"
#include "sys.h"

enum { SLOTS_A_CHUNK = 256, CHUNKS = 4096 };

typedef struct azc_slot {
    pthread_mutex_t lock;
    azc_id id;      /* of the object, or of the last one if there is none */
    void *object;   /* or NULL */
    bool inherited; /* in a forked child: the object was the parent's */
    uint32_t next_free;
} azc_slot;

typedef struct azc_table {
    pthread_mutex_t lock; /* never held while a slot's lock is taken */
    _Atomic(azc_slot *) chunks[CHUNKS];
    _Atomic uint32_t used; /* how many slots there are, free ones included */
    uint32_t free;         /* the first free slot's index plus one; 0: none */
} azc_table;

extern azc_table azc__channels, azc__ports, azc__pools, azc__relays, azc__rings;
enum { TABLES = 5 };
extern azc_table *const azc__tables[TABLES]; /* in the order in which fork.c locks */

/* Returns a new number; 0: there is no memory.  If object is NULL, azc__handle_set sets
 * it later, and until then the number finds nothing. */
azc_id azc__handle_new(azc_table *table, void *object);
void azc__handle_set(azc_table *table, azc_id id, void *object);

/* Returns the slot that a number has or had; NULL if there is no such slot. */
azc_slot *azc__handle_slot(azc_table *table, azc_id id);

/* Returns the object, with its lock held; or NULL, and azc__handle_why says why. */
void *azc__handle_lock(azc_table *table, azc_id id);
void azc__handle_unlock(azc_table *table, azc_id id);
int azc__handle_why(azc_table *table, azc_id id);

/* Gives the number back, and releases the lock. */
void azc__handle_drop(azc_table *table, azc_id id);

/* For a loop over all objects, which begins with *index of 0: returns the next object,
 * with its lock held, or NULL after the last. */
void *azc__handle_next(azc_table *table, uint32_t *index);

/* In a forked child: forgets all objects, without freeing their memory; first calls
 * abandon, unless it is NULL, for each. */
void azc__handle_fork_child(azc_table *table, void (*abandon)(void *object));

#endif
