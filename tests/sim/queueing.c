/* queueing.c - a queue and its operations by hand: csrc/queue.c and csrc/op.c without
 * a channel, a thread or an fd.
 *
 * Each case makes a few messages and says what must come out.  After each step the
 * queue's counters are compared with those of its list.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "pool.h"
#include "queue.h"

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "queueing: not %s, line %d: %s\n", #condition,     \
                    __LINE__, what);                                           \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

enum {
    KIB = 1 << 10,
    MIB = 1 << 20,
    SLOT = 4 * MIB, /* longer than what one call lends */
    SLOTS = 2,
    OPS = 16,
    LENT_FROM = 64 * KIB,
    ANY = 1 << 30,
};

static const char *what;
static char memory[2 * MIB];
static char *slot[SLOTS];
static azc_queue queue;
static azc_op *ops[OPS];
static int count;
static int64_t allocated; /* blocks of memory that are not released yet, */
static size_t last_size;  /* the latest one's bytes, */
static bool no_memory;    /* and whether there are no more */
static bool keeps_pages;  /* pages cannot be replaced */
static int moved_slots;
static const char *unreadable;

/* ---- what the system does ------------------------------------------------ */

static void *allocate(size_t n) {
    if (no_memory) return NULL;
    allocated++;
    last_size = n;
    return malloc(n);
}

static void release(void *block) {
    allocated -= block != NULL;
    free(block);
}

static ssize_t copy(void *to, const void *from, size_t n) {
    if (unreadable && from == unreadable) return -EFAULT;
    memcpy(to, from, n);
    return (ssize_t)n;
}

static int remap(void *from, size_t n, void *to) {
    if (keeps_pages) return -ENOMEM;
    moved_slots++;
    memcpy(to, from, n);
    munmap(from, n);
    return 0;
}

static int replace(void *at, size_t n) {
    (void)at, (void)n;
    return -ENOMEM;
}

/* ---- messages ------------------------------------------------------------ */

static azc_op *op_of(const struct iovec *vec, int pieces) {
    CHECK(count < OPS);
    azc_op *op = azc__op_new(vec, pieces, NULL, 0);
    CHECK(op);
    return ops[count++] = op;
}

static azc_op *op_at(char *at, size_t n) {
    struct iovec vec = {at, n};
    return op_of(&vec, 1);
}

static azc_op *op_of_bytes(size_t n) { return op_at(memory, n); }

static bool is_listed(const azc_op *from, const azc_op *op) {
    while (from && from != op) from = from->next;
    return from != NULL;
}

/* Counted anew, from the list alone. */
static void check_counters(void) {
    uint64_t bytes = 0, all = 0, waiting = 0;
    const azc_op *last = NULL;
    for (const azc_op *it = queue.head; it; last = it, it = it->next) {
        all++;
        bool waits = is_listed(queue.first_waiting, it);
        waiting += waits;
        if (!waits && is_listed(queue.cursor, it))
            bytes += it->total - it->sent;
    }
    CHECK(queue.ops == all && queue.waiting == waiting);
    CHECK(queue.bytes == bytes && queue.tail == last);
}

static bool push(azc_op *op) {
    bool has_room = azc__queue_push(&queue, op);
    check_counters();
    return has_room;
}

static azc_op *admit(void) {
    azc_op *op = azc__queue_admit(&queue);
    check_counters();
    return op;
}

static void accept(uint64_t n, bool lent) {
    azc__queue_advance(&queue, n, lent);
    for (int i = 0; i < count; i++) ops[i]->in_flight = 0;
    check_counters();
}

static void begin(uint64_t limit) {
    memset(&queue, 0, sizeof queue);
    queue.limit = limit;
}

/* Frees all that the case has made: then nothing is allocated any more. */
static void end(void) {
    while (count) azc__op_free(ops[--count]);
    CHECK(allocated == 0);
    no_memory = keeps_pages = false;
    unreadable = NULL;
    moved_slots = 0;
}

/* ---- gathering ----------------------------------------------------------- */

static struct iovec vec[VEC_MAX];
static bool lend;

static int gather(int max_ops, uint64_t max_bytes, size_t lend_from) {
    lend = true; /* (it has to say, whatever was there) */
    return azc__queue_gather(&queue, vec, max_ops, max_bytes, lend_from, &lend);
}

static int gather_all(void) { return gather(VEC_MAX, ANY, 0); }

/* ---- the queue's cases --------------------------------------------------- */

static void room_is_used_to_the_last_byte(void) {
    begin(100);
    CHECK(push(op_of_bytes(60)) && push(op_of_bytes(40)));
    CHECK(!push(op_of_bytes(1)) && !push(op_of_bytes(0)));
    CHECK(!admit());
    accept(1, false);
    CHECK(admit() == ops[2] && admit() == ops[3] && !admit());
    CHECK(!queue.first_waiting && queue.bytes == 100);
}

static void an_empty_queue_has_room_for_anything(void) {
    begin(10);
    CHECK(push(op_of_bytes(1000)) && !push(op_of_bytes(1)));
}

static void who_comes_later_waits_behind_who_waits(void) {
    begin(10);
    CHECK(push(op_of_bytes(5)) && !push(op_of_bytes(6)));
    CHECK(!push(op_of_bytes(1)));
    CHECK(gather_all() == 1 && vec[0].iov_len == 5);
    accept(5, false);
    CHECK(admit() == ops[1] && admit() == ops[2]);
}

static void what_is_copied_is_not_lent(void) {
    begin(ANY);
    push(op_at(slot[0], LENT_FROM));
    CHECK(gather_all() == 1 && !lend && ops[0]->in_flight == LENT_FROM);
}

static void a_call_takes_so_many_bytes_and_messages(void) {
    begin(ANY);
    for (int i = 0; i < 3; i++) push(op_of_bytes(10));
    CHECK(gather(VEC_MAX, 15, 0) == 2);
    CHECK(vec[0].iov_len == 10 && vec[1].iov_len == 5);
    CHECK(ops[0]->in_flight == 10 && ops[1]->in_flight == 5);
    accept(12, false);
    CHECK(gather(1, ANY, 0) == 1);
    CHECK(vec[0].iov_base == memory + 2 && vec[0].iov_len == 8);
    CHECK(!ops[2]->in_flight);
}

/* (so that it is over without those behind it) */
static void after_a_mebibyte_no_message_is_added(void) {
    begin(ANY);
    push(op_of_bytes(MIB - 1));
    for (int i = 0; i < 3; i++) push(op_of_bytes(1));
    CHECK(gather_all() == 2 && !ops[2]->in_flight);
    accept(MIB, false);
    CHECK(gather_all() == 2);
}

/* A message of 1 byte, one with fds, and another. */
static void fds_go_with_their_message_alone(void) {
    static azc_fds fds;
    begin(ANY);
    for (int i = 0; i < 3; i++) push(op_of_bytes(1));
    ops[1]->fds = &fds;
    CHECK(gather_all() == 1 && ops[0]->in_flight && !ops[1]->in_flight);
    accept(1, false);
    CHECK(gather_all() == 1 && ops[1]->in_flight && !ops[2]->in_flight);
    ops[1]->fds = NULL;
    CHECK(gather_all() == 2);
}

static void a_hold_is_not_passed(void) {
    begin(ANY);
    push(op_of_bytes(1));
    push(op_of_bytes(0));
    ops[1]->relay = (azc_relay *)(void *)memory;
    ops[1]->need = UINT64_MAX;
    push(op_of_bytes(1));
    CHECK(gather_all() == 1 && azc__queue_next(&queue) == ops[0]);
    accept(1, false);
    CHECK(gather_all() == 0 && !azc__queue_next(&queue));
}

static void only_long_pieces_of_a_pool_are_lent(void) {
    begin(ANY);
    push(op_at(slot[0], LENT_FROM));
    CHECK(gather(VEC_MAX, ANY, LENT_FROM) == 1 && lend);
    CHECK(gather(VEC_MAX, ANY, LENT_FROM + 1) == 1 && !lend);
    begin(ANY);
    push(op_of_bytes(LENT_FROM));
    CHECK(gather(VEC_MAX, ANY, LENT_FROM) == 1 && !lend);
    queue.lends_all = true;
    CHECK(gather(VEC_MAX, ANY, LENT_FROM) == 1 && lend);
}

static void a_call_lends_a_mebibyte(void) {
    begin(ANY);
    push(op_at(slot[0], SLOT));
    CHECK(gather(VEC_MAX, ANY, LENT_FROM) == 1 && lend);
    CHECK(vec[0].iov_len == MIB && ops[0]->in_flight == MIB);
}

static void a_call_lends_or_copies(void) {
    struct iovec both[] = {
        {slot[0], LENT_FROM}, {memory, 1}, {slot[0], LENT_FROM}};
    begin(ANY);
    push(op_of(both, 3));
    CHECK(gather(VEC_MAX, ANY, LENT_FROM) == 1 && lend);
    CHECK(vec[0].iov_len == LENT_FROM);
    accept(LENT_FROM, true);
    CHECK(ops[0]->lent);
    CHECK(gather(VEC_MAX, ANY, LENT_FROM) == 1 && !lend);
    CHECK(vec[0].iov_len == 1);
}

static void what_is_lent_stays_until_it_was_read(void) {
    begin(ANY);
    push(op_of_bytes(10));
    push(op_of_bytes(10));
    push(op_of_bytes(0));
    accept(20, true);
    CHECK(!queue.cursor && !azc__queue_consume(&queue, 9));
    azc_op *over = azc__queue_consume(&queue, 10);
    CHECK(over == ops[0] && !over->next);
    check_counters();
    over = azc__queue_consume(&queue, 20);
    CHECK(over == ops[1] && over->next == ops[2] && !ops[2]->next);
    check_counters();
}

static void a_removed_one_leaves_no_gap(void) {
    begin(10);
    for (int i = 0; i < 4; i++) push(op_of_bytes(4));
    CHECK(queue.first_waiting == ops[2]);
    azc__queue_remove(&queue, ops[2]);
    check_counters();
    CHECK(queue.first_waiting == ops[3]);
    azc__queue_remove(&queue, ops[0]);
    check_counters();
    azc__queue_remove(&queue, ops[3]);
    check_counters();
    CHECK(queue.head == ops[1] && queue.cursor == ops[1]);
    push(op_of_bytes(1));
    CHECK(ops[1]->next == ops[4]);
}

/* ---- an operation's cases ------------------------------------------------ */

static void a_few_pieces_need_no_memory_of_their_own(void) {
    struct iovec pieces[VEC_INLINE + 1];
    for (int i = 0; i <= VEC_INLINE; i++) pieces[i] = (struct iovec){memory, 1};
    op_of(pieces, 1);
    size_t size = last_size;
    op_of(pieces, VEC_INLINE);
    CHECK(last_size == size);
    op_of(pieces, VEC_INLINE + 1);
    CHECK(last_size == size + sizeof pieces);
}

static void sizes_are_set_once(void) {
    uint64_t sizes[] = {4, 6}, others[] = {10};
    azc_op *op = op_of_bytes(10);
    no_memory = true;
    CHECK(azc__op_set_sizes(op, sizes, 2) == -ENOMEM && !op->nends);
    no_memory = false;
    CHECK(azc__op_set_sizes(op, sizes, 2) == 0 && op->messages == 2);
    CHECK(azc__op_set_sizes(op, others, 1) == 0 && op->messages == 2);
    azc__op_advance(op, 4);
    CHECK(azc__op_messages(op) == 1);
}

/* Where a batch of 4, 0, 4 and 4 bytes ends, by what is out and what is in flight. */
static void a_batch_ends_after_the_message_in_progress(void) {
    static const uint64_t sizes[] = {4, 0, 4, 4};
    static const struct {
        uint64_t moved, in_flight, total;
        int messages;
    } situations[] = {{1, 0, 4, 1}, {4, 0, 4, 1},  {5, 0, 8, 3},
                      {4, 3, 8, 3}, {8, 1, 12, 4}, {11, 1, 12, 4}};
    for (int i = 0; i < 6; i++) {
        struct iovec piece = {memory, 12};
        azc_op *op = ops[count++] = azc__op_new(&piece, 1, sizes, 4);
        azc__op_advance(op, situations[i].moved);
        op->in_flight = situations[i].in_flight;
        azc__op_truncate(op);
        CHECK(op->total == situations[i].total && op->need == op->total);
        CHECK(op->messages == situations[i].messages);
    }
    azc_op *op = op_of_bytes(12);
    azc__op_truncate(op);
    CHECK(op->total == 12 && op->messages == 1);
}

/* A piece of no pool, all of a slot, and a piece of the other slot. */
static azc_op *op_in_slots(void) {
    struct iovec pieces[] = {{memory, 10}, {slot[0], SLOT}, {slot[1], 10}};
    azc_op *op = op_of(pieces, 3);
    op->lent = true;
    return op;
}

static void only_what_was_moved_is_taken_back(void) {
    azc_op *op = op_in_slots();
    CHECK(azc__op_detach(op) == 0 && !op->lent && !moved_slots);
    azc__op_advance(op, 10);
    CHECK(azc__op_detach(op) == 0 && !moved_slots);
    azc__op_advance(op, 1);
    CHECK(azc__op_detach(op) == SLOT && moved_slots == 1);
    azc__op_advance(op, SLOT - 1);
    CHECK(op->at == 2 && azc__op_detach(op) == SLOT && moved_slots == 2);
    azc__op_advance(op, 1);
    CHECK(azc__op_detach(op) == 2 * (ssize_t)SLOT && moved_slots == 4);
}

static void pages_that_stay_are_told_of(void) {
    char rest[20];
    azc_op *op = op_in_slots();
    azc__op_advance(op, 11);
    keeps_pages = true;
    CHECK(azc__op_detach(op) == -ENOMEM && op->lent);
    CHECK(azc__op_go_on_from(op, rest) == -ENOMEM);
    CHECK(op->count == 3 && op->vec[1].iov_base == slot[0] + 1);
}

static void it_goes_on_from_a_copy(void) {
    struct iovec pieces[VEC_INLINE + 2];
    for (int i = 0; i < VEC_INLINE + 2; i++)
        pieces[i] = (struct iovec){memory, 2};
    azc_op *op = op_of(pieces, VEC_INLINE + 2);
    azc__op_advance(op, 5);
    CHECK(azc__op_go_on_from(op, slot[1] + 1) == 0);
    CHECK(op->count == 1 && op->vec->iov_base == slot[1] + 1);
    CHECK(op->vec->iov_len == 2 * VEC_INLINE + 4 - 5);
    CHECK(azc__op_detach(op) == 0 && !moved_slots); /* nothing of it is out */
    CHECK(azc__op_advance(op, ANY) == op->total - 5 && op->sent == op->total);
}

static void nothing_is_left_to_go_on_from(void) {
    azc_op *op = op_of_bytes(10);
    azc__op_advance(op, 10);
    CHECK(azc__op_go_on_from(op, memory + 10) == 0 && op->count == 0);
}

static void a_rescue_copies_the_rest(void) {
    struct iovec pieces[] = {{memory, 10}, {memory + 20, 5}};
    memset(memory, 'a', 10);
    memset(memory + 20, 'b', 5);
    azc_op *op = op_of(pieces, 2);
    azc__op_advance(op, 4);
    CHECK(azc__op_rescue(op, 10) == -ENOBUFS && !op->rescue);
    CHECK(azc__op_rescue(op, 11) == 11 && op->rescue == op->vec->iov_base);
    CHECK(memcmp(op->rescue, "aaaaaabbbbb", 11) == 0);
    CHECK(op->count == 1 && op->vec->iov_len == 11 && op->sent == 4);
}

/* Neither leaves anything allocated, see end(). */
static void a_rescue_fails(void) {
    struct iovec pieces[] = {{slot[0], 10}, {memory, 5}};
    azc_op *op = op_of(pieces, 2);
    azc__op_advance(op, 4);
    unreadable = memory;
    CHECK(azc__op_rescue(op, ANY) == -EFAULT && !op->rescue);
    unreadable = NULL;
    no_memory = true;
    CHECK(azc__op_rescue(op, ANY) == -ENOMEM && !op->rescue);
    no_memory = false;
    op->lent = keeps_pages = true;
    CHECK(azc__op_rescue(op, ANY) == -ENOMEM && !op->rescue && op->lent);
    CHECK(op->count == 2 && op->sent == 4);
}

/* ---- all of them --------------------------------------------------------- */

#define CASE(name) {#name, name}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    CASE(room_is_used_to_the_last_byte),
    CASE(an_empty_queue_has_room_for_anything),
    CASE(who_comes_later_waits_behind_who_waits),
    CASE(what_is_copied_is_not_lent),
    CASE(a_call_takes_so_many_bytes_and_messages),
    CASE(after_a_mebibyte_no_message_is_added),
    CASE(fds_go_with_their_message_alone),
    CASE(a_hold_is_not_passed),
    CASE(only_long_pieces_of_a_pool_are_lent),
    CASE(a_call_lends_a_mebibyte),
    CASE(a_call_lends_or_copies),
    CASE(what_is_lent_stays_until_it_was_read),
    CASE(a_removed_one_leaves_no_gap),
    CASE(a_few_pieces_need_no_memory_of_their_own),
    CASE(sizes_are_set_once),
    CASE(a_batch_ends_after_the_message_in_progress),
    CASE(only_what_was_moved_is_taken_back),
    CASE(pages_that_stay_are_told_of),
    CASE(it_goes_on_from_a_copy),
    CASE(nothing_is_left_to_go_on_from),
    CASE(a_rescue_copies_the_rest),
    CASE(a_rescue_fails),
};

static void open_slots(void) {
    azc_id pool;
    what = "a pool";
    CHECK(azc_pool_open(SLOT, SLOTS, &pool) == 0);
    for (int i = 0; i < SLOTS; i++) slot[i] = azc_pool_slot(pool, i);
}

int main(void) {
    open_slots();
    azc_sys.allocate = allocate;
    azc_sys.release = release;
    azc_sys.copy = copy;
    azc_sys.remap = remap;
    azc_sys.replace = replace;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        what = cases[i].name;
        cases[i].run();
        end();
    }
    return 0;
}
