/* azc_ring.h - records from one process to another through shared memory.
 *
 * This header is all that a C11 or C++17 program needs (gcc or clang, Linux).  For
 * programs in other languages docs/pages/ring-layout.md describes the layout of the
 * memory and of the messages of the handshake.
 *
 * One side, the producer, writes records; the other, the consumer, reads them in that
 * order.  Each has an azc_ring of its own, which only one thread may use at a time.
 * Every function returns >= 0 or -errno, and never -EINTR.
 *
 * Positions only grow.  The producer's index is the end of what it has committed, the
 * consumer's the end of what it has released.  The bytes between the two belong to the
 * consumer, all others to the producer.  A header contains its record's position plus one,
 * so neither zeros nor a record of an earlier lap can pass for one.  The data is mapped
 * twice, side by side, so that a record which wraps around is still one piece.
 *
 * Sleeping.  A side that finds nothing to do stores the index that it waits for into its
 * wake_at, makes a full fence, looks at the other's index once more, and only then sleeps
 * until its doorbell (an eventfd) rings.  The other stores its index, makes a full fence,
 * and then looks at wake_at.  One of the two fences comes first: so either the sleeper
 * sees the new index, or the other sees wake_at and rings.  It rings once for each
 * wake_at; a side that waits for the same index again finds that it was reached.  Empty
 * the doorbell before looking, never between looking and sleeping.
 *
 * The end.  A side that closes sets `left`, after its last index, and rings.  The socket
 * of the handshake stays open as long as the ring, so its end shows that a peer has died,
 * at whatever instruction.  What was committed before is still received first.
 *
 * What a hostile peer can do.  It maps the same pages for writing and keeps them for as
 * long as it likes (F_SEAL_FUTURE_WRITE would forbid us to map our words, too).  So it
 * may send nonsense, change a record while it is read (copy what you check before you
 * use it), change the words and the records of both sides, punch holes (which read as
 * zeros), and ring for nothing or never.  It cannot make us read or write outside the
 * mapping, shrink the file under us (the seals forbid that), or loop: every word is
 * loaded once into a local, checked, and never loaded again for the same decision.  The
 * first wrong word ends the ring with -EPROTO for our side.  Nor can it make us wait: it
 * shares the open files of the doorbells, and can fill them and clear their O_NONBLOCK,
 * but we read and ring them by calls that never wait.  (Before Linux 5.8, or where
 * io_setup fails, we call poll first; a peer that fills a doorbell and clears O_NONBLOCK
 * between two of our calls can make us wait.  io_setup fails in some sandboxes, and while
 * other processes, perhaps the peer, use up fs.aio-max-nr.  With vm.overcommit_memory=2 a
 * hole that the peer has punched needs memory again: if there is none, that is a SIGBUS.)
 */
#ifndef AZC_RING_H
#define AZC_RING_H
#ifndef _GNU_SOURCE
#error "define _GNU_SOURCE before the first include (memfd_create, struct ucred)"
#endif
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* Tests replace these, to use other memory and to count the rings. */
#ifndef AZC_RING_LOAD
#define AZC_RING_LOAD(at)         __atomic_load_n(at, __ATOMIC_ACQUIRE)
#define AZC_RING_STORE(at, value) __atomic_store_n(at, value, __ATOMIC_RELEASE)
#define AZC_RING_FENCE()          __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define AZC_RING_KNOCK(ring)      azc_ring__knock(ring)
#endif

#define AZC_RING_MAGIC UINT64_C(0x31474e4952435a41) /* "AZCRING1" */
#define AZC_RING_NEVER UINT64_MAX

enum {
    AZC_RING_ABI = 1,
    AZC_RING_STEP = 64,
    AZC_RING_HEADER = 16,        /* bytes before a payload */
    AZC_RING_PAGE_BYTES = 65536, /* a multiple of every machine's page */
    AZC_RING_LEAST = 65536,      /* capacity */
    AZC_RING_MOST_BITS = 40,     /* of a capacity */
    AZC_RING_FDS = 3,            /* the memory, our doorbell, the other's */
    AZC_RING_SLACK_MS = 1,       /* see azc_ring_await_room */
    AZC_RING_CONFIRM_MS = 10000, /* how long the handshake waits for the other */
};

/* Why -EPROTO: azc_ring.fault. */
enum {
    AZC_RING_NO_FAULT = 0,
    AZC_RING_BAD_INDEX = 1,  /* it went back, too far, or is no multiple of 64 */
    AZC_RING_BAD_HEADER = 2, /* no header where a record begins */
    AZC_RING_BAD_LENGTH = 3, /* the record ends after the producer's index */
    AZC_RING_BAD_SOCKET = 4, /* something was sent after the handshake */
};

/* The words of one side, which only that side writes. */
typedef struct azc_ring_side {
    uint64_t index; /* committed, or released, up to here */
    unsigned char unused[120];
    uint64_t wake_at; /* ring once your index is this or more */
    uint32_t left;    /* 1: this side has closed */
    unsigned char unused_too[116];
} azc_ring_side;

typedef struct azc_ring_page {
    uint64_t magic;
    uint32_t abi;
    uint32_t page_bytes;
    uint64_t capacity;
    unsigned char unused[104];
    azc_ring_side producer; /* at byte 128 */
    azc_ring_side consumer; /* at byte 384 */
} azc_ring_page;

typedef struct azc_ring_header {
    uint64_t stamp; /* the record's position plus one */
    uint32_t size;  /* of the payload */
    uint32_t type_id;
} azc_ring_header;

/* A message over the socket: an ask, an offer with the fds, or an answer. */
typedef struct azc_ring_hello {
    uint64_t magic;
    uint32_t abi;
    uint32_t kind;
    uint32_t role;  /* of the side that connects: asked for, or (in an offer) given */
    int32_t status; /* 0, or -errno: why there is no ring */
    uint64_t capacity;
} azc_ring_hello;

enum { AZC_RING_ASK = 1, AZC_RING_OFFER = 2, AZC_RING_ANSWER = 3 };
enum { AZC_RING_ANY = 0, AZC_RING_PRODUCER = 1, AZC_RING_CONSUMER = 2 };

/* What one side knows.  Make it with azc_ring_create or azc_ring_attach. */
typedef struct azc_ring {
    azc_ring_page *page;
    unsigned char *data;
    azc_ring_side *mine, *theirs;
    uint64_t capacity;
    uint64_t index; /* ours, as last published */
    uint64_t seen;  /* the other's, as last read and checked */
    uint64_t next;  /* where the consumer's next record begins */
    uint64_t rung;  /* the wake_at that we have rung for */
    uint64_t calls; /* how often we rang */
    uint32_t reserved;
    int is_reserved;
    int role;
    int fault;                            /* not 0: the ring is over, with -EPROTO */
    int is_gone;                          /* the other side's socket has ended */
    int memory, bell, their_bell, socket; /* fds; -1 if there is none */
} azc_ring;

/* A record that was taken.  It is yours until azc_ring_release(ring, end). */
typedef struct azc_ring_record {
    const void *payload;
    uint32_t size;
    uint32_t type_id;
    uint64_t end; /* where the next one begins */
} azc_ring_record;

/* ---- positions ----------------------------------------------------------- */

/* How many bytes of the ring a record with a payload of this size takes. */
static inline uint64_t azc_ring_stride(uint64_t size) {
    uint64_t step = AZC_RING_STEP;
    return (size + AZC_RING_HEADER + step - 1) / step * step;
}

/* The capacity of a ring for which `wanted` was asked: the next power of two.  0: too
 * much. */
static inline uint64_t azc_ring_capacity(uint64_t wanted) {
    uint64_t capacity = AZC_RING_LEAST;
    while (capacity < wanted && capacity >> AZC_RING_MOST_BITS == 0) capacity <<= 1;
    return capacity >> AZC_RING_MOST_BITS ? 0 : capacity;
}

/* The largest payload of one record. */
static inline uint64_t azc_ring_largest(const azc_ring *ring) {
    uint64_t most = ring->capacity - AZC_RING_HEADER;
    return most < UINT32_MAX ? most : UINT32_MAX;
}

static inline unsigned char *azc_ring__payload(const azc_ring *ring,
                                               uint64_t position) {
    return ring->data + (position & (ring->capacity - 1)) + AZC_RING_STEP;
}

static inline azc_ring_header *azc_ring__header(const azc_ring *ring,
                                                uint64_t position) {
    void *header = azc_ring__payload(ring, position) - AZC_RING_HEADER;
    return (azc_ring_header *)header;
}

static inline int azc_ring__fault(azc_ring *ring, int fault) {
    ring->fault = fault;
    return -EPROTO;
}

/* Reads the other's index, which may be anything. */
static inline int azc_ring__look(azc_ring *ring) {
    uint64_t at = AZC_RING_LOAD(&ring->theirs->index);
    uint64_t most = ring->index;
    if (ring->role == AZC_RING_CONSUMER) most += ring->capacity;
    if (at < ring->seen || at > most || at % AZC_RING_STEP)
        return azc_ring__fault(ring, AZC_RING_BAD_INDEX);
    ring->seen = at;
    return 0;
}

/* The other's index now, unchecked: only to see whether it has changed. */
static inline uint64_t azc_ring_index_of_peer(const azc_ring *ring) {
    return AZC_RING_LOAD(&ring->theirs->index);
}

/* Has the other side closed? */
static inline int azc_ring_has_left(const azc_ring *ring) {
    return AZC_RING_LOAD(&ring->theirs->left) != 0;
}

/* ---- the doorbell -------------------------------------------------------- */

static inline int azc_ring__is_ready(int fd, short events) {
    struct pollfd it = {fd, events, 0};
    return poll(&it, 1, 0) > 0;
}

/* Submits the request, without waiting; 0 if the kernel took it.  The context belongs to
 * one process: in a forked child the parent's gives EINVAL, and the child makes its own. */
static inline int azc_ring__submit(struct iocb *request) {
    static aio_context_t shared;
    const aio_context_t never = 1; /* the kernel does not know such requests */
    aio_context_t known = __atomic_load_n(&shared, __ATOMIC_ACQUIRE), own = 0;
    struct io_event over[64];
    struct timespec now = {0, 0};
    if (known == never) return -1;
    if (known && syscall(SYS_io_submit, known, 1L, &request) == 1) return 0;
    if (known && errno == EAGAIN) { /* full of finished requests */
        syscall(SYS_io_getevents, known, 0L, 64L, over, &now);
        return syscall(SYS_io_submit, known, 1L, &request) == 1 ? 0 : -1;
    }
    if ((known && errno != EINVAL) || syscall(SYS_io_setup, 64L, &own) < 0) return -1;
    int is_taken = syscall(SYS_io_submit, own, 1L, &request) == 1;
    aio_context_t next = is_taken || errno != EINVAL ? own : never;
    int is_kept = __atomic_compare_exchange_n(&shared, &known, next, 0,
                                              __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    if (!is_kept || next == never) syscall(SYS_io_destroy, own);
    return is_taken ? 0 : -1;
}

/* Adds one to the other's doorbell.  write() could wait, and an eventfd has RWF_NOWAIT
 * for reads only; but the end of an asynchronous request adds one and never waits.  This
 * request ends when the bell can be read or written, which it always can. */
static inline void azc_ring__knock(azc_ring *ring) {
    uint32_t bell = (uint32_t)ring->their_bell;
    uint64_t one = 1;
    struct iocb request;
    memset(&request, 0, sizeof request);
    request.aio_lio_opcode = IOCB_CMD_POLL;
    request.aio_fildes = request.aio_resfd = bell;
    request.aio_buf = POLLIN | POLLOUT;
    request.aio_flags = IOCB_FLAG_RESFD;
    if (azc_ring__submit(&request) == 0) return;
    while (azc_ring__is_ready(ring->their_bell, POLLOUT) &&
           write(ring->their_bell, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

/* Publishes our index, and rings if the other sleeps until it. */
static inline void azc_ring__publish(azc_ring *ring, uint64_t index) {
    ring->index = index;
    AZC_RING_STORE(&ring->mine->index, index);
    AZC_RING_FENCE();
    uint64_t wake_at = AZC_RING_LOAD(&ring->theirs->wake_at);
    if (index < wake_at || wake_at == ring->rung) return;
    ring->rung = wake_at;
    ring->calls++;
    AZC_RING_KNOCK(ring);
}

/* 0: you may sleep until the bell rings; 1: look again, do not sleep. */
static inline int azc_ring__arm(azc_ring *ring, uint64_t wake_at) {
    AZC_RING_STORE(&ring->mine->wake_at, wake_at);
    AZC_RING_FENCE();
    int r = azc_ring__look(ring);
    if (r < 0) return r;
    return ring->seen >= wake_at || azc_ring_has_left(ring);
}

/* ---- the producer -------------------------------------------------------- */

/* Reserves room for a record of `size` bytes, to be filled in and committed.
 *   -EAGAIN   the ring is full          -EMSGSIZE  see azc_ring_largest
 *   -EPIPE    the consumer has closed, or azc_ring_is_gone has found it dead
 *   -EPROTO   the peer broke the rules  -EBUSY     one is reserved already */
static inline int azc_ring_reserve(azc_ring *ring, uint64_t size, void **payload) {
    if (ring->fault) return -EPROTO;
    if (ring->is_reserved) return -EBUSY;
    if (size > azc_ring_largest(ring)) return -EMSGSIZE;
    if (ring->is_gone || azc_ring_has_left(ring)) return -EPIPE;
    uint64_t end = ring->index + azc_ring_stride(size);
    if (end - ring->seen > ring->capacity) {
        int r = azc_ring__look(ring);
        if (r < 0) return r;
        if (end - ring->seen > ring->capacity) return -EAGAIN;
    }
    ring->is_reserved = 1;
    ring->reserved = (uint32_t)size;
    *payload = azc_ring__payload(ring, ring->index);
    return 0;
}

/* Gives the first `size` bytes of the reserved room to the consumer, as a record.
 *   -EINVAL   nothing, or less, was reserved */
static inline int azc_ring_commit(azc_ring *ring, uint64_t size, uint32_t type_id) {
    if (!ring->is_reserved || size > ring->reserved) return -EINVAL;
    azc_ring_header *header = azc_ring__header(ring, ring->index);
    AZC_RING_STORE(&header->stamp, ring->index + 1);
    AZC_RING_STORE(&header->size, (uint32_t)size);
    AZC_RING_STORE(&header->type_id, type_id);
    ring->is_reserved = 0;
    azc_ring__publish(ring, ring->index + azc_ring_stride(size));
    return 0;
}

/* Gives the reserved room up. */
static inline void azc_ring_rollback(azc_ring *ring) { ring->is_reserved = 0; }

/* Arms the doorbell for room for `size` bytes, and for `slack` more in the ring; returns
 * as azc_ring__arm.  With slack a consumer that releases one record after the other need
 * not ring for each.  But it may hold records and release no more: so with slack sleep
 * for AZC_RING_SLACK_MS only, and then arm the doorbell again without. */
static inline int azc_ring_await_room(azc_ring *ring, uint64_t size, uint64_t slack) {
    if (ring->fault) return -EPROTO;
    uint64_t stride = azc_ring_stride(size);
    if (slack > ring->capacity - stride) slack = ring->capacity - stride;
    return azc_ring__arm(ring, ring->index + stride + slack - ring->capacity);
}

/* The default for `slack`. */
static inline uint64_t azc_ring_slack(const azc_ring *ring) {
    return ring->capacity / 8;
}

/* ---- the consumer -------------------------------------------------------- */

/* Takes the next record.
 *   1         it was taken             0        no more will come: the end
 *   -EAGAIN   the ring is empty        -EPROTO  the peer broke the rules */
static inline int azc_ring_take(azc_ring *ring, azc_ring_record *record) {
    if (ring->fault) return -EPROTO;
    if (ring->next == ring->seen) {
        /* (`left` first: it is set after the last index) */
        int has_left = azc_ring_has_left(ring), r = azc_ring__look(ring);
        if (r < 0) return r;
        if (ring->next == ring->seen) return has_left ? 0 : -EAGAIN;
    }
    azc_ring_header *header = azc_ring__header(ring, ring->next);
    uint64_t stamp = AZC_RING_LOAD(&header->stamp);
    uint32_t size = AZC_RING_LOAD(&header->size);
    if (stamp != ring->next + 1) return azc_ring__fault(ring, AZC_RING_BAD_HEADER);
    if (azc_ring_stride(size) > ring->seen - ring->next)
        return azc_ring__fault(ring, AZC_RING_BAD_LENGTH);
    record->payload = azc_ring__payload(ring, ring->next);
    record->size = size;
    record->type_id = AZC_RING_LOAD(&header->type_id);
    record->end = ring->next += azc_ring_stride(size);
    return 1;
}

/* Gives all records that end at `end` or before back to the producer.
 *   -EINVAL   they were given back before, or never taken */
static inline int azc_ring_release(azc_ring *ring, uint64_t end) {
    if (end <= ring->index || end > ring->next) return -EINVAL;
    azc_ring__publish(ring, end);
    return 0;
}

/* Arms the doorbell for the next record; returns as azc_ring__arm. */
static inline int azc_ring_await_record(azc_ring *ring) {
    if (ring->fault) return -EPROTO;
    return azc_ring__arm(ring, ring->next + AZC_RING_STEP);
}

/* ---- waiting, for a program that may block -------------------------------- */

/* Empties our doorbell, if it rings.  Look again after it, and only then sleep.  (By
 * number: musl has no preadv2 and no RWF_NOWAIT before 1.2.5.) */
static inline void azc_ring_clear(azc_ring *ring) {
    const int nowait = 8; /* RWF_NOWAIT */
    uint64_t count;
    struct iovec into = {&count, sizeof count};
    ssize_t n;
    do n = syscall(SYS_preadv2, ring->bell, &into, 1L, -1L, -1L, nowait);
    while (n < 0 && errno == EINTR);
    if (n >= 0 || errno == EAGAIN) return;
    while (azc_ring__is_ready(ring->bell, POLLIN) &&
           read(ring->bell, &count, sizeof count) < 0 && errno == EINTR) {
    }
}

/* Has the other side's socket ended?  Then the ring is broken once it is empty.
 *   -EPROTO   something was sent there */
static inline int azc_ring_is_gone(azc_ring *ring) {
    char byte;
    ssize_t n;
    if (ring->is_gone) return 1;
    do n = recv(ring->socket, &byte, 1, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n > 0) return azc_ring__fault(ring, AZC_RING_BAD_SOCKET);
    return ring->is_gone = n == 0 || errno != EAGAIN;
}

static inline int64_t azc_ring__now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Sleeps until one of the fds is ready; with a deadline of 0 for ever. */
static inline int azc_ring__poll(struct pollfd *fds, nfds_t n, int64_t deadline) {
    for (;;) {
        int64_t left = deadline ? deadline - azc_ring__now_ms() : -1;
        if (deadline && left < 0) left = 0;
        int r = poll(fds, n, left > INT32_MAX ? INT32_MAX : (int)left);
        if (r > 0) return 0;
        if (r == 0 && deadline && azc_ring__now_ms() >= deadline) return -ETIMEDOUT;
        if (r < 0 && errno != EINTR) return -errno;
    }
}

/* Sleeps until the doorbell rings, the peer is gone, or the deadline. */
static inline int azc_ring_sleep(azc_ring *ring, int64_t deadline) {
    struct pollfd fds[2] = {{ring->bell, POLLIN, 0}, {ring->socket, POLLIN, 0}};
    int r = azc_ring__poll(fds, 2, deadline);
    if (r < 0) return r;
    if (fds[0].revents) azc_ring_clear(ring);
    if (!fds[1].revents) return 0;
    r = azc_ring_is_gone(ring);
    return r < 0 ? r : 0;
}

static inline int64_t azc_ring__deadline(int timeout_ms) {
    return timeout_ms < 0 ? 0 : azc_ring__now_ms() + timeout_ms;
}

/* Reserves, and waits for room; with a negative timeout for ever.
 *   -ETIMEDOUT, -EPIPE (the consumer is gone), and as azc_ring_reserve */
static inline int azc_ring_reserve_wait(azc_ring *ring, uint64_t size, void **payload,
                                        int timeout_ms) {
    int64_t deadline = azc_ring__deadline(timeout_ms);
    uint64_t slack = azc_ring_slack(ring);
    for (;;) {
        int r = azc_ring_reserve(ring, size, payload);
        if (r != -EAGAIN) return r;
        int64_t soon = azc_ring__deadline(AZC_RING_SLACK_MS);
        if (!slack || (deadline && deadline < soon)) soon = deadline;
        r = azc_ring_await_room(ring, size, slack);
        if (r == 0) r = azc_ring_sleep(ring, soon);
        if (r == -ETIMEDOUT && soon != deadline) r = 0;
        if (r < 0) return r;
        slack = 0;
    }
}

/* Sends one record: copies it into the ring. */
static inline int azc_ring_send(azc_ring *ring, const void *data, uint64_t size,
                                uint32_t type_id, int timeout_ms) {
    void *payload = NULL;
    int r = azc_ring_reserve_wait(ring, size, &payload, timeout_ms);
    if (r < 0) return r;
    if (size) memcpy(payload, data, (size_t)size);
    return azc_ring_commit(ring, size, type_id);
}

/* Takes the next record, and waits for it; with a negative timeout for ever.
 *   -EPIPE   the producer died, and all that it had committed was taken
 *   -ETIMEDOUT, and as azc_ring_take */
static inline int azc_ring_receive(azc_ring *ring, azc_ring_record *record,
                                   int timeout_ms) {
    int64_t deadline = azc_ring__deadline(timeout_ms);
    for (;;) {
        int was_gone = ring->is_gone;
        int r = azc_ring_take(ring, record);
        if (r != -EAGAIN) return r;
        if (was_gone) return -EPIPE;
        r = azc_ring_await_record(ring);
        if (r == 0) r = azc_ring_sleep(ring, deadline);
        if (r < 0) return r;
    }
}

/* ---- memory -------------------------------------------------------------- */

static inline void azc_ring__empty(azc_ring *ring, int role, uint64_t capacity) {
    memset(ring, 0, sizeof *ring);
    ring->role = role;
    ring->capacity = capacity;
    ring->memory = ring->bell = ring->their_bell = ring->socket = -1;
}

/* Finds both sides in the mapped page. */
static inline void azc_ring__sit_down(azc_ring *ring) {
    azc_ring_page *page = ring->page;
    int sends = ring->role == AZC_RING_PRODUCER;
    ring->mine = sends ? &page->producer : &page->consumer;
    ring->theirs = sends ? &page->consumer : &page->producer;
}

static inline size_t azc_ring__mapped(const azc_ring *ring) {
    return AZC_RING_PAGE_BYTES + 2 * (size_t)ring->capacity;
}

/* Why mmap failed: never -EAGAIN (too much memory is locked), which is for the socket. */
static inline int azc_ring__unmapped(void) {
    return errno == EAGAIN ? -ENOMEM : -errno;
}

static inline int azc_ring__map(azc_ring *ring) {
    size_t n = (size_t)ring->capacity;
    int may = PROT_READ;
    if (ring->role == AZC_RING_PRODUCER) may |= PROT_WRITE;
    void *all = mmap(NULL, azc_ring__mapped(ring), PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return azc_ring__unmapped();
    ring->page = (azc_ring_page *)all;
    ring->data = (unsigned char *)all + AZC_RING_PAGE_BYTES;
    int how = MAP_SHARED | MAP_FIXED, fd = ring->memory;
    if (mmap(all, AZC_RING_PAGE_BYTES, PROT_READ | PROT_WRITE, how, fd, 0) ==
            MAP_FAILED ||
        mmap(ring->data, n, may, how, fd, AZC_RING_PAGE_BYTES) == MAP_FAILED ||
        mmap(ring->data + n, n, may, how, fd, AZC_RING_PAGE_BYTES) == MAP_FAILED)
        return azc_ring__unmapped();
    azc_ring__sit_down(ring);
    return 0;
}

/* Gives the memory back: no view of a record may be used any more. */
static inline void azc_ring_unmap(azc_ring *ring) {
    if (ring->page) munmap(ring->page, azc_ring__mapped(ring));
    ring->page = NULL;
}

static inline void azc_ring__close_fd(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* Closes the fds.  To the peer we have died, unless azc_ring_leave was called. */
static inline void azc_ring_drop(azc_ring *ring) {
    azc_ring__close_fd(&ring->memory);
    azc_ring__close_fd(&ring->bell);
    azc_ring__close_fd(&ring->their_bell);
    azc_ring__close_fd(&ring->socket);
}

/* Tells the other side that we close the ring, so that it does not take us for dead. */
static inline void azc_ring_leave(azc_ring *ring) {
    AZC_RING_STORE(&ring->mine->left, 1);
    AZC_RING_FENCE();
    AZC_RING_KNOCK(ring);
}

/* Ends our side of the socket; the fds stay open. */
static inline void azc_ring_hang_up(azc_ring *ring) {
    if (ring->socket >= 0) shutdown(ring->socket, SHUT_RDWR);
}

/* Leaves the ring, closes its fds and unmaps its memory. */
static inline void azc_ring_close(azc_ring *ring) {
    if (ring->page && ring->their_bell >= 0) azc_ring_leave(ring);
    azc_ring_drop(ring);
    azc_ring_unmap(ring);
}

enum { AZC_RING_SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

/* Sets the file's size, and allocates all of its memory now: if there were none later, a
 * store would kill the process. */
static inline int azc_ring__allocate(int fd, uint64_t bytes) {
    struct rlimit limit;
    uint64_t pages = (uint64_t)sysconf(_SC_PHYS_PAGES);
    int r;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur)
        return -EFBIG; /* (ftruncate would raise SIGXFSZ) */
    if (bytes / (uint64_t)sysconf(_SC_PAGESIZE) >= pages) return -ENOMEM;
    if (ftruncate(fd, (off_t)bytes) < 0) return -errno;
    do r = fallocate(fd, 0, 0, (off_t)bytes);
    while (r < 0 && errno == EINTR);
    if (r < 0) return errno == ENOSPC ? -ENOMEM : -errno;
    return fcntl(fd, F_ADD_SEALS, AZC_RING_SEALS) < 0 ? -errno : 0;
}

/* Frees the memory of an offer that was not taken: the visitor may still have its fds,
 * which would keep the memory. */
static inline void azc_ring_withdraw(const azc_ring *ring) {
    int how = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    off_t bytes = (off_t)(AZC_RING_PAGE_BYTES + ring->capacity);
    while (fallocate(ring->memory, how, 0, bytes) < 0 && errno == EINTR) {
    }
}

static inline int azc_ring__make(azc_ring *ring) {
    ring->memory = memfd_create("azc_ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ring->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ring->their_bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (ring->memory < 0 || ring->bell < 0 || ring->their_bell < 0) return -errno;
    int r = azc_ring__allocate(ring->memory, AZC_RING_PAGE_BYTES + ring->capacity);
    if (r == 0) r = azc_ring__map(ring);
    if (r < 0) return r;
    ring->page->magic = AZC_RING_MAGIC;
    ring->page->abi = AZC_RING_ABI;
    ring->page->page_bytes = AZC_RING_PAGE_BYTES;
    ring->page->capacity = ring->capacity;
    ring->page->producer.wake_at = AZC_RING_NEVER;
    ring->page->consumer.wake_at = AZC_RING_NEVER;
    return 0;
}

/* Makes a new ring, of the capacity azc_ring_capacity(wanted), and our side of it, whose
 * role is AZC_RING_PRODUCER or AZC_RING_CONSUMER.
 *   -EFBIG   too much for any ring, or for RLIMIT_FSIZE
 *   -ENOMEM  too much for this machine            -EMFILE and others, as usual */
static inline int azc_ring_create(azc_ring *ring, uint64_t wanted, int role) {
    azc_ring__empty(ring, role, azc_ring_capacity(wanted));
    if (!ring->capacity) return -EFBIG;
    int r = azc_ring__make(ring);
    if (r < 0) {
        azc_ring_drop(ring);
        azc_ring_unmap(ring);
    }
    return r;
}

static inline int azc_ring__is_bell(int fd) {
    struct stat st;
    return fstat(fd, &st) == 0 && (st.st_mode & S_IFMT) == 0 &&
           fcntl(fd, F_GETFL) & O_NONBLOCK;
}

static inline int azc_ring__check(const azc_ring *ring) {
    struct stat st;
    int seals = fcntl(ring->memory, F_GET_SEALS);
    if (seals < 0 || (seals & AZC_RING_SEALS) != AZC_RING_SEALS) return -EPERM;
    if (fstat(ring->memory, &st) < 0) return -errno;
    if ((uint64_t)st.st_size != AZC_RING_PAGE_BYTES + ring->capacity) return -EPROTO;
    if (!azc_ring__is_bell(ring->bell) || !azc_ring__is_bell(ring->their_bell))
        return -EPROTO;
    return 0;
}

/* Makes our side of a ring that the other side has made.  The fds (the memory, our
 * doorbell, the other's) belong to the ring from here on, and are closed if this fails.
 *   -EPERM   the memory is not sealed     -EPROTO  it is not as promised */
static inline int azc_ring_attach(azc_ring *ring, uint64_t capacity, int role,
                                  const int fds[AZC_RING_FDS]) {
    azc_ring__empty(ring, role, capacity);
    ring->memory = fds[0];
    ring->bell = fds[1];
    ring->their_bell = fds[2];
    int r = -EPROTO;
    if (capacity && capacity == azc_ring_capacity(capacity) &&
        (role == AZC_RING_PRODUCER || role == AZC_RING_CONSUMER))
        r = azc_ring__check(ring);
    if (r == 0) r = azc_ring__map(ring);
    if (r == 0 &&
        (ring->page->magic != AZC_RING_MAGIC || ring->page->abi != AZC_RING_ABI ||
         ring->page->page_bytes != AZC_RING_PAGE_BYTES ||
         ring->page->capacity != capacity))
        r = -EPROTO;
    if (r < 0) {
        azc_ring_drop(ring);
        azc_ring_unmap(ring);
    }
    return r;
}

/* ---- the handshake --------------------------------------------------------
 *
 * Over a connected SOCK_SEQPACKET socket of AF_UNIX, one message each:
 *   the client     asks for a role, or for any
 *   the listener   offers the ring with its fds, or says why not
 *   the client     answers that it has checked and mapped it, or why not
 * On a non-blocking socket these functions return -EAGAIN: try again later.
 */

static inline int azc_ring__say(int socket, int kind, int role, int status,
                                const azc_ring *ring) {
    azc_ring_hello hello;
    struct iovec vec = {&hello, sizeof hello};
    struct msghdr message;
    union {
        struct cmsghdr header; /* (aligns the room) */
        char room[CMSG_SPACE(AZC_RING_FDS * sizeof(int))];
    } control;
    ssize_t n;
    memset(&hello, 0, sizeof hello);
    memset(&message, 0, sizeof message);
    memset(&control, 0, sizeof control);
    hello.magic = AZC_RING_MAGIC;
    hello.abi = AZC_RING_ABI;
    hello.kind = (uint32_t)kind;
    hello.role = (uint32_t)role;
    hello.status = status;
    message.msg_iov = &vec;
    message.msg_iovlen = 1;
    if (ring) {
        int fds[AZC_RING_FDS] = {ring->memory, ring->their_bell, ring->bell};
        hello.capacity = ring->capacity;
        message.msg_control = control.room;
        message.msg_controllen = sizeof control.room;
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof fds);
        memcpy(CMSG_DATA(&control.header), fds, sizeof fds);
    }
    do n = sendmsg(socket, &message, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : 0;
}

/* Takes the fds out of a message; -EPROTO if there are too many, or they were cut off. */
static inline int azc_ring__fds(struct msghdr *message, int *fds, int most) {
    int count = 0, r = message->msg_flags & MSG_CTRUNC ? -EPROTO : 0;
    struct cmsghdr *each = CMSG_FIRSTHDR(message);
    for (; each; each = CMSG_NXTHDR(message, each)) {
        if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
        size_t n = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(each) + i * sizeof fd, sizeof fd);
            if (count < most)
                fds[count++] = fd;
            else {
                close(fd);
                r = -EPROTO;
            }
        }
    }
    if (r == 0 && count != most && count != 0) r = -EPROTO;
    while (r < 0 && count > 0) close(fds[--count]);
    return r < 0 ? r : count;
}

/* Receives a message; returns how many fds came: `most`, or none. */
static inline int azc_ring__hear(int socket, azc_ring_hello *hello, int kind, int *fds,
                                 int most) {
    struct iovec vec = {hello, sizeof *hello};
    struct msghdr message;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(8 * sizeof(int))]; /* (more than any message has) */
    } control;
    ssize_t n;
    memset(&message, 0, sizeof message);
    message.msg_iov = &vec;
    message.msg_iovlen = 1;
    message.msg_control = control.room;
    message.msg_controllen = sizeof control.room;
    do n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0) return -errno;
    int count = azc_ring__fds(&message, fds, most), r = count;
    if (r < 0) return r;
    if (n == 0)
        r = -ECONNRESET;
    else if (n != sizeof *hello || message.msg_flags & MSG_TRUNC ||
             hello->magic != AZC_RING_MAGIC || (int)hello->kind != kind)
        r = -EPROTO;
    else if (hello->abi != AZC_RING_ABI)
        r = -EPROTONOSUPPORT;
    else if (hello->status != 0)
        r = hello->status < 0 ? hello->status : -EPROTO;
    while (r < 0 && count > 0) close(fds[--count]);
    return r;
}

/* Client: asks for a role. */
static inline int azc_ring_ask(int socket, int role) {
    return azc_ring__say(socket, AZC_RING_ASK, role, 0, NULL);
}

/* Listener: reads the request; *role is what the client wants to be.
 *   -EPROTONOSUPPORT   it has another ABI version; say so with azc_ring_refuse */
static inline int azc_ring_hear_ask(int socket, int *role) {
    azc_ring_hello hello;
    int r = azc_ring__hear(socket, &hello, AZC_RING_ASK, NULL, 0);
    if (r < 0) return r;
    *role = (int)hello.role;
    return hello.role <= AZC_RING_CONSUMER ? 0 : -EPROTO;
}

/* Listener: offers the ring that it has made. */
static inline int azc_ring_offer(int socket, const azc_ring *ring) {
    int role = AZC_RING_PRODUCER + AZC_RING_CONSUMER - ring->role;
    return azc_ring__say(socket, AZC_RING_OFFER, role, 0, ring);
}

/* Listener: says why there is no ring; status is -errno. */
static inline int azc_ring_refuse(int socket, int status) {
    return azc_ring__say(socket, AZC_RING_OFFER, 0, status, NULL);
}

/* Client: takes the offer.  The socket stays the caller's.
 *   -EPROTO, -EPERM   as azc_ring_attach; others: why the listener refused */
static inline int azc_ring_hear_offer(int socket, azc_ring *ring) {
    azc_ring_hello hello;
    int fds[AZC_RING_FDS];
    azc_ring__empty(ring, 0, 0);
    int r = azc_ring__hear(socket, &hello, AZC_RING_OFFER, fds, AZC_RING_FDS);
    if (r < 0) return r;
    if (r != AZC_RING_FDS) return -EPROTO;
    return azc_ring_attach(ring, hello.capacity, (int)hello.role, fds);
}

/* Client: answers, with 0 or with -errno. */
static inline int azc_ring_answer(int socket, int status) {
    return azc_ring__say(socket, AZC_RING_ANSWER, 0, status, NULL);
}

/* Listener: reads the answer.  After it both sides call azc_ring_watch. */
static inline int azc_ring_hear_answer(int socket) {
    azc_ring_hello hello;
    return azc_ring__hear(socket, &hello, AZC_RING_ANSWER, NULL, 0);
}

/* Keeps a duplicate of the socket, which ends when the other side dies. */
static inline int azc_ring_watch(azc_ring *ring, int socket) {
    ring->socket = fcntl(socket, F_DUPFD_CLOEXEC, 0);
    return ring->socket < 0 ? -errno : 0;
}

/* 0: the other process belongs to our user.  -EACCES: it does not. */
static inline int azc_ring_check_user(int socket) {
    struct ucred peer;
    socklen_t n = sizeof peer;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0) return -errno;
    return peer.uid == geteuid() ? 0 : -EACCES;
}

/* ---- the handshake, for a program that may block ---------------------------- */

static inline int azc_ring__address(struct sockaddr_un *address, const char *path) {
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    if (strlen(path) >= sizeof address->sun_path) return -ENAMETOOLONG;
    memcpy(address->sun_path, path, strlen(path));
    return 0;
}

static inline int azc_ring__readable(int socket, int64_t deadline) {
    struct pollfd fd = {socket, POLLIN, 0};
    return azc_ring__poll(&fd, 1, deadline);
}

static inline int azc_ring__welcome(azc_ring *ring, int socket, int wanted,
                                    uint64_t capacity) {
    int64_t deadline = azc_ring__deadline(AZC_RING_CONFIRM_MS);
    int role = 0, r = azc_ring_check_user(socket);
    if (r == 0) r = azc_ring__readable(socket, deadline);
    if (r == 0) r = azc_ring_hear_ask(socket, &role);
    if (r == 0 && role == wanted) r = -EADDRINUSE;
    if (r == 0) r = azc_ring_create(ring, capacity, wanted);
    if (r < 0) {
        azc_ring_refuse(socket, r);
        return r;
    }
    r = azc_ring_offer(socket, ring);
    if (r == 0) r = azc_ring__readable(socket, deadline);
    if (r == 0) r = azc_ring_hear_answer(socket);
    if (r == 0) r = azc_ring_watch(ring, socket);
    if (r < 0) {
        azc_ring_withdraw(ring);
        azc_ring_close(ring);
    }
    return r;
}

/* Listens at a path until the handshake with a client succeeds.  If one fails, it
 * listens on, except after -EFBIG, -ENOMEM or -EMFILE.  The caller must remove a file
 * that is already there.
 *   -EADDRINUSE   there is such a file;  others, as usual */
static inline int azc_ring_listen(azc_ring *ring, const char *path, uint64_t capacity,
                                  int role) {
    struct sockaddr_un address;
    int r = azc_ring__address(&address, path);
    if (r < 0) return r;
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (listener < 0) return -errno;
    if (bind(listener, (struct sockaddr *)&address, sizeof address) < 0) {
        r = -errno;
        close(listener);
        return r;
    }
    r = chmod(path, 0600) < 0 || listen(listener, 1) < 0 ? -errno : 0;
    while (r == 0) {
        int other = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (other < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (other < 0) {
            r = -errno;
            break;
        }
        r = azc_ring__welcome(ring, other, role, capacity);
        close(other);
        if (r == 0) break;
        if (r != -EFBIG && r != -ENOMEM && r != -EMFILE) r = 0;
    }
    unlink(path);
    close(listener);
    return r;
}

/* Connects to a ring.  role: what we want to be, or AZC_RING_ANY. */
static inline int azc_ring_connect(azc_ring *ring, const char *path, int role) {
    struct sockaddr_un address;
    int64_t deadline = azc_ring__deadline(AZC_RING_CONFIRM_MS);
    int r = azc_ring__address(&address, path);
    if (r < 0) return r;
    int other = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (other < 0) return -errno;
    if (connect(other, (struct sockaddr *)&address, sizeof address) < 0) r = -errno;
    if (r == 0) r = azc_ring_check_user(other);
    if (r == 0) r = azc_ring_ask(other, role);
    if (r == -EPIPE) r = 0; /* it has refused us already, and its offer says why */
    if (r == 0) r = azc_ring__readable(other, deadline);
    if (r == 0) {
        r = azc_ring_hear_offer(other, ring);
        int answered = azc_ring_answer(other, r), usable = r == 0;
        if (r == 0) r = answered;
        if (r == 0) r = azc_ring_watch(ring, other);
        if (r < 0 && usable) azc_ring_close(ring);
    }
    close(other);
    return r;
}

#endif
