/* The C sides of bench ring, called through ctypes: producers and echoes, by a ring of
 * ours, by fds, and by Tachyon, whose functions the caller looks up.  Each returns 0 or
 * -errno; a negative number of its own where Tachyon says no more. */
#define _GNU_SOURCE
#include <sched.h>

#include "azc_ring.h"

enum { FOREVER = -1, SPINS = 10000 /* Tachyon's default */ };

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int write_all(int fd, const char *data, size_t n) {
    while (n) {
        ssize_t written = write(fd, data, n);
        if (written < 0 && errno != EINTR) return -errno;
        if (written > 0) data += written, n -= (size_t)written;
    }
    return 0;
}

static int read_all(int fd, char *data, size_t n) {
    while (n) {
        ssize_t got = read(fd, data, n);
        if (got < 0 && errno != EINTR) return -errno;
        if (got == 0) return -EPIPE;
        if (got > 0) data += got, n -= (size_t)got;
    }
    return 0;
}

/* ---- producing: `count` messages, of a pattern of `buffers` ------------------ */

int produce_ring(const char *path, const char *pattern, size_t size,
                 size_t buffers, size_t count) {
    azc_ring ring;
    int r = azc_ring_connect(&ring, path, AZC_RING_PRODUCER);
    if (r < 0) return r;
    for (size_t i = 0; i < count && r == 0; i++)
        r = azc_ring_send(&ring, pattern + i % buffers * size, size, 1,
                          FOREVER);
    azc_ring_close(&ring);
    return r;
}

/* As many at once as the pattern has. */
int produce_fd(int fd, const char *pattern, size_t size, size_t buffers,
               size_t count) {
    int r = 0;
    for (size_t n; count && r == 0; count -= n) {
        n = count < buffers ? count : buffers;
        r = write_all(fd, pattern, n * size);
    }
    return r;
}

typedef struct tachyon {
    void *(*acquire_tx)(void *bus, size_t size);
    int (*commit_tx)(void *bus, size_t size, uint32_t type_id);
    void (*flush)(void *bus);
    const void *(*acquire_rx)(void *bus, uint32_t *type_id, size_t *size,
                              uint32_t spins);
    int (*commit_rx)(void *bus);
} tachyon;

static int tachyon_send(const tachyon *it, void *bus, const void *data,
                        size_t size) {
    void *at;
    while (!(at = it->acquire_tx(bus, size))) {
        it->flush(bus);
        sched_yield();
    }
    memcpy(at, data, size);
    return -it->commit_tx(bus, size, 1);
}

int produce_tachyon(const tachyon *it, void *bus, const char *pattern,
                    size_t size, size_t buffers, size_t count) {
    int r = 0;
    for (size_t i = 0; i < count && r == 0; i++)
        r = tachyon_send(it, bus, pattern + i % buffers * size, size);
    it->flush(bus);
    return r;
}

/* ---- round trips: `count` of them; those who ask note how long each took ------ */

/* Looks again and again before it sleeps, if asked to, as Tachyon always does. */
static int receive(azc_ring *ring, azc_ring_record *record, int spins) {
    for (int i = 0; i < spins; i++) {
        int r = azc_ring_take(ring, record);
        if (r != -EAGAIN) return r;
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#endif
    }
    return azc_ring_receive(ring, record, FOREVER);
}

static int pass_ring(azc_ring *from, azc_ring *to, int spins) {
    azc_ring_record record;
    int r = receive(from, &record, spins);
    if (r <= 0) return r < 0 ? r : -EPIPE;
    r = azc_ring_send(to, record.payload, record.size, 1, FOREVER);
    azc_ring_release(from, record.end);
    return r;
}

static int ask_ring(azc_ring *from, azc_ring *to, const char *data, size_t size,
                    int spins) {
    azc_ring_record record;
    int r = azc_ring_send(to, data, size, 1, FOREVER);
    if (r == 0) r = receive(from, &record, spins);
    if (r <= 0) return r < 0 ? r : -EPIPE;
    if (memcmp(record.payload, data, size) != 0) return -EBADMSG;
    return azc_ring_release(from, record.end);
}

/* The one who asks (times is not NULL) listens, the echo connects. */
int trip_ring(const char *there, const char *back, const char *data,
              size_t size, size_t count, uint64_t *times, int spins) {
    azc_ring out, in;
    size_t capacity = 4 * (size + AZC_RING_STEP);
    int r = times ? azc_ring_listen(&out, there, capacity, AZC_RING_PRODUCER)
                  : azc_ring_connect(&in, there, AZC_RING_CONSUMER);
    if (r < 0) return r;
    if (times)
        r = azc_ring_listen(&in, back, capacity, AZC_RING_CONSUMER);
    else
        while ((r = azc_ring_connect(&out, back, AZC_RING_PRODUCER)) ==
                   -ENOENT ||
               r == -ECONNREFUSED)
            sched_yield();
    for (size_t i = 0; i < count && r == 0; i++) {
        uint64_t began = times ? now_ns() : 0;
        r = times ? ask_ring(&in, &out, data, size, spins)
                  : pass_ring(&in, &out, spins);
        if (times) times[i] = now_ns() - began;
    }
    azc_ring_close(&in);
    azc_ring_close(&out);
    return r;
}

int trip_fd(int in, int out, char *data, size_t size, size_t count,
            uint64_t *times) {
    int r = 0;
    for (size_t i = 0; i < count && r == 0; i++) {
        uint64_t began = times ? now_ns() : 0;
        if (times) r = write_all(out, data, size);
        if (r == 0) r = read_all(in, data, size);
        if (r == 0 && !times) r = write_all(out, data, size);
        if (times) times[i] = now_ns() - began;
    }
    return r;
}

static const void *tachyon_next(const tachyon *it, void *bus) {
    uint32_t type_id;
    size_t size;
    const void *at;
    while (!(at = it->acquire_rx(bus, &type_id, &size, SPINS))) {
    }
    return at;
}

int trip_tachyon(const tachyon *it, void *in, void *out, const char *data,
                 size_t size, size_t count, uint64_t *times) {
    int r = 0;
    for (size_t i = 0; i < count && r == 0; i++) {
        uint64_t began = times ? now_ns() : 0;
        if (times) {
            r = tachyon_send(it, out, data, size);
            it->flush(out);
        }
        const void *came = tachyon_next(it, in);
        if (times && memcmp(came, data, size) != 0) r = -EBADMSG;
        if (!times && r == 0) r = tachyon_send(it, out, came, size);
        it->commit_rx(in);
        if (!times) it->flush(out);
        if (times) times[i] = now_ns() - began;
    }
    return r;
}
