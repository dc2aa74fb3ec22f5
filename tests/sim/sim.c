/* sim.c - seeded scenarios for the C helper over the simulated kernel.
 *
 * Usage: sim, with the arguments of seeds.h.
 *
 * A seed opens a few channels on pipes, FIFOs, ttys, sockets, files and devices.  Up to
 * three callers then take up to 200 steps together, and a peer takes its own, while the
 * helper's threads run between and inside of them.  Callers send, send batches,
 * receive, cancel, close, free, open more, call freed channels, and take the ports'
 * events (some are acknowledged only after they were repeated).  The peer reads, feeds,
 * stalls, dies, runs out of memory, or takes an fd's number away.  Then the faults
 * stop, the peers read on, and everything must come to its end.
 *
 * oracle.h and kernel.h list what is checked.  The first seed that fails is printed
 * with its last steps, and the exit status is 1.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "oracle.h"
#include "ports.h"
#include "seeds.h"
#include "threads.h"

enum { STEPS = 200, PIECES_MAX = 1500 };

static struct {
    chan *stolen;   /* to be closed before its pump notices */
    uint64_t moved; /* moves to copies, in all seeds together */
} world;

/* ---- drawing --------------------------------------------------------- */

static size_t draw_length(void) {
    static const size_t edges[] = {4095, 4096, 4097, 8192, 65536, 65537};
    unsigned kind = (unsigned)sim_below(1000);
    if (kind < 50) return 0;
    if (kind < 550) return 1 + sim_below(64);
    if (kind < 850) return 1 + sim_below(5000);
    if (kind < 930) return edges[sim_below(6)];
    if (kind < 992) return 1 + sim_below(70000);
    if (kind < 999) return 1 + sim_below(400000);
    return 1 + sim_below(3000000);
}

static uint64_t draw_room(void) {
    static const uint64_t rooms[] = {1, 100, 4096, 70000, 1 << 20};
    return rooms[sim_below(5)];
}

static chan *draw_channel(bool for_calls) {
    if (!channel_count) return NULL;
    chan *it = &channels[sim_below((uint64_t)channel_count)];
    return it->freed || (for_calls && it->closing && sim_chance(800)) ? NULL : it;
}

/* ---- opening --------------------------------------------------------- */

/* Slots of one to six pages, and now and then of more than a huge page. */
static void open_pool(void) {
    slot_bytes = 4096 * sim_below(6) + 1 + sim_below(4096);
    if (sim_chance(30)) slot_bytes += 1 << 20;
    int r = azc_pool_open(slot_bytes, SLOTS, &pool);
    SIM_CHECK(r == 0 || kernel_excuses.no_memory || kernel_excuses.no_pages,
              "azc_pool_open: %d", r);
    if (r < 0) pool = 0;
    pool_memory = azc_pool_slot(pool, 0);
    pool_stride = (size_t)((char *)azc_pool_slot(pool, 1) - pool_memory);
}

static chan *new_channel(sim_file *file, bool out) {
    chan *it = &channels[channel_count++];
    it->file = file;
    it->out = out;
    it->flow = &file->flow[out];
    it->port = (int)sim_below(PORTS);
    it->most = UINT64_MAX;
    return it;
}

static void open_opposite(chan *first) {
    if (first->opposite || !sim_chance(300)) return;
    azc_id opposite;
    first->opposite = true;
    int r = azc_open_opposite(first->azc, &opposite);
    if (r < 0) {
        SIM_CHECK(r == -ENOMEM || first->closing, "azc_open_opposite: %d", r);
        return;
    }
    SIM_CHECK(channel_count < CHANNELS, "too many channels");
    chan *it = new_channel(first->file, !first->out);
    it->azc = opposite;
    it->opposite = true;
    sim_trace("channel %ld: fd %ld, the opposite", it - channels, first->file->number,
              0);
}

static int draw_flags(int kind, bool out) {
    bool pipe = kind == PIPE || kind == FIFO;
    int flags = out ? AZC_OUT : AZC_IN;
    if (kind == PIPE && sim_chance(300)) flags |= AZC_OWN;
    if (pipe && sim_chance(250)) flags |= AZC_UNTRUSTED;
    bool lends = (pipe || kind == SOCKET) && out && pool;
    if (lends && sim_chance(700)) flags |= AZC_READS | (sim_chance(900) ? AZC_OWN : 0);
    return flags;
}

static void draw_limit(chan *channel) {
    uint64_t limit = draw_room();
    if (channel->most == UINT64_MAX || limit > channel->most) channel->most = limit;
    int r = azc_set_limit(channel->azc, limit);
    SIM_CHECK(r == 0 || channel->freed, "azc_set_limit: %d", r);
    sim_trace("channel %ld: at most %ld bytes", channel - channels, (int64_t)limit, 0);
}

/* Other callers see the channel once it has a number. */
static void open_channel(void) {
    int kind = sim_chance(600) ? (int)sim_below(2) : (int)sim_below(KINDS);
    bool out = sim_chance(700);
    int flags = draw_flags(kind, out), r;
    sim_file *file = kernel_new_file(kind, kernel_draw_capacity());
    azc_id azc;
    bool lends = flags & AZC_READS && !(flags & AZC_UNTRUSTED);
    file->flow[out].may_lend = lends;
    SIM_CHECK(azc_open(file->number, AZC_IN | AZC_OUT, &azc) == -EINVAL,
              "a channel in both directions");
    r = azc_open(-1, flags, &azc);
    SIM_CHECK(r == -EBADF || r == -ENOMEM, "azc_open of no fd: %d", r);
    while ((r = azc_open(file->number, flags, &azc)) < 0)
        SIM_CHECK(r == -ENOMEM, "azc_open: %d", r);
    SIM_CHECK(channel_count < CHANNELS, "too many channels");
    chan *it = new_channel(file, out);
    it->lends = lends;
    it->azc = azc;
    sim_trace("channel %ld: fd %ld, kind %ld", it - channels, file->number, kind);
    if (sim_chance(400)) draw_limit(it);
    if (kind == SOCKET) open_opposite(it);
}

static void begin_world(void) {
    kernel_rates = kernel_draw_rates();
    ports_begin();
    if (sim_chance(700)) open_pool();
    int count = 1 + (int)sim_below(4);
    while (channel_count < count) open_channel();
    world.stolen = NULL;
}

/* ---- the callers' steps ---------------------------------------------- */

static bool bounced(const chan *channel) {
    const azc_channel *azc = channel_inside(channel);
    return azc && azc->lane->bounced;
}

/* Cuts an operation's memory into pieces, some of them empty. */
static struct iovec *cut_into_pieces(op *it, int *count) {
    int most = sim_chance(20) ? PIECES_MAX : 1 + (int)sim_below(6);
    struct iovec *vec = malloc(((size_t)most + 1) * sizeof *vec);
    if (!vec) abort();
    size_t at = 0, step = it->length / (size_t)most + 1;
    *count = 0;
    while (*count < most - 1 && at < it->length) {
        size_t n = sim_chance(100) ? 0 : 1 + sim_below(step);
        if (n > it->length - at) n = it->length - at;
        vec[(*count)++] = (struct iovec){it->data + at, n};
        at += n;
    }
    if (at < it->length || sim_chance(512))
        vec[(*count)++] = (struct iovec){it->data + at, it->length - at};
    return vec;
}

static void cut_into_messages(op *it) {
    uint64_t at = 0;
    int count = 1 + (int)sim_below(ENDS);
    for (int i = 0; i < count - 1; i++) {
        at += sim_below((it->length - at) / 2 + 1);
        it->ends[it->nends++] = at;
    }
    it->ends[it->nends++] = it->length;
}

/* A copy for the call only, freed right after it. */
static uint64_t *sizes_of_messages(const op *it) {
    if (!it->nends) return NULL;
    uint64_t *sizes = malloc((size_t)it->nends * sizeof *sizes);
    if (!sizes) abort();
    for (int i = 0; i < it->nends; i++)
        sizes[i] = it->ends[i] - (i ? it->ends[i - 1] : 0);
    return sizes;
}

/* Checks a call that has returned: only a send without room waits for room. */
static void judge_submission(op *it, ssize_t r) {
    azc_event event = {.token = it->token, .status = r < 0 ? (int)r : 0};
    SIM_CHECK(r != -EBUSY || it->must_wait,
              "operation %ld has to wait, but there is room", (long)it->token);
    SIM_CHECK(!it->must_wait || (r < 0 && r != -EINPROGRESS),
              "operation %ld has no room, but need not wait", (long)it->token);
    SIM_CHECK(it->kind != SEND || r <= 1, "a send returns %ld", (long)r);
    bool queued = r == -EINPROGRESS || r == -EBUSY;
    ports_submitted(it, queued);
    if (queued) return;
    if (r >= 0) {
        it->channel->immediate++;
        event.sent = it->kind == SEND ? it->length : (uint64_t)r;
    }
    op_ends(it, BY_RETURN, &event);
}

static size_t draw_length_in_slot(void) {
    return sim_chance(300) ? slot_bytes : sim_below(slot_bytes + 1);
}

static op *draw_send(chan *channel) {
    op *it = NULL;
    if (sim_chance(channel->lends ? 150 : 30)) it = op_new_twin(channel);
    if (!it && sim_chance(channel->lends ? 800 : 200))
        it = op_new_in_slot(channel, SEND, draw_length_in_slot());
    return it ? it : op_new(channel, SEND, draw_length());
}

static op *draw_receive(chan *channel) {
    op *it = NULL;
    if (sim_chance(300)) it = op_new_in_slot(channel, RECEIVE, draw_length_in_slot());
    return it ? it : op_new(channel, RECEIVE, draw_length() % 100000);
}

static void spoil(op *it) {
    if (!it->length || it->slot >= 0 || !sim_chance(15)) return;
    it->bad_from = sim_below(it->length);
    kernel_mark_bad(it->data + it->bad_from, it->length - it->bad_from);
}

/* A batch's sizes are set after it was queued, or never. */
static void tell_sizes(op *it, const uint64_t *sizes) {
    if (!it->nends || sim_chance(100)) return;
    it->sizes_late = it->cancelling;
    it->sizes_told = true;
    int r = azc_set_sizes(it->channel->azc, it->token, sizes, it->nends);
    it->sizes_late |= it->cancelling;
    if (r < 0) it->sizes_late = true;
    SIM_CHECK(r == 0 || it->channel->freed ||
                  (r == -ENOMEM && kernel_excuses.no_memory),
              "azc_set_sizes: %d", r);
}

static int send_to_all(op *it) {
    int count, which = 99;
    struct iovec *vec = cut_into_pieces(it, &count);
    azc_tally tally = {.result = 99};
    azc_seat seat = {it->channel->azc, it->token, &tally};
    int found = azc_send_to_all(&seat, 1, vec, count, 0, &which);
    free(vec);
    SIM_CHECK(tally.result <= 0 && found == (tally.result < 0),
              "azc_send_to_all: %d, %d", found, tally.result);
    SIM_CHECK(which == (found ? 0 : 99), "azc_send_to_all: which is %d", which);
    SIM_CHECK(tally.messages == !found && tally.bytes == (found ? 0 : it->length),
              "azc_send_to_all: %llu messages, %llu bytes",
              (unsigned long long)tally.messages, (unsigned long long)tally.bytes);
    return tally.result;
}

/* Other callers may send meanwhile, but not to the bound port. */
static ssize_t send_bound(op *it, const uint64_t *sizes) {
    chan *channel = it->channel;
    azc_id azc = channel->azc;
    bool to_all = !it->nends && sim_chance(200);
    it->asks_room = !it->nends && !to_all && sim_chance(200);
    channel->has_bound = true;
    azc_bind_port(azc, port_number(it->port), it->token, 5);
    op_enters(it);
    int messages = it->nends ? it->nends : 1;
    int r = to_all ? send_to_all(it)
                   : azc_send_bound(azc, it->token, it->data, it->length, messages,
                                    it->asks_room);
    op_leaves(it);
    if (r == -EINPROGRESS) tell_sizes(it, sizes);
    channel->has_bound = false;
    return r;
}

static ssize_t send_pieces(op *it, const uint64_t *sizes) {
    int count;
    struct iovec *vec = cut_into_pieces(it, &count);
    it->asks_room = sim_chance(512);
    op_enters(it);
    ssize_t r = azc_sendv(it->channel->azc, port_number(it->port), it->token, vec,
                          count, sizes, it->nends, it->asks_room);
    op_leaves(it);
    free(vec);
    return r;
}

static void step_send(chan *channel) {
    op *it = draw_send(channel);
    spoil(it);
    if (sim_chance(250)) cut_into_messages(it);
    sim_trace("send %ld on channel %ld, %ld bytes", (int64_t)it->token,
              channel - channels, (int64_t)it->length);
    it->bound = !channel->has_bound && sim_chance(400);
    uint64_t *sizes = sizes_of_messages(it);
    ports_expect(it, channel->port);
    ssize_t r = it->bound ? send_bound(it, sizes) : send_pieces(it, sizes);
    free(sizes);
    sim_trace("send %ld returns %ld", (int64_t)it->token, r, 0);
    judge_submission(it, r);
}

/* A caller that was interrupted after its call can still ask how that ended. */
static void ask_after_receive(op *it) {
    azc_event event;
    if (it->end != BY_RETURN || it->status || it->channel->freed) return;
    int r = azc_cancel(it->channel->azc, it->token, 0, &event);
    SIM_CHECK(r == AZC_OVER, "a cancel of what is over: %d", r);
    SIM_CHECK(event.token == it->token || sim_callers > 1 || it->channel->freed,
              "nobody knows of operation %ld", (long)it->token);
    SIM_CHECK(event.token != it->token || event.sent == it->bytes,
              "operation %ld has %ld bytes", (long)it->token, (long)event.sent);
}

/* Receives only bytes that are there, perhaps none. */
static ssize_t receive_now(op *it) {
    uint64_t come = 0;
    ssize_t r = azc_recv_now(it->channel->azc, it->data, it->length, it->need, &come);
    SIM_CHECK(come <= it->length && (r == (ssize_t)come || (r < 0 && !come)),
              "azc_recv_now: %ld", (long)r);
    if (come < it->need) it->need = come;
    return r;
}

static void step_receive(chan *channel) {
    op *it = draw_receive(channel);
    it->need = sim_chance(512) ? it->length : 1 + sim_below(it->length);
    if (it->need > it->length) it->need = it->length;
    spoil(it);
    sim_trace("receive %ld on channel %ld, %ld bytes", (int64_t)it->token,
              channel - channels, (int64_t)it->length);
    ports_expect(it, channel->port);
    op_enters(it);
    bool now = sim_chance(200);
    ssize_t r = now ? receive_now(it)
                    : azc_recv(channel->azc, port_number(it->port), it->token, it->data,
                               it->length, it->need, NULL);
    op_leaves(it);
    sim_trace("receive %ld returns %ld", (int64_t)it->token, r, 0);
    it->idle = now && r == 0;
    judge_submission(it, r);
    channel->immediate -= it->idle;
    if (!now && sim_chance(300)) ask_after_receive(it);
}

static void step_submit(void) {
    chan *channel = draw_channel(true);
    if (!channel || channel->lost || op_count > OPS - 20) return;
    channel->calls++;
    if (channel->out)
        step_send(channel);
    else
        step_receive(channel);
    channel->calls--;
}

static uint64_t draw_rescue_limit(const op *it) {
    switch (sim_below(4)) {
    case 0:
        return sim_below(it->length + 2);
    case 1:
        return it->length;
    default:
        return 64 << 20;
    }
}

static void cancel(op *it) {
    azc_event event = {0};
    bool on_copy = bounced(it->channel), was_calling = it->calling;
    if (!it->cancelling) it->limit = draw_rescue_limit(it);
    it->cancelling = true;
    op_is_cancelled(it, true);
    int r = azc_cancel(it->channel->azc, it->token, it->limit, &event);
    op_is_cancelled(it, false);
    it->later |= r == AZC_LATER;
    sim_trace("cancel %ld: %ld", (int64_t)it->token, r, 0);
    SIM_CHECK(r >= AZC_DROPPED && r <= AZC_KEPT && r != AZC_REFUSED, "azc_cancel: %d",
              r);
    azc_stats stats;
    bool broke = azc_get_stats(it->channel->azc, &stats) < 0 || stats.error;
    SIM_CHECK(r != AZC_LATER || !on_copy || broke || kernel_excuses.kept,
              "a cancel waits for a call on a copy");
    if (r == AZC_LATER || (r == AZC_OVER && was_calling)) return;
    if (r != AZC_OVER && !it->end) it->promise = r;
    /* The event of an operation that is over may still say that its memory is kept. */
    bool kept = r == AZC_KEPT || (kernel_excuses.kept && it->lent && !it->end);
    if (!kept) op_give_back(it);
}

static void step_cancel(void) {
    if (!op_count) return;
    uint64_t recent = 1 + sim_below(op_count < 12 ? (uint64_t)op_count : 12);
    op *it = &ops[(uint64_t)op_count - recent];
    if (it->kind == CLOSE || it->end) return;
    if (it->channel->freed && sim_chance(800)) return;
    cancel(it);
}

static void move_to_copy(op *it) {
    /* (another caller could see the end before this one knows the new message) */
    bool replaces = sim_callers == 1 && sim_chance(512);
    op newer = op_newer(it);
    unsigned char *copy = op_copy(it), *fresh = op_copy(&newer);
    struct iovec vec = {fresh, newer.length};
    int r;
    it->copy = copy;
    it->was_moved = true;
    azc_move_to_copy(&it->channel->azc, &it->token, 1, copy, it->length, &vec, replaces,
                     &r);
    sim_trace("move %ld to a copy: %ld", (int64_t)it->token, r, 0);
    SIM_CHECK(r == 0 || r == -EINPROGRESS || (r == 1 && replaces) || r < 0,
              "azc_move_to_copy: %d", r);
    world.moved += r >= 0;
    if (r == 1) {
        op_goes_on(it, fresh);
        it->content = newer.content;
        it->length = it->bad_from = it->need = newer.length;
    } else {
        free(fresh);
    }
    /* (the event of its end may have freed the copy) */
    if (r == 0 && it->copy) {
        op_goes_on(it, copy);
        it->copy = NULL;
    } else if (r != -EINPROGRESS) {
        free(it->copy);
        it->copy = NULL;
    }
}

static void step_move(void) {
    if (!op_count) return;
    uint64_t recent = 1 + sim_below(op_count < 12 ? (uint64_t)op_count : 12);
    op *it = &ops[(uint64_t)op_count - recent];
    bool is_plain = it->kind == SEND && !it->nends && !it->asks_room;
    if (!is_plain || it->twin || it->end || it->back || it->copy || it->calling ||
        !it->length || it->bad_from < it->length)
        return;
    move_to_copy(it);
}

static void check_closed(chan *channel) {
    SIM_CHECK(channel->opposite || !channel->file->open || channel->file->stolen,
              "closed, but the fd is open");
    SIM_CHECK(azc_fd(channel->azc) == -ESHUTDOWN, "closed, but it has an fd");
}

static void close_channel(chan *channel) {
    bool again = channel->close_asked, on_copy = bounced(channel);
    bool tells = sim_chance(800);
    op *it = op_new(channel, CLOSE, 0);
    channel->closing = true;
    ports_expect(it, channel->port);
    int r = azc_close(channel->azc, tells ? port_number(it->port) : 0, it->token);
    sim_trace("close %ld of channel %ld: %ld", (int64_t)it->token, channel - channels,
              r);
    bool queued = r == -EINPROGRESS && tells;
    ports_submitted(it, queued);
    if (!queued) it->end = BY_RETURN;
    if (r == -ENOMEM || channel->freed) return;
    channel->flow->no_more = true;
    channel->close_asked = true;
    channel->bounced |= bounced(channel); /* a FIFO becomes bounced once */
    const azc_channel *azc = channel_inside(channel);
    SIM_CHECK(!on_copy || !azc || !azc->queue.ops,
              "operations wait for a call on a copy");
    if (again) SIM_CHECK(r == -EALREADY, "closed twice: %d", r);
    if (r == 1) check_closed(channel);
    SIM_CHECK(r == 1 || r == -EALREADY || r == -EINPROGRESS, "azc_close: %d", r);
}

static void step_close(void) {
    chan *channel = draw_channel(true);
    if (channel && op_count < OPS - 20) close_channel(channel);
}

/* Frees it at any time, even while others call it. */
static void free_channel(chan *channel) {
    if (channel->freed) return;
    channel->freed = channel->closing = true;
    sim_trace("free channel %ld", channel - channels, 0, 0);
    int r = azc_free(channel->azc);
    SIM_CHECK(r == 0, "azc_free: %d", r);
    channel->gone = true;
    channel->flow->no_more = true;
}

static void step_free(void) {
    chan *channel = draw_channel(false);
    if (channel) free_channel(channel);
}

/* Calls with a number whose slot belongs to another channel, or is free. */
static void step_late(void) {
    chan *channel = &channels[sim_below((uint64_t)channel_count)];
    azc_id azc = channel->azc, other;
    azc_stats stats;
    azc_event event;
    char byte = 1;
    struct iovec vec = {&byte, 1};
    ports_call_late();
    if (!channel->gone) return;
    sim_trace("channel %ld is called late", channel - channels, 0, 0);
    int answers[] = {
        azc_send_bound(azc, 1, &byte, 1, 1, 0),
        azc_sendv(azc, 0, 1, &vec, 1, NULL, 0, 0),
        (int)azc_recv(azc, 0, 1, &byte, 1, 1, NULL),
        (int)azc_recv_now(azc, &byte, 1, 1, &stats.bytes),
        azc_get_stats(azc, &stats),
        azc_set_limit(azc, 1),
        azc_bind_port(azc, 0, 1, 1),
        azc_set_sizes(azc, 1, NULL, 0),
        azc_open_opposite(azc, &other),
        azc_shutdown(azc),
        azc_fd(azc),
        azc_close(azc, 0, 1),
        azc_free(azc),
    };
    int count = (int)(sizeof answers / sizeof *answers);
    for (int i = 0; i < count; i++)
        SIM_CHECK(answers[i] == -ESHUTDOWN ||
                      (answers[i] == -ENOMEM && kernel_excuses.no_memory),
                  "late call %d: %d", i, answers[i]);
    SIM_CHECK(azc_cancel(azc, OPS + 1, 1, &event) == AZC_OVER, "a late cancel");
}

static void step_shutdown(chan *channel) {
    if (!channel->out || channel->opposite || channel->lost) return;
    int r = azc_shutdown(channel->azc);
    SIM_CHECK(r == 0 || r == -ESHUTDOWN, "azc_shutdown: %d", r);
    sim_trace("shutdown of channel %ld: %ld", channel - channels, r, 0);
}

static void step_look(void) {
    chan *channel = draw_channel(false);
    azc_stats stats;
    if (!channel) return;
    int r = azc_get_stats(channel->azc, &stats);
    SIM_CHECK(r == 0 || channel->freed, "azc_get_stats: %d", r);
    SIM_CHECK(r < 0 || stats.queued_bytes == 0 || stats.queued,
              "%ld bytes of no operation", (long)stats.queued_bytes);
    SIM_CHECK(r < 0 || !stats.waiting || stats.queued,
              "%ld operations wait for nothing", (long)stats.waiting);
    int fd = azc_fd(channel->azc);
    SIM_CHECK(fd == channel->file->number || fd == -ESHUTDOWN, "fd %d", fd);
    if (sim_chance(50)) step_shutdown(channel);
    if (sim_chance(50)) draw_limit(channel);
}

static void step_open(void) {
    chan *channel = draw_channel(true);
    bool can_open = channel_count < CHANNELS - 3 * CALLERS;
    if (can_open && sim_chance(512))
        open_channel();
    else if (can_open && channel && channel->file->kind == SOCKET &&
             !channel->opposite && !channel->file->stolen)
        open_opposite(channel);
    else if (sim_chance(256))
        ports_renew_one();
}

/* Frees a channel whose number was stolen, before its pump has noticed. */
static void step_free_stolen(void) {
    chan *channel = world.stolen;
    world.stolen = NULL;
    if (op_count > OPS - 20 || channel->closing) return;
    close_channel(channel);
    free_channel(channel);
}

static void take_step(int caller) {
    (void)caller;
    uint64_t kind = sim_below(1000);
    if (world.stolen)
        step_free_stolen();
    else if (kind < 600)
        step_submit();
    else if (kind < 720)
        step_cancel();
    else if (kind < 740)
        step_move();
    else if (kind < 930)
        ports_take_some();
    else if (kind < 950)
        step_look();
    else if (kind < 962)
        step_late();
    else if (kind < 970)
        step_open();
    else if (kind < 983)
        step_close();
    else
        step_free();
}

/* ---- the peer's steps ------------------------------------------------ */

/* A number is stolen only while bytes wait for the pump: then the pump is next to look
 * at the fd, and must notice. */
static bool can_be_stolen(const chan *channel) {
    const azc_channel *azc = channel_inside(channel);
    return azc && !channel->opposite && !channel->freed && !channel->closing &&
           !channel->file->stolen && azc->state == OPEN && !azc->driving &&
           azc->pumping.pump && azc->queue.head && azc->queue.head->note &&
           !sim_mutex_is_held(&azc->slot->lock);
}

/* Another channel of ours gets the number: neither may touch the other. */
static void succeed(chan *channel) {
    int kind = sim_chance(700) ? SOCKET : PIPE;
    bool out = sim_chance(700) ? channel->out : sim_chance(512);
    azc_id azc;
    sim_file *file = kernel_new_successor(channel->file, kind, 1);
    channel->lost = true;
    while (azc_open(file->number, out ? AZC_OUT : AZC_IN, &azc) < 0) {
    }
    chan *it = new_channel(file, out);
    it->azc = azc;
    sim_trace("channel %ld: fd %ld, kind %ld", it - channels, file->number, kind);
}

static void steal(chan *channel) {
    if (!can_be_stolen(channel)) return;
    sim_trace("fd %ld is a stranger's now", channel->file->number, 0, 0);
    peer_steal(channel->file);
    bool can_succeed = !channel->calls && channel_count < CHANNELS - CALLERS;
    if (can_succeed && sim_chance(512)) succeed(channel);
    if (sim_chance(400)) world.stolen = channel;
}

static void stall(chan *channel) {
    int kind = channel->file->kind;
    if (kind == SOCKET || kind == REGULAR) return;
    channel->flow->stalled = !channel->flow->stalled;
    sim_faults[FAULT_STALLED] += channel->flow->stalled;
    sim_trace("fd %ld stalled: %ld", channel->file->number, channel->flow->stalled, 0);
}

static void peer_moves(chan *channel) {
    sim_flow *flow = channel->flow;
    size_t n = sim_chance(512) ? draw_length() : 1 + sim_below(100000);
    if (flow->may_lend && sim_chance(700)) n %= 3000;
    if (channel->out)
        peer_read(flow, n);
    else
        peer_feed(flow, n);
}

static void take_peer_step(void) {
    chan *channel = &channels[sim_below((uint64_t)channel_count)];
    uint64_t kind = sim_below(1000);
    if (kind < 850) {
        peer_moves(channel);
    } else if (kind < 900) {
        kernel_report_falsely();
    } else if (kind < 930) {
        stall(channel);
    } else if (kind < 950) {
        channel->flow->starving = !channel->flow->starving;
    } else if (kind < 960) {
        steal(channel);
    } else if (kind < 965) {
        peer_end(channel->flow, channel->out      ? -EPIPE
                                : sim_chance(512) ? -ECONNRESET
                                                  : 0);
        sim_trace("the peer of fd %ld ends", channel->file->number, 0, 0);
    } else if (kind < 970) {
        if (channel->file->kind == PIPE) peer_unset_nonblock(channel->file);
    } else if (kind < 978) {
        kernel_rates = kernel_draw_rates();
    }
}

static void unstall_all(void) {
    for (int i = 0; i < channel_count; i++) channels[i].flow->stalled = false;
}

/* ---- the end of a seed ----------------------------------------------- */

/* The faults stop, and the peers read on and write no more.  Now and then the kernel
 * stays out of memory, until the helper gives up. */
static void let_flow(void) {
    kernel_set_faults(false);
    unstall_all();
    for (int i = 0; i < channel_count; i++) {
        sim_flow *flow = channels[i].flow;
        flow->starving = flow->starving && sim_chance(100);
        flow->capacity = (size_t)1 << 40;
        flow->reads_on = true;
        if (!channels[i].out) peer_feed(flow, 5000);
        if (!channels[i].out) peer_end(flow, 0);
    }
}

/* Rests until there are no more events. */
static void rest(void) {
    do sim_idle();
    while (ports_take_all());
}

static void check_all(void) {
    for (int i = 0; i < channel_count; i++) {
        if (channels[i].out) peer_read_remains(channels[i].flow);
        channel_check(&channels[i]);
        if (!channels[i].freed && !channels[i].closing)
            channel_check_stats(&channels[i]);
    }
}

/* In the child, old numbers name and touch nothing; new ones work. */
static void play_child(void) {
    azc_stats stats;
    azc_event event;
    char byte = 1;
    struct iovec vec = {&byte, 1};
    kernel_in_child = true;
    kernel_set_faults(false);
    sim_fork_ends();
    azc_id port = port_number(0), azc;
    for (int i = 0; i < channel_count; i++) {
        azc = channels[i].azc;
        if (channels[i].freed) continue;
        SIM_CHECK(azc_sendv(azc, 0, 1, &vec, 1, NULL, 0, 0) == -ECHILD &&
                      azc_send_bound(azc, 1, &byte, 1, 1, 0) == -ECHILD,
                  "a child sends");
        SIM_CHECK(azc_get_stats(azc, &stats) == -ECHILD, "a child's stats");
        SIM_CHECK(azc_close(azc, 0, 1) == -ECHILD, "a child closes");
        SIM_CHECK(azc_free(azc) == -ECHILD, "a child frees");
    }
    SIM_CHECK(azc_port_take(port, 0, &event, 1) == -ECHILD ||
                  azc_port_take(port, 0, &event, 1) == -ESHUTDOWN,
              "a child's port");
    SIM_CHECK(!pool || azc_pool_close(pool) == -ECHILD, "a child's pool");
    open_pool();
    SIM_CHECK(pool && azc_pool_close(pool) == 0, "a child has no pool");
    channel_count = 0;
    sim_file *file = kernel_new_file(SOCKET, 1);
    SIM_CHECK(azc_port_open(&port) == 0, "a child opens a port");
    SIM_CHECK(azc_open(file->number, AZC_OUT, &azc) == 0, "a child opens");
    vec = (struct iovec){"ab", 2};
    int r = azc_sendv(azc, port, 1, &vec, 1, NULL, 0, 0);
    SIM_CHECK(r == -EINPROGRESS, "a child sends: %d", r);
    file->flow[1].capacity = 2;
    sim_idle();
    SIM_CHECK(azc_port_take(port, 0, &event, 1) == 1 && !event.status, "a child waits");
    _exit(0);
}

static void fork_now(void) {
    int status = 0;
    pid_t child = sim_fork();
    if (child == 0) play_child();
    SIM_CHECK(child < 0 || waitpid(child, &status, 0) == child, "no child");
    SIM_CHECK(status == 0, "the child failed");
}

static void stop(int ms) {
    for (int i = 0; i < channel_count; i++)
        channels[i].closing = channels[i].close_asked = true;
    int r = azc_stop(ms);
    SIM_CHECK(r >= 0 || r == -ETIMEDOUT, "azc_stop: %d", r);
}

static void close_all(void) {
    for (int i = 0; i < channel_count; i++)
        if (!channels[i].freed && !channels[i].close_asked) close_channel(&channels[i]);
}

static void check_closed_ones(void) {
    for (int i = 0; i < channel_count; i++) {
        azc_id none;
        if (channels[i].freed) continue;
        SIM_CHECK(azc_open_opposite(channels[i].azc, &none) == -EBADF,
                  "the opposite of a closed one");
    }
}

static void free_all(void) {
    for (int i = 0; i < channel_count; i++) free_channel(&channels[i]);
}

/* A cancel, or a move to a copy, may wait for a system call, but not for a peer that
 * neither reads nor writes. */
static void check_cancels(void) {
    kernel_set_faults(false);
    unstall_all();
    rest();
    for (int i = 0; i < op_count; i++) {
        const op *it = &ops[i];
        SIM_CHECK(!it->later || it->end || it->channel->freed,
                  "the cancel of operation %ld waits for the peer", (long)it->token);
        SIM_CHECK(!it->copy || it->end || it->channel->freed,
                  "operation %ld does not go on from its copy", (long)it->token);
    }
}

/* Everything ends, is checked, and is freed. */
static void end_in_order(uint64_t seed) {
    if (sim_chance(512)) check_cancels();
    let_flow();
    if (seed % 500 == 377) fork_now(); /* in the middle of everything */
    rest();
    check_all();
    SIM_CHECK(azc_unsent() == 0, "%ld bytes are unsent", (long)azc_unsent());
    if (seed % 500 == 77) fork_now();
    if (sim_chance(200)) stop(3);
    close_all();
    rest();
    check_closed_ones();
    free_all();
}

/* In some seeds, no caller waits for its operations. */
static void end_abruptly(void) {
    if (sim_chance(200)) stop(2);
    free_all();
    let_flow();
    rest();
    check_all();
}

static const sim_cast cast = {STEPS, take_step, take_peer_step, unstall_all};

static void run_seed(uint64_t seed, bool verbose) {
    sim_begin(seed, verbose);
    kernel_begin();
    oracle_begin();
    begin_world();
    seeds_play(&cast);
    if (sim_chance(100))
        end_abruptly();
    else
        end_in_order(seed);
    rest();
    ports_end();
    oracle_close_pool();
    sim_idle();
    sim_end();
    oracle_end();
    kernel_end();
}

static void print_summary(uint64_t seeds) {
    printf("%llu seeds, %llu steps, %llu bytes, %llu lent, %llu taken back,"
           " %llu twins, %llu moved, %llu turns of loops; faults:",
           (unsigned long long)seeds, (unsigned long long)sim_steps,
           (unsigned long long)sim_bytes, (unsigned long long)sim_lent,
           (unsigned long long)sim_taken_back, (unsigned long long)sim_twins,
           (unsigned long long)world.moved, (unsigned long long)ports_moves);
    for (int i = 0; i < FAULTS; i++)
        printf("%s %llu %s", i ? "," : "", (unsigned long long)sim_faults[i],
               sim_fault_names[i]);
    putchar('\n');
}

int main(int argc, char **argv) {
    print_summary(seeds_run(argc, argv, run_seed));
    return 0;
}
