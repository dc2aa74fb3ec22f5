/* ring.h - rings, by number.
 *
 * cffi reads this file, too, under the rules of azc.h.  The portable build has no rings.
 * A ring shares only handle.h, fork.c, and sys.h's memory and clock with the core.
 *
 * The functions of the handshake take a non-blocking SOCK_SEQPACKET socket, which stays
 * the caller's.  If they return -EAGAIN, call them again once the socket is ready.
 */
#ifndef AZC_RING_BY_NUMBER_H
#define AZC_RING_BY_NUMBER_H
#include "azc.h"

enum { AZC_ANY = 0, AZC_PRODUCER = 1, AZC_CONSUMER = 2 };

/* The records that one azc_shm_take has taken. */
typedef struct azc_batch {
    uint64_t hold;   /* for azc_shm_give_back; 0: none were taken */
    uint64_t start;  /* the position of the first record */
    uint64_t at;     /* the address of the first payload */
    uint64_t span;   /* bytes from there to the end of the last payload */
    uint64_t stride; /* from one payload to the next; 0: sizes differ */
    uint64_t count;  /* how many records */
    uint64_t bytes;  /* in their payloads */
} azc_batch;

typedef struct azc_item {
    uint64_t offset; /* from the batch's first payload */
    uint32_t size;
    uint32_t type_id;
} azc_item;

typedef struct azc_shm_stats {
    uint64_t capacity;
    uint64_t used;        /* bytes that the producer cannot use, now */
    uint64_t held;        /* batches from the oldest one not given back on, now */
    uint64_t records;     /* sent or taken so far */
    uint64_t bytes;       /* in their payloads */
    uint64_t waits;       /* how often the ring was full, or empty */
    uint64_t rings;       /* how often the other side was woken */
    int32_t fault;        /* how the peer broke the rules: see azc_ring.h */
    int32_t gone;         /* 1: the peer's end of the socket is closed */
    int32_t left;         /* 1: the peer has closed the ring */
    int32_t role;         /* ours */
    int32_t bell, socket; /* the fds to wait on; -1 once they are closed */
} azc_shm_stats;

/* 0, or -EACCES: the process at the other end is another user's. */
int azc_shm_check_user(int socket);

/* Client: asks for a role. */
int azc_shm_ask(int socket, int role);
/* Client: takes the ring that is offered, or returns why there is none. */
int azc_shm_hear_offer(int socket, azc_id *ring);

/* Listener: returns the role that the client asks for; makes a ring; offers it, or says
 * why not; and learns whether the client has taken it, which begins the ring. */
int azc_shm_hear_ask(int socket);
int azc_shm_create(uint64_t capacity, int role, azc_id *ring);
int azc_shm_offer(azc_id ring, int socket);
int azc_shm_refuse(int socket, int status);
int azc_shm_hear_answer(azc_id ring, int socket);

/* Sets how long a call on a full or empty ring looks again before it returns. */
int azc_shm_set_spin(azc_id ring, unsigned us);

/* Call it when one of the fds is readable: empties the doorbell, and returns 0 if the
 * peer lives, 1 if not, or -EPROTO if it broke the rules. */
int azc_shm_hear(azc_id ring);

/* Sends a record, of one piece or of several, which are copied.
 *   -EAGAIN     the ring is full; the bell will ring once there is room.  The first
 *               time it may ring late, so call again after a millisecond at most
 *   -EBUSY      a record is reserved           -EMSGSIZE  too big for this ring
 *   -EPIPE      the consumer has closed the ring, or died
 *   -EPROTO     the peer broke the rules       -ESHUTDOWN, -ECHILD  as in azc.h */
int azc_shm_send(azc_id ring, const void *data, size_t n, uint32_t type_id);
int azc_shm_sendv(azc_id ring, const struct iovec *vec, int count, uint32_t type_id);

/* azc_shm_send in steps: reserve stores in *at the address of n bytes to be filled in;
 * commit sends the first of them, and rollback none.  Before reserve *at is a key, which
 * the caller uses once: so a late rollback does not end another caller's reservation. */
int azc_shm_reserve(azc_id ring, uint64_t n, uint64_t *at);
int azc_shm_commit(azc_id ring, uint64_t n, uint32_t type_id);
int azc_shm_rollback(azc_id ring, uint64_t key);

/* Takes up to `most` records, and returns how many.
 *   0           no more will come: the producer has closed the ring
 *   -EAGAIN     the ring is empty; the bell will ring once it is not
 *   -EPIPE      the producer died, and all that it had committed was taken
 *   -EPROTO     the peer broke the rules       -ESHUTDOWN, -ECHILD  as above
 * The memory stays mapped until azc_shm_free, but the producer may overwrite it once the
 * batch was given back. */
int azc_shm_take(azc_id ring, int most, azc_batch *batch, azc_item *items);

/* Gives a batch back, in any order, and sets its hold to 0.  May be called twice. */
int azc_shm_give_back(azc_id ring, azc_batch *batch);

/* Undoes azc_shm_take for the batch that was taken last: the next call takes it again. */
int azc_shm_untake(azc_id ring, azc_batch *batch);

int azc_shm_get_stats(azc_id ring, azc_shm_stats *stats);

/* Ends the ring for the peer: clean, or as if we had died.  The fds stay open until
 * azc_shm_close, so that tasks which wait on them can stop; the memory stays until
 * azc_shm_free, which does all of this. */
int azc_shm_leave(azc_id ring, int clean);
int azc_shm_close(azc_id ring);
int azc_shm_free(azc_id ring);

/* For fork.c, in the child: closes our copies of the fds.  The memory stays mapped, since
 * there are views of it. */
void azc__ring_fork_child(void *ring);

#endif
