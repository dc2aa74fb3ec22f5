/* ring_hostile.c - csrc/azc_ring.h against a peer that writes anything, at any time.
 *
 * Usage: ring_hostile CALLS SEED
 *
 * Just before and just after each load of a shared word, the peer writes there: often
 * what the protocol requires, so that the code gets far, otherwise a neighbour of that,
 * a limit, or noise.  Now and then it punches a hole.  The data is a block of its own,
 * so that the address sanitizer notices accesses beyond it.
 *
 * Checked: each call returns only what its comment allows; records and reserved room
 * lie within the data, and all their bytes are touched; a ring with a fault stays
 * faulty.
 *
 * With AZC_FUZZED, this is a fuzzer's target, whose input is the noise.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static uint64_t hostile_load(void *at, size_t size);
static uint64_t knocks;

#define AZC_RING_LOAD(at)                                                              \
    ((__typeof__(*(at)))hostile_load((void *)(uintptr_t)(at), sizeof *(at)))
#define AZC_RING_STORE(at, value) (*(at) = (value))
#define AZC_RING_FENCE()          ((void)0)
#define AZC_RING_KNOCK(ring)      (knocks++)
#include "azc_ring.h"
#include "check.h"

enum { CAPACITY = 4096 };

static azc_ring_page *page;
static unsigned char *data;
static azc_ring ring;
static uint64_t loads, counts[4];

#ifdef AZC_FUZZED
static const uint8_t *input;
static size_t input_left;

/* Two bytes make a small number; after 0xff, eight bytes make a large one. */
static uint64_t noise(void) {
    bool is_long = input_left && *input == 0xff;
    uint64_t n = 0;
    input += is_long;
    input_left -= is_long;
    size_t size = is_long ? sizeof n : 2;
    if (size > input_left) size = input_left;
    memcpy(&n, input, size);
    input += size;
    input_left -= size;
    return n;
}
#else
static uint64_t state;

static uint64_t noise(void) {
    uint64_t z = (state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}
#endif

/* A value that a peer could write by the rules. */
static uint64_t fair(const void *at) {
    const azc_ring_header *header = azc_ring__header(&ring, ring.next);
    bool sends = ring.role == AZC_RING_PRODUCER;
    uint64_t most = sends ? ring.index : ring.index + CAPACITY;
    if (at == &ring.theirs->index)
        return ring.seen +
               noise() % ((most - ring.seen) / AZC_RING_STEP + 1) * AZC_RING_STEP;
    if (at == &ring.theirs->wake_at) return ring.index + noise() % 200;
    if (at == &ring.theirs->left) return 0;
    if (at == &header->stamp) return ring.next + 1;
    if (at == &header->size && ring.seen > ring.next)
        return noise() % (ring.seen - ring.next - AZC_RING_HEADER + 1);
    return noise();
}

static uint64_t unfair(const void *at) {
    static const uint64_t limits[] = {
        0,
        1,
        63,
        64,
        CAPACITY - 16,
        CAPACITY,
        2 * CAPACITY,
        INT32_MAX,
        UINT32_MAX - 15,
        UINT32_MAX,
        INT64_MAX,
        UINT64_MAX,
    };
    uint64_t dice = noise();
    if (dice % 4 == 0) return limits[dice / 4 % (sizeof limits / 8)];
    if (dice % 4 == 1) return noise();
    if (dice % 4 == 2) return fair(at) + AZC_RING_STEP * (dice / 4 % 200);
    return fair(at) + dice / 4 % 129 - 64;
}

static void put(void *at, size_t size, bool fairly) {
    uint64_t value = fairly ? fair(at) : unfair(at);
    memcpy(at, &value, size);
}

static uint64_t hostile_load(void *at, size_t size) {
    uint64_t value = 0;
    put(at, size, noise() % 16 != 0);
    memcpy(&value, at, size);
    put(at, size, noise() % 2);
    loads++;
    return value;
}

static void begin(void) {
    memset(page, 0, sizeof *page);
    int role = noise() % 2 ? AZC_RING_PRODUCER : AZC_RING_CONSUMER;
    azc_ring__empty(&ring, role, CAPACITY);
    ring.page = page;
    ring.data = data;
    azc_ring__sit_down(&ring);
}

static void touch(const void *at, uint64_t size) {
    static volatile unsigned char sum;
    const unsigned char *bytes = (const unsigned char *)at;
    CHECK(bytes >= data && bytes <= data + 2 * CAPACITY);
    CHECK(size <= (uint64_t)(data + 2 * CAPACITY - bytes));
    CHECK(size <= CAPACITY - AZC_RING_HEADER);
    for (uint64_t i = 0; i < size; i++) sum += bytes[i];
}

static int produce(void) {
    void *payload = NULL;
    uint64_t size = noise() % 8 ? noise() % 300 : noise();
    int r = azc_ring_reserve(&ring, size, &payload);
    if (r == -EAGAIN)
        r = azc_ring_await_room(&ring, size, noise() % CAPACITY);
    else if (r == 0) {
        touch(payload, size);
        memset(payload, 0x5a, (size_t)size);
        if (noise() % 8 == 0)
            azc_ring_rollback(&ring);
        else
            CHECK(azc_ring_commit(&ring, noise() % (size + 1), 1) == 0);
    }
    CHECK(r >= 0 || r == -EMSGSIZE || r == -EPIPE || r == -EPROTO);
    return r == -EMSGSIZE ? 0 : r;
}

static int consume(void) {
    azc_ring_record record = {0};
    uint64_t before = ring.next;
    int r = azc_ring_take(&ring, &record);
    if (r == 1) {
        touch(record.payload, record.size);
        CHECK(record.end > before && record.end - before <= CAPACITY);
        if (noise() % 2) {
            CHECK(azc_ring_release(&ring, record.end) == 0);
            CHECK(azc_ring_release(&ring, record.end) == -EINVAL);
        }
    } else if (r == -EAGAIN)
        r = azc_ring_await_record(&ring);
    CHECK(r >= 0 || r == -EPROTO);
    return r;
}

static void punch(void) {
    size_t at = noise() % (2 * CAPACITY - 64);
    memset(data + at, 0, noise() % 64);
}

/* Makes a call, and after a fault another one; returns the first call's result. */
static int call_once(void) {
    uint64_t loaded = loads;
    int r = ring.role == AZC_RING_PRODUCER ? produce() : consume();
    CHECK(loads - loaded < 16); /* it is in no loop */
    counts[r == -EPROTO ? 3 : r == -EPIPE ? 2 : r]++;
    if (noise() % 64 == 0) punch();
    if (r == -EPROTO) {
        CHECK(ring.fault != 0);
        CHECK((ring.role == AZC_RING_PRODUCER ? produce() : consume()) == -EPROTO);
    }
    return r;
}

static void get_memory(void) {
    page = aligned_alloc(64, sizeof *page);
    data = aligned_alloc(64, 2 * CAPACITY);
    CHECK(page && data);
}

#ifdef AZC_FUZZED
int LLVMFuzzerTestOneInput(const uint8_t *from, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *from, size_t size) {
    if (!page) get_memory();
    memset(data, 0, 2 * CAPACITY);
    input = from;
    input_left = size;
    begin();
    while (input_left && call_once() >= 0) {
    }
    return 0;
}
#else
int main(int argc, char **argv) {
    CHECK(argc == 3);
    uint64_t calls = strtoull(argv[1], NULL, 10);
    state = strtoull(argv[2], NULL, 10);
    get_memory();
    memset(data, 0, 2 * CAPACITY);
    begin();
    for (uint64_t i = 0; i < calls; i++)
        if (call_once() < 0) begin();
    CHECK(counts[0] && counts[1] && counts[2] && counts[3] && knocks);
    printf("%" PRIu64 " calls, %" PRIu64 " faults\n", calls, counts[3]);
    return 0;
}
#endif
