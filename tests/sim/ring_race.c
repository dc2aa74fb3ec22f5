/* ring_race.c - two real threads and a ring, for the thread sanitizer.
 *
 * Usage: ring_race RECORDS
 *
 * Both use the same memory at the same addresses, so that the sanitizer notices when
 * one reads what the other may still write.  The ring is small, so that each often
 * sleeps, and real doorbells wake them.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "azc_ring.h"
#include "check.h"

enum { CAPACITY = 4096, PATIENCE_MS = 20000 };

static azc_ring producer, consumer;
static uint64_t records;

static uint32_t size_of(uint64_t number) {
    return (uint32_t)(number * UINT64_C(0x9e3779b97f4a7c15) >> 54);
}

static void *produce(void *unused) {
    for (uint64_t n = 0; n < records; n++) {
        void *payload = NULL;
        uint32_t size = size_of(n);
        CHECK(azc_ring_reserve_wait(&producer, size, &payload, PATIENCE_MS) == 0);
        memset(payload, (int)(n & 0xff), size);
        CHECK(azc_ring_commit(&producer, size, (uint32_t)n) == 0);
    }
    azc_ring_leave(&producer);
    return unused;
}

static void *consume(void *unused) {
    azc_ring_record record = {0};
    uint64_t n = 0;
    int r;
    for (; (r = azc_ring_receive(&consumer, &record, PATIENCE_MS)) == 1; n++) {
        const unsigned char *bytes = record.payload;
        CHECK(record.size == size_of(n) && record.type_id == (uint32_t)n);
        for (uint32_t i = 0; i < record.size; i++) CHECK(bytes[i] == (n & 0xff));
        if (n % 2) CHECK(azc_ring_release(&consumer, record.end) == 0);
    }
    CHECK(r == 0 && n == records);
    return unused;
}

static void sit_down(azc_ring *ring, int role, azc_ring_page *page,
                     unsigned char *data) {
    azc_ring__empty(ring, role, CAPACITY);
    ring->page = page;
    ring->data = data;
    azc_ring__sit_down(ring);
}

int main(int argc, char **argv) {
    int sockets[2];
    pthread_t threads[2];
    CHECK(argc == 2);
    records = strtoull(argv[1], NULL, 10);
    azc_ring_page *page = calloc(1, sizeof *page);
    unsigned char *data = calloc(2, CAPACITY);
    CHECK(page && data);
    page->producer.wake_at = page->consumer.wake_at = AZC_RING_NEVER;
    sit_down(&producer, AZC_RING_PRODUCER, page, data);
    sit_down(&consumer, AZC_RING_CONSUMER, page, data);
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) == 0);
    producer.socket = sockets[0];
    consumer.socket = sockets[1];
    producer.bell = consumer.their_bell = eventfd(0, EFD_NONBLOCK);
    consumer.bell = producer.their_bell = eventfd(0, EFD_NONBLOCK);
    CHECK(pthread_create(&threads[0], NULL, produce, NULL) == 0);
    CHECK(pthread_create(&threads[1], NULL, consume, NULL) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(producer.calls && consumer.calls); /* (both have slept) */
    free(page);
    free(data);
    return 0;
}
