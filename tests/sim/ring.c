/* ring.c - two processes and a ring: what a C program does with csrc/azc_ring.h.
 *
 * Usage: ring PATH [RECORDS]
 *
 * The parent listens and consumes; a child connects and produces.  Each record has a
 * size of its own, up to a quarter of the ring, and bytes that follow from its number.
 * Some are committed shorter than reserved, some are rolled back, and the parent keeps
 * every third until it has the next.  In a second run the child is killed halfway:
 * records that it had committed arrive, and then the end.  The file is valid C++, too.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "azc_ring.h"
#include "check.h"

enum { PATIENCE_MS = 10000 };

static uint64_t mixed(uint64_t n) {
    n = (n ^ (n >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    return n ^ (n >> 27);
}

static uint32_t size_of(uint64_t number) {
    return (uint32_t)(mixed(number + 1) % (AZC_RING_LEAST / 4));
}

static void fill(void *payload, uint64_t number, uint32_t size) {
    memset(payload, (int)(mixed(number + 7) & 0xff), size);
}

static int is_right(const azc_ring_record *record, uint64_t number) {
    const unsigned char *bytes = (const unsigned char *)record->payload;
    if (record->size != size_of(number)) return 0;
    if (record->type_id != (uint32_t)number) return 0;
    if ((uintptr_t)bytes % AZC_RING_STEP) return 0;
    for (uint32_t i = 0; i < record->size; i++)
        if (bytes[i] != (mixed(number + 7) & 0xff)) return 0;
    return 1;
}

static void produce(const char *path, uint64_t records, uint64_t die_at) {
    azc_ring ring;
    int r;
    do r = azc_ring_connect(&ring, path, AZC_RING_PRODUCER);
    while (r == -ENOENT || r == -ECONNREFUSED);
    CHECK(r == 0);
    for (uint64_t number = 0; number < records; number++) {
        uint32_t size = size_of(number);
        uint32_t more = (uint32_t)(mixed(number) % 100);
        void *payload = NULL;
        r = azc_ring_reserve_wait(&ring, size + more, &payload, PATIENCE_MS);
        CHECK(r == 0);
        if (number == die_at) raise(SIGKILL);
        if (number % 5 == 0) {
            memset(payload, 0xff, size + more);
            azc_ring_rollback(&ring);
            r = azc_ring_reserve_wait(&ring, size, &payload, PATIENCE_MS);
            CHECK(r == 0);
        }
        fill(payload, number, size);
        CHECK(azc_ring_commit(&ring, size, (uint32_t)number) == 0);
    }
    azc_ring_close(&ring);
    _exit(0);
}

static void consume(const char *path, uint64_t records, int end) {
    azc_ring ring;
    azc_ring_record record;
    uint64_t number = 0;
    int r;
    memset(&record, 0, sizeof record);
    CHECK(azc_ring_listen(&ring, path, 1, AZC_RING_CONSUMER) == 0);
    CHECK(ring.capacity == AZC_RING_LEAST);
    while ((r = azc_ring_receive(&ring, &record, PATIENCE_MS)) == 1) {
        CHECK(is_right(&record, number));
        if (number++ % 3 == 0) continue; /* released with the next */
        CHECK(azc_ring_release(&ring, record.end) == 0);
    }
    CHECK(r == end);
    CHECK(number == records);
    azc_ring_close(&ring);
}

static void run(const char *path, uint64_t records, uint64_t die_at, int end) {
    pid_t child = fork();
    int status;
    CHECK(child >= 0);
    if (child == 0) produce(path, records, die_at);
    consume(path, die_at < records ? die_at : records, end);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) == (die_at < records));
}

int main(int argc, char **argv) {
    uint64_t records = argc > 2 ? strtoull(argv[2], NULL, 10) : 20000;
    CHECK(argc > 1);
    run(argv[1], records, UINT64_MAX, 0);
    run(argv[1], records, records / 2, -EPIPE);
    printf("%llu records\n", (unsigned long long)(records + records / 2));
    return 0;
}
