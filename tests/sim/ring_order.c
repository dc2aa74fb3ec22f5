/* ring_order.c - two threads go through csrc/azc_ring.h in every possible order.
 *
 * Usage: ring_order RECORDS HELD
 *
 * A producer sends RECORDS records through a ring that holds two, and closes it.  A
 * consumer takes them, and keeps up to HELD of them before it releases the oldest.
 * Both sleep when they find nothing to do.  Each load, store, fence, ring and sleep is
 * one step, and the other thread may run between any two.  As on x86, the other thread
 * sees stores later, in order, each at any time until the storing thread's next fence.
 *
 * All orders are tried, depth first: a run is repeated up to a step, and then continues
 * differently.  A state that was met before is not entered again.  A state is memory,
 * the stores under way, and each thread's number of steps and loaded values, from which
 * all its further behaviour follows.
 *
 * Checked: the consumer gets each record once, in order and with its bytes, which stay
 * unchanged until it is released; it gets the end after the last one; and the threads
 * never both sleep, nor does one sleep after the other's end.
 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

static uint64_t step_load(const void *at, size_t size);
static void step_store(void *at, size_t size, uint64_t value);
static void step_fence(void);
struct azc_ring;
static void step_knock(struct azc_ring *ring);

#define AZC_RING_LOAD(at)         ((__typeof__(*(at)))step_load(at, sizeof *(at)))
#define AZC_RING_STORE(at, value) step_store(at, sizeof *(at), value)
#define AZC_RING_FENCE()          step_fence()
#define AZC_RING_KNOCK(ring)      step_knock(ring)
#include "azc_ring.h"

enum {
    PRODUCER,
    CONSUMER,
    THREADS,
    CAPACITY = 2 * AZC_RING_STEP,
    STACK_SIZE = 64 << 10,
    DEPTH = 4096,
    ON_THE_WAY = 64,
};

typedef struct stored {
    void *at;
    size_t size;
    uint64_t value;
} stored;

typedef struct thread {
    ucontext_t start;
    jmp_buf here;
    bool has_begun, is_done, sleeps;
    uint64_t steps, loaded; /* a hash of all loaded values */
    stored way[ON_THE_WAY]; /* stores that are not yet in memory, oldest first */
    int on_the_way;
    azc_ring ring;
} thread;

static struct {
    azc_ring_page page;
    _Alignas(64) unsigned char data[2 * CAPACITY];
} memory;

static thread threads[THREADS];
static char stacks[THREADS][STACK_SIZE];
static int bells[THREADS];
static int self;
static jmp_buf scheduler;
static uint64_t records, held;

/* The current order: at each step, the way taken, and the number of ways. */
static unsigned char way_taken[DEPTH], ways[DEPTH];
static int depth, known;
static uint64_t runs, states;

static void fail(const char *what) {
    fprintf(stderr, "ring_order: %s; the steps were", what);
    for (int i = 0; i < depth; i++) fprintf(stderr, " %d", way_taken[i]);
    fputc('\n', stderr);
    _exit(1);
}

/* ---- the states that were met ---------------------------------------------- */

static uint64_t *met;
static size_t room = 1 << 16;

static uint64_t mixed(uint64_t hash, uint64_t value) {
    uint64_t z = (hash ^ value) + UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static uint64_t state(void) {
    const uint64_t *words = (const uint64_t *)(void *)&memory;
    uint64_t hash = 1;
    for (size_t i = 0; i < sizeof memory / 8; i++) hash = mixed(hash, words[i]);
    for (int i = 0; i < THREADS; i++) {
        const thread *each = &threads[i];
        hash = mixed(hash, each->steps);
        hash = mixed(hash, each->loaded);
        hash = mixed(hash, (uint64_t)each->sleeps * 2 + each->is_done);
        hash = mixed(hash, (uint64_t)bells[i]);
        hash = mixed(hash, (uint64_t)each->on_the_way);
        for (int k = 0; k < each->on_the_way; k++) {
            hash = mixed(hash, (uintptr_t)each->way[k].at);
            hash = mixed(hash, each->way[k].value);
        }
    }
    return hash ? hash : 1;
}

static bool insert(uint64_t *table, size_t size, uint64_t hash) {
    size_t i = hash & (size - 1);
    while (table[i] && table[i] != hash) i = (i + 1) & (size - 1);
    if (table[i]) return false;
    table[i] = hash;
    return true;
}

/* Returns whether this state is met for the first time. */
static bool is_new(uint64_t hash) {
    if (states * 2 >= room || !met) {
        uint64_t *more = calloc(room *= 2, sizeof *more);
        if (!more) fail("no memory");
        for (size_t i = 0; met && i < room / 2; i++)
            if (met[i]) insert(more, room, met[i]);
        free(met);
        met = more;
    }
    if (!insert(met, room, hash)) return false;
    states++;
    return true;
}

/* ---- steps ----------------------------------------------------------------- */

/* Lets the scheduler choose the next step. */
static void step(void) {
    threads[self].steps++;
    if (_setjmp(threads[self].here) == 0) _longjmp(scheduler, 1);
}

static void arrive(thread *of) {
    stored first = of->way[0];
    memcpy(first.at, &first.value, first.size);
    memmove(of->way, of->way + 1, sizeof(stored) * (size_t)--of->on_the_way);
}

static uint64_t step_load(const void *at, size_t size) {
    uint64_t value = 0;
    step();
    thread *me = &threads[self];
    memcpy(&value, at, size);
    for (int i = 0; i < me->on_the_way; i++)
        if (me->way[i].at == at) value = me->way[i].value;
    me->loaded = mixed(me->loaded, value);
    return value;
}

static void step_store(void *at, size_t size, uint64_t value) {
    step();
    thread *me = &threads[self];
    if (me->on_the_way == ON_THE_WAY) fail("too much on the way");
    me->way[me->on_the_way++] = (stored){at, size, value};
}

static void step_fence(void) {
    step();
#ifndef WITHOUT_FENCE
    while (threads[self].on_the_way) arrive(&threads[self]);
#endif
}

static void step_knock(azc_ring *ring) {
    step();
    bells[ring->role == AZC_RING_PRODUCER ? CONSUMER : PRODUCER]++;
}

static void step_sleep(void) {
    threads[self].sleeps = true;
    step(); /* returns after a ring of the bell */
    threads[self].sleeps = false;
    bells[self] = 0;
}

/* ---- the two threads --------------------------------------------------------- */

static void done(void) {
    threads[self].is_done = true;
    step();
    abort();
}

static void produce(void) {
    azc_ring *ring = &threads[PRODUCER].ring;
    for (uint64_t n = 1; n <= records; n++) {
        void *payload = NULL;
        int r;
        while ((r = azc_ring_reserve(ring, 8, &payload)) == -EAGAIN) {
            r = azc_ring_await_room(ring, 8, 0);
            if (r == 0) step_sleep();
            if (r < 0) fail("the consumer's index was found wrong");
        }
        if (r < 0) fail("a reserve failed");
        AZC_RING_STORE((uint64_t *)payload, n);
        if (azc_ring_commit(ring, 8, (uint32_t)n)) fail("a commit failed");
    }
    azc_ring_leave(ring);
    done();
}

static void release(azc_ring *ring, const azc_ring_record *record, uint64_t n) {
    if (AZC_RING_LOAD((const uint64_t *)record->payload) != n)
        fail("a record that is held was overwritten");
    if (azc_ring_release(ring, record->end)) fail("a release failed");
}

static void consume(void) {
    azc_ring *ring = &threads[CONSUMER].ring;
    azc_ring_record kept[2];
    uint64_t taken = 0, released = 0;
    for (;;) {
        azc_ring_record *record = &kept[taken % 2];
        int r = azc_ring_take(ring, record);
        if (r == 0) break;
        if (r == 1) {
            taken++;
            if (record->size != 8 || record->type_id != taken)
                fail("a record is not the next one");
            if (AZC_RING_LOAD((const uint64_t *)record->payload) != taken)
                fail("a record has other bytes");
            for (; taken - released > held; released++)
                release(ring, &kept[released % 2], released + 1);
            continue;
        }
        if (r != -EAGAIN) fail("the producer's index or record was found wrong");
        r = azc_ring_await_record(ring);
        if (r == 0) step_sleep();
        if (r < 0) fail("the producer's index was found wrong");
    }
    if (taken != records) fail("the end came too early");
    done();
}

/* ---- all orders --------------------------------------------------------------- */

static void sit_down(int i, int role) {
    azc_ring *ring = &threads[i].ring;
    azc_ring__empty(ring, role, CAPACITY);
    ring->page = &memory.page;
    ring->data = memory.data;
    azc_ring__sit_down(ring);
}

static void prepare(int i, void (*body)(void)) {
    ucontext_t *start = &threads[i].start;
    getcontext(start);
    start->uc_stack.ss_sp = stacks[i];
    start->uc_stack.ss_size = STACK_SIZE;
    makecontext(start, body, 0);
}

static void begin(void) {
    memset(&memory, 0, sizeof memory);
    memset(threads, 0, sizeof threads);
    memset(bells, 0, sizeof bells);
    memory.page.producer.wake_at = AZC_RING_NEVER;
    memory.page.consumer.wake_at = AZC_RING_NEVER;
    sit_down(PRODUCER, AZC_RING_PRODUCER);
    sit_down(CONSUMER, AZC_RING_CONSUMER);
    prepare(PRODUCER, produce);
    prepare(CONSUMER, consume);
    depth = 0;
}

static void go_on(int i) {
    self = i;
    if (_setjmp(scheduler)) return;
    if (threads[i].has_begun) _longjmp(threads[i].here, 1);
    threads[i].has_begun = true;
    setcontext(&threads[i].start);
}

/* Lists possible next events: a thread's step, or the arrival of its oldest store. */
static int list_ways(int *found) {
    int count = 0;
    for (int i = 0; i < THREADS; i++)
        if (!threads[i].is_done && (!threads[i].sleeps || bells[i])) found[count++] = i;
    for (int i = 0; i < THREADS; i++)
        if (threads[i].on_the_way) found[count++] = THREADS + i;
    return count;
}

/* Runs to the end, or to a state that was met before. */
static void run(void) {
    begin();
    for (;; depth++) {
        int found[2 * THREADS];
        int count = list_ways(found);
        if (count == 0) {
            if (!threads[PRODUCER].is_done || !threads[CONSUMER].is_done)
                fail("a thread sleeps for ever");
            return;
        }
        if (depth == DEPTH) fail("it does not end");
        if (depth >= known) {
            if (!is_new(state())) return;
            way_taken[depth] = 0;
        }
        ways[depth] = (unsigned char)count;
        int way = found[way_taken[depth]];
        if (way < THREADS)
            go_on(way);
        else
            arrive(&threads[way - THREADS]);
    }
}

/* Selects the next order; false if there is none. */
static bool turn_elsewhere(void) {
    while (depth > 0 && way_taken[depth - 1] + 1 == ways[depth - 1]) depth--;
    if (depth == 0) return false;
    way_taken[depth - 1]++;
    known = depth;
    return true;
}

int main(int argc, char **argv) {
    if (argc != 3) fail("how many records, and how many of them held?");
    records = strtoull(argv[1], NULL, 10);
    held = strtoull(argv[2], NULL, 10);
    do {
        run();
        runs++;
    } while (turn_elsewhere());
    printf("%" PRIu64 " states, %" PRIu64 " runs\n", states, runs);
    return 0;
}
