/* queue.c - csrc/queue.c and csrc/op.c beside a model that is too simple to be wrong.
 *
 * An input is a program of one byte a step, and the numbers that it needs.  Every byte
 * of every message has an address of its own, so what is to be moved next is known by
 * its addresses.  The model is a row of messages, each with how many bytes it has and
 * how many of them were moved.
 *
 * Checked after each step: what the queue says of itself, what it gathers, and which
 * operations it says are over, in which order.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pool.h"
#include "queue.h"

enum { MOST = 64, PIECES = 6, SIZES = 40, LIMIT = 100 };

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "queue: line %d: %s\n", __LINE__, #condition);     \
            abort();                                                           \
        }                                                                      \
    } while (0)

/* ---- what the two files call ---------------------------------------------- */

struct azc_sys azc_sys;

static void *get(size_t n) { return malloc(n); }
static void give(void *memory) { free(memory); }

/* (the first half of the memory is a pool's) */
static char memory[MOST * PIECES * SIZES];
bool azc__pool_lends(const void *from, size_t n) {
    return (const char *)from + n <= memory + sizeof memory / 2;
}
ssize_t azc__pool_detach(const void *at, const void **slot) {
    (void)at, (void)slot;
    return 0;
}
uint64_t azc__note_token(const azc_note *note) { return (uintptr_t)note; }

/* ---- the model ------------------------------------------------------------ */

typedef struct message {
    azc_op *op;
    uint64_t total, done, end;
    struct iovec pieces[PIECES];
    int count;
    bool waits, lent;
} message;

static message row[MOST];
static int length;
static uint64_t accepted, upto;
static azc_queue queue;

static uint64_t within(void) {
    uint64_t sum = 0;
    for (int i = 0; i < length; i++)
        if (!row[i].waits) sum += row[i].total - row[i].done;
    return sum;
}

/* The first that is not yet moved as a whole; an empty one is at once. */
static int cursor_of_row(void) {
    int i = 0;
    while (i < length && row[i].op != queue.cursor) i++;
    return i;
}

static void admit_row(void) {
    for (int i = 0; i < length; i++) {
        if (!row[i].waits) continue;
        if (within() && within() + row[i].total > LIMIT) return;
        row[i].waits = false;
        CHECK(azc__queue_admit(&queue) == row[i].op);
    }
}

static void take_out(int i) {
    memmove(&row[i], &row[i + 1], (size_t)(--length - i) * sizeof *row);
}

static void compare(void) {
    uint64_t waiting = 0;
    azc_op *op = queue.head, *last = NULL, *first_waiting = NULL;
    for (int i = 0; i < length; i++, op = op->next) {
        CHECK(op == row[i].op && op->sent == row[i].done);
        waiting += row[i].waits;
        if (row[i].waits && !first_waiting) first_waiting = op;
        last = op;
    }
    CHECK(!op && queue.tail == last && queue.first_waiting == first_waiting);
    CHECK(queue.ops == (uint64_t)length && queue.waiting == waiting);
    CHECK(queue.bytes == within() && queue.sent == accepted);
    for (int i = 0; i < cursor_of_row(); i++)
        CHECK(row[i].done == row[i].total);
}

/* ---- the steps ------------------------------------------------------------ */

static const uint8_t *input, *input_end;
static uint64_t next_token;

static unsigned below(unsigned n) {
    return input < input_end ? *input++ % n : 0;
}

static void draw_message(message *it) {
    static size_t used;
    if (used > sizeof memory - PIECES * SIZES) used = 0;
    it->count = (int)below(PIECES + 1);
    it->total = 0;
    for (int i = 0; i < it->count; i++) {
        size_t n = below(SIZES);
        it->pieces[i] = (struct iovec){memory + used, n};
        it->total += n;
        used += n;
    }
}

static void push(void) {
    if (length == MOST) return;
    message it = {0};
    draw_message(&it);
    it.op = azc__op_new(it.pieces, it.count, NULL, 0);
    it.op->note = (azc_note *)(uintptr_t)++next_token;
    bool others_wait = queue.first_waiting != NULL;
    it.waits = others_wait || (within() && within() + it.total > LIMIT);
    CHECK(azc__queue_push(&queue, it.op) == !it.waits);
    CHECK(azc__queue_find(&queue, next_token) == it.op);
    row[length++] = it;
}

/* The k-th byte that is to be moved, from the message at the cursor on. */
static const char *address(uint64_t k, bool *lendable, uint64_t lend_from) {
    for (int i = cursor_of_row(); i < length && !row[i].waits; i++) {
        uint64_t skip = row[i].done;
        for (int j = 0; j < row[i].count; j++) {
            uint64_t n = row[i].pieces[j].iov_len;
            const char *base = row[i].pieces[j].iov_base;
            if (skip >= n) {
                skip -= n;
                continue;
            }
            uint64_t left = n - skip;
            if (k < left) {
                *lendable = lend_from && left >= lend_from &&
                            azc__pool_lends(base + skip, left);
                return base + skip + k;
            }
            k -= left;
            skip = 0;
        }
    }
    return NULL;
}

static void accept_some(uint64_t n, bool lent) {
    azc__queue_advance(&queue, n, lent);
    for (int i = 0; i < length && !row[i].waits; i++) {
        if (row[i].end) continue; /* it is behind the cursor */
        uint64_t left = row[i].total - row[i].done, own = n < left ? n : left;
        row[i].done += own;
        row[i].lent |= lent && own;
        accepted += own;
        n -= own;
        if (row[i].done < row[i].total) break;
        row[i].end = accepted + 1; /* (so that it is never 0) */
    }
    CHECK(n == 0);
}

static void move(void) {
    struct iovec vec[VEC_MAX];
    int most_ops = 1 + (int)below(8);
    uint64_t most = 1 + below(255), sum = 0, lend_from = below(3) * 8;
    bool lend, lendable;
    int count =
        azc__queue_gather(&queue, vec, most_ops, most, lend_from, &lend);
    for (int i = 0; i < count; i++) {
        CHECK(vec[i].iov_len);
        for (size_t k = 0; k < vec[i].iov_len; k++, sum++) {
            const char *at = address(sum, &lendable, lend_from);
            CHECK(at == (char *)vec[i].iov_base + k && lendable == lend);
        }
    }
    CHECK(sum <= most || lend);
    CHECK(sum || !address(0, &lendable, 0) || most_ops < length);
    for (azc_op *op = queue.head; op; op = op->next) op->in_flight = 0;
    accept_some(sum ? below((unsigned)sum + 1) : 0, lend);
}

/* The reader has read so far; then what is over comes out in order. */
static void consume(void) {
    upto += below(64);
    if (upto > accepted) upto = accepted;
    int last = cursor_of_row();
    bool before = false;
    azc_op *over = azc__queue_consume(&queue, upto);
    for (int i = 0, seen = 0; seen < last; seen++) {
        if (row[i].end <= upto + 1) row[i].lent = false;
        bool stays = row[i].lent || (!row[i].total && before);
        before |= stays;
        if (stays) {
            i++;
            continue;
        }
        CHECK(over == row[i].op);
        over = over->next;
        azc__op_free(row[i].op);
        take_out(i);
    }
    CHECK(!over);
    admit_row();
}

static void cancel(void) {
    if (!length) return;
    int i = (int)below((unsigned)length);
    azc_op *op = row[i].op;
    azc__queue_remove(&queue, op);
    azc__op_free(op);
    take_out(i);
    admit_row();
}

static void replace(void) {
    int i = cursor_of_row();
    if (i == length || row[i].done) return;
    message other = row[i];
    draw_message(&other);
    if (other.count > VEC_INLINE) return;
    row[i] = other;
    azc__queue_replace(&queue, other.op, other.pieces, other.count);
    admit_row();
}

static void end_all(void) {
    azc_op *op = azc__queue_take_all(&queue);
    for (int i = 0; i < length; i++) {
        azc_op *next = op->next;
        CHECK(op == row[i].op);
        azc__op_free(op);
        op = next;
    }
    CHECK(!op);
    length = 0;
}

static void take_step(void) {
    switch (below(16)) {
    case 0:
        consume();
        return;
    case 1:
        cancel();
        return;
    case 2:
        replace();
        return;
    case 3:
        if (!below(16)) end_all();
        return;
    case 4:
    case 5:
    case 6:
    case 7:
    case 8:
    case 9:
        move();
        return;
    default:
        push();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    azc_sys.allocate = get;
    azc_sys.release = give;
    input = data;
    input_end = data + size;
    queue = (azc_queue){.limit = LIMIT};
    accepted = upto = next_token = 0;
    length = 0;
    while (input < input_end) {
        take_step();
        compare();
    }
    end_all();
    return 0;
}
