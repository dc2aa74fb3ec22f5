/* ring.c - rings, by number; azc_ring.h is their protocol.
 *
 * A consumer's batches may be given back in any order, but the producer knows only one
 * index, up to which all is free.  So each ring remembers its batches in the order in which
 * they were taken, and the index moves past the first ones that were given back:
 *
 *     first                                   last
 *     held     given back     held     held
 *     ^ index                                      ^ next
 */
#include "ring.h"

#include <errno.h>
#include <string.h>

#include "azc_ring.h"
#include "handle.h"
#include "sabotage.h"

typedef struct hold {
    uint64_t end; /* of the batch's last record, which identifies it */
    bool is_over;
} hold;

typedef struct azc_shm {
    azc_ring ring;
    hold *holds; /* a circle of `room` */
    size_t room, first, count;
    uint64_t records, bytes, waits;
    uint64_t reserved; /* the key of the last reservation */
    uint64_t awaited;  /* the index at which a send last waited for room, plus one */
    unsigned spin_us;
    bool is_offered; /* but not taken yet */
    bool has_left;   /* we have closed it: no more calls */
} azc_shm;

/* ---- batches that were taken ------------------------------------------- */

static hold *hold_at(azc_shm *shm, size_t i) {
    return &shm->holds[(shm->first + i) % shm->room];
}

static int make_room(azc_shm *shm) {
    if (shm->count < shm->room) return 0;
    size_t room = shm->room ? 2 * shm->room : 64;
    hold *more = azc_sys.allocate(room * sizeof *more);
    if (!more) return -ENOMEM;
    for (size_t i = 0; i < shm->count; i++) more[i] = *hold_at(shm, i);
    azc_sys.release(shm->holds);
    shm->holds = more;
    shm->room = room;
    shm->first = 0;
    return 0;
}

/* Finds a batch by its end; the batches are in order. */
static hold *find(azc_shm *shm, uint64_t end) {
    size_t low = 0, high = shm->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (hold_at(shm, middle)->end < end)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == shm->count || hold_at(shm, low)->end != end) return NULL;
    return hold_at(shm, low);
}

/* Moves the index past the first batches that were given back. */
static void advance(azc_shm *shm) {
    uint64_t end = 0;
    while (shm->count && (hold_at(shm, 0)->is_over || SABOTAGED(HOLD))) {
        end = hold_at(shm, 0)->end;
        shm->first = (shm->first + 1) % shm->room;
        shm->count--;
    }
    if (end && !shm->ring.fault) azc_ring_release(&shm->ring, end);
}

/* ---- by number ----------------------------------------------------------- */

static azc_shm *locked(azc_id id) { return azc__handle_lock(&azc__rings, id); }

/* Returns the ring if it is open and has this role; or NULL, and *why. */
static azc_shm *open_ring(azc_id id, int role, int *why) {
    azc_shm *shm = locked(id);
    if (!shm) {
        *why = azc__handle_why(&azc__rings, id);
        return NULL;
    }
    *why = shm->has_left ? -ESHUTDOWN : shm->ring.role == role ? 0 : -EINVAL;
    if (*why == 0) return shm;
    azc__handle_unlock(&azc__rings, id);
    return NULL;
}

static int leave(azc_id id, int r) {
    azc__handle_unlock(&azc__rings, id);
    return r;
}

static int keep(azc_ring *ring, azc_id *id) {
    azc_shm *shm = sys_zeros(sizeof *shm);
    if (shm) {
        shm->ring = *ring;
        *id = azc__handle_new(&azc__rings, shm);
        if (*id) return 0;
        azc_sys.release(shm);
    }
    azc_ring_close(ring);
    return -ENOMEM;
}

/* ---- the handshake --------------------------------------------------------- */

int azc_shm_check_user(int socket) { return azc_ring_check_user(socket); }

int azc_shm_ask(int socket, int role) { return azc_ring_ask(socket, role); }

int azc_shm_hear_offer(int socket, azc_id *id) {
    azc_ring ring;
    int r = azc_ring_hear_offer(socket, &ring);
    if (r == -EAGAIN) return r;
    int answered = azc_ring_answer(socket, r);
    if (r < 0) return r;
    r = answered < 0 ? answered : azc_ring_watch(&ring, socket);
    if (r == 0) return keep(&ring, id);
    azc_ring_close(&ring);
    return r;
}

int azc_shm_hear_ask(int socket) {
    int role, r = azc_ring_hear_ask(socket, &role);
    return r < 0 ? r : role;
}

int azc_shm_create(uint64_t capacity, int role, azc_id *id) {
    azc_ring ring;
    int r = azc_ring_create(&ring, capacity, role);
    return r < 0 ? r : keep(&ring, id);
}

int azc_shm_offer(azc_id id, int socket) {
    azc_shm *shm = locked(id);
    if (!shm) return azc__handle_why(&azc__rings, id);
    shm->is_offered = true;
    return leave(id, azc_ring_offer(socket, &shm->ring));
}

int azc_shm_refuse(int socket, int status) { return azc_ring_refuse(socket, status); }

int azc_shm_hear_answer(azc_id id, int socket) {
    azc_shm *shm = locked(id);
    if (!shm) return azc__handle_why(&azc__rings, id);
    int r = azc_ring_hear_answer(socket);
    if (r == 0) r = azc_ring_watch(&shm->ring, socket);
    shm->is_offered = r < 0;
    return leave(id, r);
}

/* ---- waiting ----------------------------------------------------------------- */

int azc_shm_set_spin(azc_id id, unsigned us) {
    azc_shm *shm = locked(id);
    if (!shm) return azc__handle_why(&azc__rings, id);
    shm->spin_us = us;
    return leave(id, 0);
}

int azc_shm_hear(azc_id id) {
    azc_shm *shm = locked(id);
    if (!shm) return azc__handle_why(&azc__rings, id);
    if (shm->ring.socket < 0) return leave(id, 0);
    azc_ring_clear(&shm->ring);
    return leave(id, azc_ring_is_gone(&shm->ring));
}

static void pause_a_moment(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Looks repeatedly for a while: has the other side done something?  It holds no lock, so
 * that a finalizer can give a batch back, for which the other side may wait. */
static bool spin(azc_id id, uint64_t seen, unsigned us) {
    uint64_t deadline = azc_sys.now_ns() + us * UINT64_C(1000);
    bool is_new = false;
    do {
        for (int i = 0; i < 32; i++) pause_a_moment();
        azc_shm *shm = locked(id);
        if (!shm) return true;
        is_new = shm->has_left || shm->ring.is_gone ||
                 azc_ring_index_of_peer(&shm->ring) != seen ||
                 azc_ring_has_left(&shm->ring);
        azc__handle_unlock(&azc__rings, id);
    } while (!is_new && azc_sys.now_ns() < deadline);
    return is_new;
}

/* Should a call that found the ring full or empty (-EAGAIN) try again?  Releases the lock,
 * and spins only once in a call. */
static bool is_to_try_again(azc_shm *shm, azc_id id, int r, bool has_spun) {
    uint64_t seen = shm->ring.seen;
    unsigned us = shm->spin_us;
    shm->waits += r == -EAGAIN;
    azc__handle_unlock(&azc__rings, id);
    return r == -EAGAIN && us && !has_spun && spin(id, seen, us);
}

/* ---- sending ----------------------------------------------------------------- */

/* With the lock held: reserves, or returns -EAGAIN with the bell armed, the first time
 * with slack. */
static int reserve(azc_shm *shm, uint64_t n, void **at) {
    bool is_first = shm->awaited != shm->ring.index + 1;
    uint64_t slack = is_first ? azc_ring_slack(&shm->ring) : 0;
    for (;;) {
        int r = azc_ring_reserve(&shm->ring, n, at);
        if (r != -EAGAIN) return r;
        r = azc_ring_await_room(&shm->ring, n, slack);
        if (r < 0) return r;
        shm->awaited = shm->ring.index + 1;
        if (r == 0) return -EAGAIN;
    }
}

/* Returns with the lock held on success. */
static int reserve_by_id(azc_id id, uint64_t n, void **at, azc_shm **out) {
    for (bool has_spun = false;; has_spun = true) {
        int r;
        azc_shm *shm = *out = open_ring(id, AZC_PRODUCER, &r);
        if (!shm) return r;
        r = reserve(shm, n, at);
        if (r == 0) return 0;
        if (!is_to_try_again(shm, id, r, has_spun)) return r;
    }
}

static int commit(azc_shm *shm, uint64_t n, uint32_t type_id) {
    int r = azc_ring_commit(&shm->ring, n, type_id);
    if (r < 0) return r;
    shm->records++;
    shm->bytes += n;
    return 0;
}

int azc_shm_sendv(azc_id id, const struct iovec *vec, int count, uint32_t type_id) {
    uint64_t n = 0;
    azc_shm *shm;
    void *at;
    for (int i = 0; i < count; i++) n += vec[i].iov_len;
    int r = reserve_by_id(id, n, &at, &shm);
    if (r < 0) return r;
    for (char *to = at; count; count--, to += vec++->iov_len)
        if (vec->iov_len) memcpy(to, vec->iov_base, vec->iov_len);
    return leave(id, commit(shm, n, type_id));
}

int azc_shm_send(azc_id id, const void *data, size_t n, uint32_t type_id) {
    struct iovec vec = {(void *)(uintptr_t)data, n};
    return azc_shm_sendv(id, &vec, 1, type_id);
}

int azc_shm_reserve(azc_id id, uint64_t n, uint64_t *out) {
    azc_shm *shm;
    void *at;
    int r = reserve_by_id(id, n, &at, &shm);
    if (r < 0) return r;
    shm->reserved = *out;
    *out = (uintptr_t)at;
    return leave(id, 0);
}

int azc_shm_commit(azc_id id, uint64_t n, uint32_t type_id) {
    int r;
    azc_shm *shm = open_ring(id, AZC_PRODUCER, &r);
    return shm ? leave(id, commit(shm, n, type_id)) : r;
}

int azc_shm_rollback(azc_id id, uint64_t key) {
    int r;
    azc_shm *shm = open_ring(id, AZC_PRODUCER, &r);
    if (!shm) return r;
    if (shm->reserved == key) azc_ring_rollback(&shm->ring);
    return leave(id, 0);
}

/* ---- receiving ----------------------------------------------------------------- */

/* With the lock held: takes one record, or returns -EAGAIN with the bell armed. */
static int take_one(azc_shm *shm, azc_ring_record *record) {
    for (;;) {
        bool was_gone = shm->ring.is_gone;
        int r = azc_ring_take(&shm->ring, record);
        if (r != -EAGAIN) return r;
        if (was_gone) return -EPIPE;
        r = azc_ring_await_record(&shm->ring);
        if (r < 0) return r;
        if (r == 0) return -EAGAIN;
    }
}

/* Takes the first record, and as many of the next ones as are there. */
static int take(azc_shm *shm, int most, azc_batch *batch, azc_item *items) {
    azc_ring_record record;
    uint64_t at = shm->ring.next;
    int n = 0, r = make_room(shm);
    if (r == 0) r = take_one(shm, &record);
    if (r <= 0) return r;
    *batch = (azc_batch){.start = at,
                         .at = (uintptr_t)record.payload,
                         .stride = azc_ring_stride(record.size)};
    do {
        items[n] = (azc_item){at - batch->start, record.size, record.type_id};
        if (record.size != items[0].size) batch->stride = 0;
        batch->span = items[n++].offset + record.size;
        batch->hold = at = record.end;
        batch->bytes += record.size;
    } while (n < most && azc_ring_take(&shm->ring, &record) == 1);
    shm->records += batch->count = (uint64_t)n;
    shm->bytes += batch->bytes;
    shm->count++;
    *hold_at(shm, shm->count - 1) = (hold){batch->hold, false};
    if (SABOTAGED(HOLD)) advance(shm);
    return n;
}

int azc_shm_take(azc_id id, int most, azc_batch *batch, azc_item *items) {
    if (most < 1) return -EINVAL;
    for (bool has_spun = false;; has_spun = true) {
        int r;
        azc_shm *shm = open_ring(id, AZC_CONSUMER, &r);
        if (!shm) return r;
        r = take(shm, most, batch, items);
        if (!is_to_try_again(shm, id, r, has_spun)) return r;
    }
}

int azc_shm_give_back(azc_id id, azc_batch *batch) {
    azc_shm *shm = locked(id);
    if (!shm) return azc__handle_why(&azc__rings, id);
    hold *held = batch->hold ? find(shm, batch->hold) : NULL;
    batch->hold = 0;
    if (!held) return leave(id, 0);
    held->is_over = true;
    if (!shm->has_left) advance(shm);
    return leave(id, 0);
}

int azc_shm_untake(azc_id id, azc_batch *batch) {
    azc_shm *shm = locked(id);
    if (!shm) return azc__handle_why(&azc__rings, id);
    if (batch->hold && shm->count && hold_at(shm, shm->count - 1)->end == batch->hold) {
        shm->count--;
        shm->records -= batch->count;
        shm->bytes -= batch->bytes;
        shm->ring.next = batch->start;
    }
    batch->hold = 0;
    return leave(id, 0);
}

/* ---- the end ----------------------------------------------------------------- */

int azc_shm_get_stats(azc_id id, azc_shm_stats *stats) {
    azc_shm *shm = locked(id);
    if (!shm) return azc__handle_why(&azc__rings, id);
    const azc_ring *ring = &shm->ring;
    bool sends = ring->role == AZC_PRODUCER;
    uint64_t theirs = azc_ring_index_of_peer(ring);
    uint64_t used = sends ? ring->index - theirs : theirs - ring->index;
    *stats = (azc_shm_stats){
        .capacity = ring->capacity,
        .used = used < ring->capacity ? used : ring->capacity,
        .held = shm->count,
        .records = shm->records,
        .bytes = shm->bytes,
        .waits = shm->waits,
        .rings = ring->calls,
        .fault = ring->fault,
        .gone = ring->is_gone,
        .left = azc_ring_has_left(ring),
        .role = ring->role,
        .bell = ring->bell,
        .socket = ring->socket,
    };
    return leave(id, 0);
}

static void say_goodbye(azc_shm *shm, bool is_clean) {
    if (shm->has_left) return;
    shm->has_left = true;
    if (is_clean && !shm->ring.fault) azc_ring_leave(&shm->ring);
    azc_ring_hang_up(&shm->ring);
}

int azc_shm_leave(azc_id id, int clean) {
    azc_shm *shm = locked(id);
    if (!shm) return azc__handle_why(&azc__rings, id);
    say_goodbye(shm, clean);
    return leave(id, 0);
}

int azc_shm_close(azc_id id) {
    azc_shm *shm = locked(id);
    if (!shm) return azc__handle_why(&azc__rings, id);
    say_goodbye(shm, false);
    azc_ring_drop(&shm->ring);
    return leave(id, 0);
}

int azc_shm_free(azc_id id) {
    azc_shm *shm = locked(id);
    if (!shm) return azc__handle_why(&azc__rings, id);
    azc__handle_drop(&azc__rings, id);
    if (shm->is_offered) azc_ring_withdraw(&shm->ring);
    say_goodbye(shm, false);
    azc_ring_drop(&shm->ring);
    azc_ring_unmap(&shm->ring);
    azc_sys.release(shm->holds);
    azc_sys.release(shm);
    return 0;
}

void azc__ring_fork_child(void *ring) { azc_ring_drop(&((azc_shm *)ring)->ring); }
