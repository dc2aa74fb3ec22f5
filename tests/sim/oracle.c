/* oracle.c - what must hold, as listed in oracle.h. */
#include "oracle.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "threads.h"

enum { POISON = 0xdb, UNTOUCHED = 0xee };

op ops[OPS];
int op_count;
chan channels[CHANNELS];
int channel_count;
azc_id pool;
char *pool_memory;
size_t slot_bytes, pool_stride;
uint64_t sim_twins;

enum { BORROWERS = 4 };

static op *in_slot[SLOTS][BORROWERS]; /* all with the same bytes */
static chan *locked[SIM_THREADS];     /* whose lock the thread took last */
static op *entering[SIM_THREADS];     /* until they are in a queue */
static op *inside[SIM_THREADS];       /* until their calls return */
static op *cancelling[SIM_THREADS];   /* until their channel is locked */

static void append(op *it) {
    it->serial = ++it->channel->serials;
    it->place = it->channel->count++;
    it->channel->order[it->place] = it;
}

azc_channel *channel_inside(const chan *channel) {
    const azc_slot *slot = azc__handle_slot(&azc__channels, channel->azc);
    return slot && slot->id == channel->azc ? slot->object : NULL;
}

static chan *channel_of(const pthread_mutex_t *mutex) {
    for (int i = 0; i < channel_count; i++) {
        const azc_channel *azc = channel_inside(&channels[i]);
        if (azc && azc->slot && mutex == &azc->slot->lock) return &channels[i];
    }
    return NULL;
}

/* ---- room ---------------------------------------------------------------- */

/* Counts anew, without trusting the queue's own counters. */
static uint64_t unsent_before(const azc_queue *queue, const azc_op *end) {
    uint64_t unsent = 0;
    for (const azc_op *it = queue->cursor; it && it != end; it = it->next)
        unsent += it->total - it->sent;
    return unsent;
}

static bool is_unsent(const azc_queue *queue, const azc_op *op) {
    const azc_op *it = queue->cursor;
    while (it && it != op) it = it->next;
    return it && !it->sent;
}

static uint64_t count_from(const azc_op *it, const azc_op *end) {
    uint64_t count = 0;
    for (; it && it != end; it = it->next) count++;
    return count;
}

/* There is one operation at most for each KiB of the limit, unless it is alone. */
static bool leaves_no_room(const azc_queue *queue, uint64_t length) {
    uint64_t unsent = unsent_before(queue, queue->first_waiting);
    if (queue->first_waiting || !queue->cursor) return queue->first_waiting;
    return count_from(queue->head, NULL) >= queue->limit / 1024 ||
           (unsent && unsent + length > queue->limit);
}

static bool is_waiting(const azc_queue *queue, uint64_t token) {
    const azc_op *it = queue->first_waiting;
    while (it && !(it->note && azc__note_token(it->note) == token)) it = it->next;
    return it != NULL;
}

/* The rest of a message that was attempted at once goes first, whether there is room
 * or not. */
static uint64_t unsent_of_attempts(const chan *channel, uint64_t *attempts) {
    uint64_t unsent = 0;
    *attempts = 0;
    for (int i = 0; i < channel->count; i++) {
        const op *it = channel->order[i];
        if (!it->bound) continue;
        unsent += it->length;
        ++*attempts;
    }
    return unsent;
}

/* Since the event, what is before it can only have become less. */
void op_has_room(op *it) {
    const azc_channel *azc = channel_inside(it->channel);
    SIM_CHECK(it->asks_room && it->must_wait && !it->has_room && !it->end,
              "operation %ld is told that it has room", (long)it->token);
    it->has_room = true;
    const azc_op *op = azc ? azc__queue_find(&azc->queue, it->token) : NULL;
    if (!op || !is_unsent(&azc->queue, op)) return;
    SIM_CHECK(!is_waiting(&azc->queue, it->token),
              "operation %ld has room, but it still waits for it", (long)it->token);
    uint64_t unsent = unsent_before(&azc->queue, op);
    uint64_t attempts, first = unsent_of_attempts(it->channel, &attempts);
    SIM_CHECK(unsent <= first || unsent - first + it->length <= it->channel->most,
              "operation %ld has room, but %ld bytes are before it", (long)it->token,
              (long)unsent);
    uint64_t count = count_from(azc->queue.head, op);
    SIM_CHECK(count_from(azc->queue.cursor, op) <= attempts ||
                  count < it->channel->most / 1024 + attempts,
              "operation %ld has room, but %ld operations are before it",
              (long)it->token, (long)count);
}

/* ---- the queue ----------------------------------------------------------- */

/* Only the first that has no room waits for room, unless all end soon. */
static void check_waiting(const azc_channel *azc) {
    const azc_queue *queue = &azc->queue;
    const azc_op *first = queue->first_waiting;
    if (!first || azc->error) return;
    bool too_many = count_from(queue->head, first) >= queue->limit / 1024;
    bool too_much = queue->bytes && queue->bytes + first->total > queue->limit;
    SIM_CHECK(first != queue->cursor && (too_many || too_much),
              "an operation waits, but there is room for it");
}

/* Under its lock, a queue's counters match its list, and no bytes are in flight
 * unless a thread moves them. */
static void check_queue(const azc_channel *azc) {
    const azc_queue *queue = &azc->queue;
    const azc_op *last = NULL;
    uint64_t bytes = 0, all = 0, waiting = 0;
    bool is_to_be_moved = false, waits = false;
    for (const azc_op *it = queue->head; it; last = it, it = it->next) {
        is_to_be_moved |= it == queue->cursor;
        waits |= it == queue->first_waiting;
        all++;
        waiting += waits;
        if (is_to_be_moved && !waits) bytes += it->total - it->sent;
        SIM_CHECK(is_to_be_moved || it->lent || !it->total,
                  "an operation is over, but it stays in its queue");
        SIM_CHECK(azc->driving || !it->in_flight,
                  "bytes are in flight, but nobody moves any");
    }
    SIM_CHECK(queue->ops == all && queue->waiting == waiting && queue->bytes == bytes &&
                  queue->tail == last,
              "a queue of %ld operations and %ld bytes has other counters", (long)all,
              (long)bytes);
    check_waiting(azc);
}

/* ---- hooks --------------------------------------------------------------- */

static void lose_place(op *it) {
    chan *channel = it->channel;
    channel->count--;
    for (int i = it->place; i < channel->count; i++) {
        channel->order[i] = channel->order[i + 1];
        channel->order[i]->place = i;
    }
}

/* A submitting call takes its place when it first has the lock, or if it has moved
 * nothing then, when it has the lock again. */
static void enter(op *it, const azc_channel *azc) {
    if (it->direct) return;
    if (it->place >= 0) lose_place(it);
    append(it);
    it->must_wait = it->asks_room && azc->state == OPEN && !azc->freed &&
                    leaves_no_room(&azc->queue, it->length);
}

static void on_channel_lock(pthread_mutex_t *mutex) {
    int self = sim_self();
    chan *channel = locked[self] = channel_of(mutex);
    if (!channel) return;
    const azc_channel *azc = channel_inside(channel);
    channel->bounced |= azc->lane->bounced;
    check_queue(azc);
    if (entering[self] && entering[self]->channel == channel) {
        enter(entering[self], azc);
        entering[self] = NULL;
    }
    if (cancelling[self] && cancelling[self]->channel == channel) {
        cancelling[self]->was_waiting =
            is_waiting(&azc->queue, cancelling[self]->token);
        cancelling[self] = NULL;
    }
}

static void on_move(sim_file *file, bool out) {
    op *it = inside[sim_self()];
    if (!it || it->channel->file != file || it->channel->out != out) return;
    it->direct = true;
}

/* The address does not name the operation: any one here with this memory may be it. */
static void on_lend(const void *from) {
    for (int i = 0; i < SLOTS * BORROWERS; i++) {
        op *it = in_slot[i / BORROWERS][i % BORROWERS];
        const unsigned char *at = from;
        if (it && it->data && at >= it->data && at < it->data + it->length &&
            it->channel == locked[sim_self()])
            it->lent = true;
    }
}

/* Other threads may be storing into their slots right now. */
static void on_replace(const void *from, size_t n) {
    int slot = (int)((size_t)((const char *)from - pool_memory) / pool_stride);
    bool lent = false;
    for (int i = 0; i < BORROWERS && slot < SLOTS; i++)
        lent |= in_slot[slot][i] && in_slot[slot][i]->lent;
    SIM_CHECK(lent, "a slot is replaced that was never lent");
    if (locked[sim_self()]) locked[sim_self()]->replaced += n;
}

void oracle_begin(void) {
    op_count = channel_count = 0;
    memset(entering, 0, sizeof entering);
    memset(inside, 0, sizeof inside);
    memset(cancelling, 0, sizeof cancelling);
    memset(in_slot, 0, sizeof in_slot);
    memset(locked, 0, sizeof locked);
    memset(channels, 0, sizeof channels);
    sim_on_channel_lock = on_channel_lock;
    kernel_on_move = on_move;
    lending_on_lend = on_lend;
    lending_on_replace = on_replace;
}

/* ---- operations ------------------------------------------------------ */

static void fill(op *it) {
    if (it->kind == SEND)
        pattern_fill(it->data, it->content, 0, it->length);
    else
        memset(it->data, UNTOUCHED, it->length);
}

static op *op_new_at(chan *channel, int kind, size_t length) {
    SIM_CHECK(op_count < OPS, "too many operations");
    op *it = &ops[op_count++];
    memset(it, 0, sizeof *it);
    it->token = it->content = (uint64_t)op_count;
    it->channel = channel;
    it->kind = kind;
    it->length = it->bad_from = length;
    it->place = it->slot = -1;
    it->promise = NOTHING;
    it->calling = true;
    return it;
}

op *op_new(chan *channel, int kind, size_t length) {
    op *it = op_new_at(channel, kind, length);
    if (kind == CLOSE) return it;
    it->data = malloc(length + 1);
    if (!it->data) abort();
    fill(it);
    return it;
}

/* Often at the slot's start, or up to the slot's end. */
static size_t draw_offset(size_t room) {
    switch (sim_below(3)) {
    case 0:
        return 0;
    case 1:
        return room;
    default:
        return sim_below(room + 1);
    }
}

op *op_new_in_slot(chan *channel, int kind, size_t length) {
    int slot = (int)sim_below(SLOTS);
    if (!pool || length > slot_bytes || in_slot[slot][0]) return NULL;
    op *it = in_slot[slot][0] = op_new_at(channel, kind, length);
    it->slot = slot;
    it->data = (unsigned char *)pool_memory + (size_t)slot * pool_stride;
    it->data += draw_offset(slot_bytes - length);
    fill(it);
    return it;
}

op *op_new_twin(chan *channel) {
    int slot = (int)sim_below(SLOTS), i = 1;
    op *first = in_slot[slot][0];
    if (!pool || !first || first->kind != SEND || first->back) return NULL;
    while (i < BORROWERS && in_slot[slot][i]) i++;
    if (i == BORROWERS) return NULL;
    op *it = in_slot[slot][i] = op_new_at(channel, SEND, first->length);
    it->slot = slot;
    it->data = first->data;
    it->content = first->content;
    it->twin = first->twin = true;
    sim_twins++;
    return it;
}

op *op_of(uint64_t token) {
    SIM_CHECK(token >= 1 && token <= (uint64_t)op_count, "a strange token");
    return &ops[token - 1];
}

void op_enters(op *it) { entering[sim_self()] = inside[sim_self()] = it; }

void op_leaves(op *it) {
    it->calling = false;
    entering[sim_self()] = inside[sim_self()] = NULL;
}

void op_is_cancelled(op *it, bool now) { cancelling[sim_self()] = now ? it : NULL; }

static void release_memory(op *it) {
    if (it->slot < 0) free(it->data);
    for (int i = 0; i < BORROWERS && it->slot >= 0; i++) {
        op *borrower = in_slot[it->slot][i];
        if (borrower) borrower->data = NULL;
        in_slot[it->slot][i] = NULL;
    }
    it->data = NULL;
}

static bool is_borrowed(const op *it) {
    bool borrowed = false;
    for (int i = 0; i < BORROWERS && it->slot >= 0; i++)
        borrowed |= in_slot[it->slot][i] && !in_slot[it->slot][i]->back;
    return borrowed || it->lost;
}

static bool is_full_of(const unsigned char *data, unsigned char byte, size_t n) {
    return !n || (data[0] == byte && memcmp(data, data + 1, n - 1) == 0);
}

static void keep_received(op *it) {
    it->kept = malloc(it->length + 1);
    if (!it->kept) abort();
    memcpy(it->kept, it->data, it->length);
}

/* Does the worst that a caller is allowed to do. */
void op_give_back(op *it) {
    if (it->back || it->lost || it->kind == CLOSE) return;
    it->back = true;
    if (it->kind == RECEIVE) keep_received(it);
    if (is_borrowed(it)) return;
    if (it->bad_from < it->length) kernel_unmark_bad(it->data + it->bad_from);
    memset(it->data, POISON, it->length);
    if (!sim_chance(it->slot < 0 ? 512 : 900)) return;
    release_memory(it);
}

op op_newer(const op *it) {
    static uint64_t contents = UINT64_C(1) << 40;
    op newer = *it;
    newer.length = newer.bad_from = newer.need = 1 + sim_below(it->length);
    newer.content = contents++;
    return newer;
}

unsigned char *op_copy(const op *it) {
    unsigned char *copy = malloc(it->length + 1);
    if (!copy) abort();
    pattern_fill(copy, it->content, 0, it->length);
    return copy;
}

/* A twin may have got the slot meanwhile, and may have ended before. */
static void leave_slot(op *it) {
    op **borrowers = in_slot[it->slot];
    int i = 0;
    while (borrowers[i] != it) i++;
    for (; i < BORROWERS - 1; i++) borrowers[i] = borrowers[i + 1];
    borrowers[BORROWERS - 1] = NULL;
    if (!borrowers[0] || !is_borrowed(borrowers[0]))
        memset(it->data, POISON, it->length);
    it->slot = -1;
}

void op_goes_on(op *it, unsigned char *data) {
    if (it->back) return;
    if (it->slot >= 0) {
        leave_slot(it);
    } else {
        memset(it->data, POISON, it->length);
        if (it->before || sim_chance(512))
            free(it->data);
        else
            it->before = it->data;
    }
    it->data = data;
}

static void check_received_alone(const op *it) {
    SIM_CHECK(it->bytes <= it->length, "more was received than there is room");
    SIM_CHECK(is_full_of(it->kept + it->bytes, UNTOUCHED, it->length - it->bytes),
              "a byte beyond the received ones");
}

/* A port reports ends in the order of submission, except for operations that a cancel
 * has ended, and for those whose own call was moving bytes and reports on return.
 * Copied ones may end before lent ones; among twins it is unknown which of them was
 * lent; and a lent one may have been moved to a copy. */
static void check_order(op *it) {
    int *last = &it->channel->last_end[it->port][it->lent || !it->length];
    if (it->end != BY_EVENT || it->direct || it->twin || it->was_moved) return;
    if (it->status == -ECANCELED || (it->status && it->cancelling)) return;
    SIM_CHECK(it->serial > *last, "operation %ld ends too late", (long)it->token);
    *last = it->serial;
}

/* What the reader has not looked at may belong to others that still run. */
static bool is_unread(const op *it) {
    uint64_t others = 0;
    if (it->slot < 0 || !it->data) return false;
    for (int i = 0; i < BORROWERS; i++) {
        const op *other = in_slot[it->slot][i];
        if (other && other != it && !other->back && other->channel == it->channel)
            others += other->length;
    }
    return lending_unread(it->channel->flow, it->data, it->length) > others;
}

/* If a send ended well, the reader has all of it. */
static void check_read(const op *it) {
    if (it->kind != SEND || it->status != 0 || !it->channel->lends) return;
    SIM_CHECK(!is_unread(it), "operation %ld ends before it is read", (long)it->token);
    for (int i = 0; i < it->place && !it->length; i++) {
        const op *before = it->channel->order[i];
        if (before->end || before->cancelling) continue;
        SIM_CHECK(!is_unread(before),
                  "operation %ld ends before what it follows is read", (long)it->token);
    }
}

static void check_status(op *it) {
    chan *channel = it->channel;
    bool bad = it->bad_from < it->length;
    switch (it->status) {
    case 0:
        if (it->kind == SEND)
            SIM_CHECK(it->bytes == it->length, "%ld of %ld bytes are all",
                      (long)it->bytes, (long)it->length);
        else
            SIM_CHECK(it->bytes >= it->need || channel->flow->eof_told,
                      "received too little");
        return;
    case -ESHUTDOWN:
        SIM_CHECK(channel->closing, "ESHUTDOWN without a close");
        return;
    case -ECANCELED: /* or the channel broke over a long rescue */
        if (it->cancelling && (it->kind == RECEIVE || it->bytes == 0 ||
                               it->outcome == AZC_RESCUED || channel->closing))
            return;
        break;
    case -EFAULT:
        SIM_CHECK(it->outcome != AZC_REFUSED ||
                      (bad && (it->kind == RECEIVE || it->bytes == 0)),
                  "operation %ld is refused", (long)it->token);
        if (it->outcome == AZC_REFUSED || (bad && it->end == BY_RETURN)) return;
        break;
    case -ENOMEM: /* the call itself failed */
        if (it->place < 0 || it->bound) return;
        break;
    }
    if (!channel->error) channel->error = it->status;
    SIM_CHECK(channel->error == it->status, "error %d follows error %d", it->status,
              channel->error);
}

static void check_outcome(op *it) {
    bool cut_off = it->status < 0 && it->kind == SEND;
    switch (it->outcome) {
    case AZC_DROPPED:
        break;
    case AZC_RESCUED:
        SIM_CHECK(it->cancelling && it->status == -ECANCELED,
                  "operation %ld is rescued", (long)it->token);
        SIM_CHECK(op_cut(it, it->bytes) - it->bytes <= it->limit || it->bound,
                  "more than the limit was copied");
        break;
    case AZC_UNKNOWN:
        SIM_CHECK(cut_off && it->channel->bounced,
                  "operation %ld is said to be unknown", (long)it->token);
        break;
    case AZC_REFUSED:
        SIM_CHECK(it->status == -EFAULT, "operation %ld is refused", (long)it->token);
        break;
    case AZC_KEPT:
        SIM_CHECK(cut_off && kernel_excuses.kept && it->lent && !it->back,
                  "the memory of operation %ld is kept", (long)it->token);
        it->lost = true;
        break;
    default:
        sim_fail("outcome %d", it->outcome);
    }
}

/* Checks the end against what azc_cancel returned. */
static void check_promise(const op *it) {
    bool cut = it->status == -ECANCELED || it->status == -ESHUTDOWN;
    SIM_CHECK(!it->was_waiting || (cut && !it->bytes && it->outcome == AZC_DROPPED),
              "operation %ld leaves a trace", (long)it->token);
    SIM_CHECK(it->promise == NOTHING || (it->status < 0 && it->outcome == it->promise),
              "operation %ld: azc_cancel has said %d, its event %d", (long)it->token,
              it->promise, it->outcome);
}

void op_ends(op *it, int how, const azc_event *event) {
    SIM_CHECK(it->end == RUNNING, "operation %ld ends twice (%d, then %d)",
              (long)it->token, it->end, how);
    it->end = how;
    it->status = event->status;
    it->bytes = event->sent;
    it->outcome = event->outcome;
    sim_trace("  operation %ld ends, status %ld, %ld bytes", (int64_t)it->token,
              it->status, (int64_t)it->bytes);
    if (it->kind == CLOSE) return;
    check_order(it);
    check_status(it);
    if (how == BY_EVENT && it->status < 0) check_outcome(it);
    SIM_CHECK(it->status || it->outcome == AZC_DROPPED,
              "operation %ld ends well, but with outcome %d", (long)it->token,
              it->outcome);
    check_promise(it);
    check_read(it);
    op_give_back(it);
    if (it->kind == RECEIVE) check_received_alone(it);
    free(it->copy);
    it->copy = NULL;
}

/* ---- what the reader has --------------------------------------------- */

uint64_t op_cut(const op *it, uint64_t bytes) {
    bool knows_ends = !it->bound || it->sizes_told;
    for (int i = 0; i < it->nends && knows_ends; i++)
        if (it->ends[i] >= bytes) return it->ends[i];
    return it->length;
}

static uint64_t cut_of(const op *it) { return op_cut(it, it->bytes); }

static bool was_rescued(const op *it) {
    return it->status == -ECANCELED && it->outcome == AZC_RESCUED && it->cancelling;
}

/* How many bytes of an operation the reader may have: the first guess that fits the
 * rest of the stream is right. */
typedef struct guesses {
    uint64_t n[ENDS + 3];
    int count;
    int whole; /* another message may follow after these first guesses */
} guesses;

static void guess(guesses *it, uint64_t n) { it->n[it->count++] = n; }

static void guess_rest(guesses *it, const op *of, uint64_t rest) {
    guess(it, rest < of->length ? rest : of->length);
}

/* A batch goes on to the end of the message in progress.  If a call on a copy was in
 * progress, too, this is the message in which the copy ends.  If the sizes came too
 * late, all of the batch goes on. */
static guesses guess_rescued(const op *it, uint64_t rest, bool torn) {
    guesses all = {0};
    uint64_t farthest = it->bytes;
    bool knows_ends = !it->bound || it->sizes_told;
    if (it->channel->bounced) farthest += BOUNCE_CHUNK;
    for (int i = 0; i < it->nends && knows_ends; i++) {
        if (it->ends[i] < it->bytes) continue;
        guess(&all, it->ends[i]);
        if (it->ends[i] >= farthest) break;
    }
    if (!it->nends || (it->bound && it->sizes_late) || !knows_ends)
        guess(&all, it->length);
    all.whole = all.count;
    if (torn) guess_rest(&all, it, rest);
    return all;
}

static guesses guess_ended(const op *it, uint64_t rest, bool torn) {
    guesses all = {.n = {it->bytes}, .count = 1};
    /* A call on a copy may end after its operation. */
    if (it->status < 0 && it->outcome == AZC_UNKNOWN && torn && rest > it->bytes &&
        rest - it->bytes <= BOUNCE_CHUNK)
        guess_rest(&all, it, rest);
    return all;
}

static guesses guess_all(const op *it, uint64_t rest) {
    const chan *channel = it->channel;
    bool torn = channel->closing || channel->error || channel->torn;
    if (was_rescued(it)) return guess_rescued(it, rest, torn);
    return guess_ended(it, rest, torn);
}

/* Tells whether the rest of the stream consists of the operations from the i-th on. */
static bool fits(chan *channel, int i, uint64_t at, bool torn) {
    uint64_t rest = channel->flow->moved - at;
    if (i == channel->count) return rest == 0;
    op *it = channel->order[i];
    guesses all = guess_all(it, rest);
    for (int k = 0; k < all.count; k++) {
        uint64_t n = all.n[k];
        if (n > rest || (n && torn)) continue;
        if (!pattern_equals(channel->flow->log + at, it->content, 0, n)) continue;
        bool whole = n == 0 || n == it->length || k < all.whole;
        if (!fits(channel, i + 1, at + n, torn || !whole)) continue;
        it->final = n;
        it->copied = was_rescued(it) ? (whole ? n : cut_of(it)) - it->bytes : 0;
        return true;
    }
    return false;
}

static void print_stream(chan *channel) {
    for (int i = 0; i < channel->count; i++) {
        op *it = channel->order[i];
        sim_trace("operation %ld: status %ld, %ld bytes", (int64_t)it->token,
                  it->status, (int64_t)it->bytes);
    }
    sim_trace("fd %ld: %ld bytes at the reader", channel->file->number,
              (int64_t)channel->flow->moved, 0);
}

static void check_sent(chan *channel) {
    if (fits(channel, 0, 0, false)) return;
    print_stream(channel);
    sim_fail("fd %d: the reader has something else", channel->file->number);
}

static void check_received(chan *channel) {
    uint64_t at = 0, stream = kernel_stream_of(channel->file);
    for (int i = 0; i < channel->count; i++) {
        op *it = channel->order[i];
        SIM_CHECK(pattern_equals(it->kept, stream, at, it->bytes),
                  "operation %ld received something else", (long)it->token);
        at += it->bytes;
    }
    SIM_CHECK(at <= channel->flow->moved, "more was received than came");
}

/* Checks that an error that broke a channel has a cause. */
static void check_error(chan *channel) {
    const sim_flow *flow = channel->flow;
    bool cause = channel->error == flow->fatal;
    switch (channel->error) {
    case 0:
        return;
    case -EBADF:
        cause |= channel->file->stolen;
        break;
    case -ENOMEM:
    case -ENOBUFS:
        cause |= kernel_excuses.no_memory || kernel_excuses.no_fd ||
                 kernel_excuses.kept || flow->starved_long;
        break;
    case -EAGAIN:
        cause |= kernel_excuses.no_thread;
        break;
    case -EMFILE:
        cause |= kernel_excuses.no_fd;
        break;
    }
    for (int i = 0; i < channel->count; i++) {
        const op *it = channel->order[i];
        if (channel->error == -ECANCELED)
            cause |= it->cancelling && it->limit < it->length;
        if (channel->error == -EFAULT)
            cause |= it->kind == SEND && it->bad_from < it->length &&
                     (it->bytes > 0 || it->outcome == AZC_UNKNOWN);
    }
    SIM_CHECK(cause, "fd %d: error %d has no cause", channel->file->number,
              channel->error);
}

void channel_check(chan *channel) {
    /* It may have broken when no operation was left to report that. */
    const azc_channel *azc = channel_inside(channel);
    channel->torn |= !azc || azc->state != OPEN;
    for (int i = 0; i < channel->count; i++)
        SIM_CHECK(channel->order[i]->end != RUNNING, "operation %ld is lost",
                  (long)channel->order[i]->token);
    if (channel->out)
        check_sent(channel);
    else
        check_received(channel);
    check_error(channel);
}

/* ---- counters -------------------------------------------------------- */

static uint64_t messages_of(const op *it) {
    uint64_t messages = 0;
    if (it->kind == RECEIVE) return it->status == 0 && !it->idle;
    if (it->status < 0 && it->final == 0) return 0;
    if (it->bound && !it->sizes_told && it->nends)
        return it->final == it->length ? (uint64_t)it->nends : 0;
    if (!it->nends) return it->final == it->length;
    for (int i = 0; i < it->nends && it->ends[i] <= it->final; i++) {
        messages++;
        /* A cancelled batch ends here, even before empty messages. */
        if (was_rescued(it) && it->ends[i] == it->final) break;
    }
    return messages;
}

/* The ends of the messages may be unknown in a batch that broke off. */
static bool is_countable(const op *it) {
    if (!it->bound || !it->nends || !it->sizes_told || !it->final) return true;
    return was_rescued(it) ? !it->sizes_late : it->final == it->length;
}

/* For a channel at rest that has not been closed. */
void channel_check_stats(chan *channel) {
    azc_stats stats;
    const sim_flow *flow = channel->flow;
    uint64_t messages = 0, rescued = channel->replaced;
    bool exact = !((channel->error || channel->torn) && channel->bounced);
    for (int i = 0; i < channel->count; i++) {
        exact &= is_countable(channel->order[i]);
        messages += messages_of(channel->order[i]);
        rescued += channel->order[i]->copied;
    }
    int r = azc_get_stats(channel->azc, &stats);
    SIM_CHECK(r == 0, "no stats");
    SIM_CHECK(stats.bytes == flow->moved, "stats: %ld bytes", (long)stats.bytes);
    SIM_CHECK(stats.calls == flow->calls, "stats: %ld calls, not %ld",
              (long)stats.calls, (long)flow->calls);
    SIM_CHECK(stats.lent == flow->lent, "stats: %ld lent", (long)stats.lent);
    SIM_CHECK(!flow->refused || !stats.lends, "stats: it still lends");
    SIM_CHECK(stats.waits == flow->waits, "stats: %ld waits, not %ld",
              (long)stats.waits, (long)flow->waits);
    SIM_CHECK(!stats.queued && !stats.queued_bytes && !stats.waiting,
              "stats: %ld queued, %ld bytes", (long)stats.queued,
              (long)stats.queued_bytes);
    SIM_CHECK(stats.immediate == channel->immediate, "stats: %ld immediate",
              (long)stats.immediate);
    SIM_CHECK(!exact || stats.messages == messages, "stats: %ld messages, not %ld",
              (long)stats.messages, (long)messages);
    exact = exact && !kernel_excuses.kept &&
            !(channel->lends && (channel->error || channel->torn));
    SIM_CHECK(!exact || stats.rescued == rescued, "stats: %ld rescued, not %ld",
              (long)stats.rescued, (long)rescued);
    SIM_CHECK(!channel->error || stats.error == channel->error,
              "stats: error %d, not %d", stats.error, channel->error);
}

static void check_untouched(const op *it) {
    if (it->data && it->back && !is_borrowed(it))
        SIM_CHECK(is_full_of(it->data, POISON, it->length),
                  "memory is written to after its operation has ended");
}

void oracle_close_pool(void) {
    for (int i = 0; i < SLOTS; i++) {
        if (!in_slot[i][0]) continue;
        check_untouched(in_slot[i][0]);
        release_memory(in_slot[i][0]);
    }
    if (pool) SIM_CHECK(azc_pool_close(pool) == 0, "no pool to close");
    pool = 0;
}

void oracle_end(void) {
    for (int i = 0; i < op_count; i++) {
        op *it = &ops[i];
        check_untouched(it);
        free(it->data);
        free(it->kept);
        free(it->before);
        it->data = it->kept = it->before = NULL;
    }
}
