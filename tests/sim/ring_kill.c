/* ring_kill.c - one side of a ring, which tests/shm/test_ring_failures.py kills.
 *
 * Usage: ring_kill PATH producer|consumer
 */
#include <stdio.h>

#include "azc_ring.h"

enum { PATIENCE_MS = 20000 };

static uint64_t count_of(uint64_t n) { return 1 + n * 7919 % 500; }

static int produce(azc_ring *ring) {
    for (uint64_t n = 1;; n++) {
        void *payload = NULL;
        uint64_t count = count_of(n);
        int r = azc_ring_reserve_wait(ring, count * 8, &payload, PATIENCE_MS);
        if (r < 0) return r;
        for (uint64_t i = 0; i < count; i++) ((uint64_t *)payload)[i] = n;
        r = azc_ring_commit(ring, count * 8, (uint32_t)n);
        if (r < 0) return r;
    }
}

static int consume(azc_ring *ring) {
    azc_ring_record record;
    for (uint64_t n = 1;; n++) {
        int r = azc_ring_receive(ring, &record, PATIENCE_MS);
        if (r <= 0) return r;
        if (record.size != count_of(n) * 8 || record.type_id != n) return -EIO;
        r = azc_ring_release(ring, record.end);
        if (r < 0) return r;
    }
}

int main(int argc, char **argv) {
    azc_ring ring;
    int r;
    if (argc != 3) return 2;
    do r = azc_ring_connect(&ring, argv[1], AZC_RING_ANY);
    while (r == -ENOENT || r == -ECONNREFUSED);
    if (r == 0) r = argv[2][0] == 'p' ? produce(&ring) : consume(&ring);
    fprintf(stderr, "ring_kill: %s\n", strerror(-r));
    return 1;
}
