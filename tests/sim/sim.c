/* sim.c - seeded scenarios for the C helper over the simulated kernel.
 *
 * Usage: sim [--seeds N] [--from S] [--verbose]
 *            [--sabotage order|tail|rescue|identity|loan|detach|gap]
 *            [--lend-to pipes|sockets]   (both, if it is not said)
 *
 * A seed opens a few channels on pipes, FIFOs, ttys, sockets, files and
 * devices.  Up to three callers and a peer then take 200 steps together while
 * the helper's own threads run between and inside them: sending, batches,
 * receiving, cancelling, closing, freeing, draining ports; reading, feeding,
 * stalling, dying, running out of memory, taking an fd number away.  Then the
 * faults stop, the peers read on, and everything has to come to its end.
 *
 * What is checked is in oracle.h and kernel.h.  The first seed that fails is
 * printed with its last steps, and the exit status is 1.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "oracle.h"
#include "threads.h"

enum { STEPS = 200, CALLERS = 3, PIECES_MAX = 1500 };

static struct {
    azc_port *ports[PORTS];
    bool draining[PORTS];
    int callers, busy_callers, first_caller;
    int steps_left;
    chan *stolen;   /* to be closed at once */
    bool no_pipe_lends, no_socket_lends; /* all seeds together */
    uint64_t steps; /* all seeds together */
} world;

/* ---- drawing --------------------------------------------------------- */

static unsigned draw_rate(unsigned often) {
    const unsigned rates[] = {0, 8, 60, often};
    return rates[sim_below(4)];
}

static sim_rates draw_rates(void) {
    sim_rates rates = {0};
    if (sim_chance(256)) return rates; /* a calm kernel */
    rates.cut = draw_rate(700);
    rates.again = draw_rate(300);
    rates.interrupted = draw_rate(200);
    rates.starved = draw_rate(200);
    rates.spurious = draw_rate(500);
    if (sim_chance(256)) rates.broken = draw_rate(100) / 4;
    if (sim_chance(200)) rates.no_memory = draw_rate(150);
    if (sim_chance(150)) rates.no_thread = draw_rate(400);
    if (sim_chance(150)) rates.no_fd = draw_rate(200);
    if (sim_chance(256)) rates.refused = draw_rate(200) / 2;
    if (sim_chance(256)) rates.no_pages = draw_rate(600);
    rates.no_room = draw_rate(300);
    if (sim_chance(256)) rates.copied = draw_rate(200);
    return rates;
}

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

static size_t draw_capacity(void) {
    static const size_t sizes[] = {1, 4096, 8192, 65536, 1 << 20};
    return sizes[sim_below(5)];
}

static chan *draw_channel(bool for_calls) {
    if (!channel_count) return NULL;
    chan *it = &channels[sim_below((uint64_t)channel_count)];
    return it->freed || !it->azc ||
                   (for_calls && it->closing && sim_chance(800))
               ? NULL
               : it;
}

/* ---- opening --------------------------------------------------------- */

static void open_ports(void) {
    for (int i = 0; i < PORTS; i++) {
        int r = azc_port_open(&world.ports[i]);
        if (r < 0) {
            SIM_CHECK(r == -ENOMEM || r == -EMFILE, "port: %d", r);
            kernel_set_faults(false);
            r = azc_port_open(&world.ports[i]);
            kernel_set_faults(true);
        }
        SIM_CHECK(r == 0, "port: %d", r);
    }
}

/* Slots of one to six pages, and now and then of more than a huge one. */
static void open_pool(void) {
    slot_bytes = 4096 * sim_below(6) + 1 + sim_below(4096);
    if (sim_chance(30)) slot_bytes += 1 << 20;
    int r = azc_pool_open(slot_bytes, SLOTS, &pool);
    SIM_CHECK(r == 0 || kernel_excuses.no_memory || kernel_excuses.no_pages,
              "azc_pool_open: %d", r);
    if (r < 0) pool = NULL;
}

static chan *new_channel(sim_file *file, bool out) {
    chan *it = &channels[channel_count++];
    it->file = file;
    it->out = out;
    it->flow = &file->flow[out];
    it->port = world.ports[sim_below(PORTS)];
    return it;
}

static void open_opposite(chan *first) {
    if (channel_count == CHANNELS || !sim_chance(300)) return;
    chan *it = new_channel(first->file, !first->out);
    int r = azc_open_opposite(first->azc, &it->azc);
    if (r < 0) {
        SIM_CHECK(r == -ENOMEM, "azc_open_opposite: %d", r);
        channel_count--;
        return;
    }
    first->opposite = it->opposite = true;
    sim_trace("channel %ld: fd %ld, the opposite", it - channels,
              first->file->number, 0);
}

static void open_channel(void) {
    int kind = sim_chance(600) ? (int)sim_below(2) : (int)sim_below(KINDS);
    bool out = sim_chance(700);
    sim_file *file = kernel_new_file(kind, draw_capacity());
    chan *it = new_channel(file, out);
    int flags = out ? AZC_OUT : AZC_IN, r;
    if (kind == PIPE && sim_chance(300)) flags |= AZC_OWN;
    if ((kind == PIPE || kind == FIFO) && sim_chance(250))
        flags |= AZC_UNTRUSTED;
    if ((kind == PIPE || kind == FIFO) && out && pool && sim_chance(700) &&
        !world.no_pipe_lends)
        flags |= AZC_READS | (sim_chance(900) ? AZC_OWN : 0);
    if (kind == SOCKET && out && pool && sim_chance(700) &&
        !world.no_socket_lends)
        flags |= AZC_ZEROCOPY;
    it->lends = (flags & AZC_READS && !(flags & AZC_UNTRUSTED)) ||
                flags & AZC_ZEROCOPY;
    it->flow->may_lend = it->lends;
    SIM_CHECK(azc_open(file->number, AZC_IN | AZC_OUT, &it->azc) == -EINVAL,
              "a channel in both directions");
    r = azc_open(-1, flags, &it->azc);
    SIM_CHECK(r == -EBADF || r == -ENOMEM, "azc_open of no fd: %d", r);
    while ((r = azc_open(file->number, flags, &it->azc)) < 0)
        SIM_CHECK(r == -ENOMEM, "azc_open: %d", r);
    sim_trace("channel %ld: fd %ld, kind %ld", it - channels, file->number,
              kind);
    if (kind == SOCKET) open_opposite(it);
}

static void begin_world(void) {
    kernel_rates = draw_rates();
    open_ports();
    if (sim_chance(700)) open_pool();
    int count = 1 + (int)sim_below(4);
    while (channel_count < count) open_channel();
    world.steps_left = STEPS / 4 + (int)sim_below(STEPS * 3 / 4 + 1);
    world.callers = world.busy_callers = 1 + (int)sim_below(CALLERS);
    world.stolen = NULL;
    memset(world.draining, 0, sizeof world.draining);
}

/* ---- the callers' steps ---------------------------------------------- */

static bool bounced(const chan *channel) { return channel->azc->lane->bounced; }

/* Cuts an operation's memory into pieces, empty ones among them. */
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

/* For the call alone: a copy that is freed at once after it. */
static uint64_t *sizes_of_messages(const op *it) {
    if (!it->nends) return NULL;
    uint64_t *sizes = malloc((size_t)it->nends * sizeof *sizes);
    if (!sizes) abort();
    for (int i = 0; i < it->nends; i++)
        sizes[i] = it->ends[i] - (i ? it->ends[i - 1] : 0);
    return sizes;
}

static void judge_submission(op *it, ssize_t r) {
    if (r == -EINPROGRESS) return;
    if (r >= 0) {
        it->channel->immediate++;
        op_ends(it, BY_RETURN, 0, (uint64_t)r, 0);
    } else {
        op_ends(it, BY_RETURN, (int)r, 0, 0);
    }
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
    if (sim_chance(300))
        it = op_new_in_slot(channel, RECEIVE, draw_length_in_slot());
    return it ? it : op_new(channel, RECEIVE, draw_length() % 100000);
}

static void step_send(chan *channel) {
    op *it = draw_send(channel);
    bool batch = sim_chance(250);
    if (it->length && it->slot < 0 && sim_chance(15)) {
        it->bad_from = sim_below(it->length);
        kernel_mark_bad(it->data + it->bad_from, it->length - it->bad_from);
    }
    if (batch) cut_into_messages(it);
    sim_trace("send %ld on channel %ld, %ld bytes", (int64_t)it->token,
              channel - channels, (int64_t)it->length);
    it->home = !channel->at_home && sim_chance(400);
    uint64_t *sizes = sizes_of_messages(it);
    op_enters(it);
    ssize_t r;
    if (it->home) {
        channel->at_home = true;
        azc_set_home(channel->azc, channel->port, it->token, 5);
        r = batch ? azc_send_batch(channel->azc, it->data, it->length, sizes,
                                   it->nends)
                  : azc_send_home(channel->azc, it->data, it->length);
        if (r >= 0) r = (ssize_t)it->length;
        channel->at_home = false;
    } else if (batch || sim_chance(400)) {
        int count;
        struct iovec *vec = cut_into_pieces(it, &count);
        r = azc_sendv(channel->azc, channel->port, it->token, vec, count, sizes,
                      it->nends);
        free(vec);
    } else {
        r = azc_send(channel->azc, channel->port, it->token, it->data,
                     it->length);
    }
    free(sizes);
    op_leaves(it);
    sim_trace("send %ld returns %ld", (int64_t)it->token, r, 0);
    judge_submission(it, r);
}

static void step_receive(chan *channel) {
    op *it = draw_receive(channel);
    it->need = sim_chance(512) ? it->length : 1 + sim_below(it->length);
    if (it->need > it->length) it->need = it->length;
    sim_trace("receive %ld on channel %ld, %ld bytes", (int64_t)it->token,
              channel - channels, (int64_t)it->length);
    op_enters(it);
    ssize_t r = azc_recv(channel->azc, channel->port, it->token, it->data,
                         it->length, it->need);
    op_leaves(it);
    sim_trace("receive %ld returns %ld", (int64_t)it->token, r, 0);
    judge_submission(it, r);
}

static void step_submit(void) {
    chan *channel = draw_channel(true);
    if (!channel || op_count > OPS - 20) return;
    if (channel->out)
        step_send(channel);
    else
        step_receive(channel);
}

static uint64_t draw_limit(const op *it) {
    switch (sim_below(4)) {
    case 0:
        return sim_below(it->length + 2);
    case 1:
        return it->length;
    default:
        return 64 << 20;
    }
}

/* A rescue may fail, but not without a reason. */
static void check_refusal(const op *it, uint64_t limit) {
    SIM_CHECK(limit < it->length || kernel_excuses.no_memory ||
                  it->bad_from < it->length,
              "operation %ld: a rescue was refused", (long)it->token);
}

static void step_cancel(void) {
    if (!op_count) return;
    uint64_t recent = 1 + sim_below(op_count < 12 ? (uint64_t)op_count : 12);
    op *it = &ops[(uint64_t)op_count - recent];
    chan *channel = it->channel;
    if (it->kind == CLOSE || it->end || channel->freed) return;
    azc_event event = {0};
    uint64_t limit = draw_limit(it);
    bool on_copy = bounced(channel);
    it->cancelling = true;
    channel->users++;
    int r = azc_cancel(channel->azc, it->token, limit, &event);
    channel->users--;
    sim_trace("cancel %ld: %ld", (int64_t)it->token, r, 0);
    if (r == AZC_LATER)
        SIM_CHECK(!on_copy, "a cancel waits for a call on a copy");
    if (r == -ENOENT || r == AZC_LATER) return;
    SIM_CHECK(event.token == it->token, "a cancel of something else");
    if (r < 0) SIM_CHECK(r == -ENOBUFS, "azc_cancel: %d", r);
    if (r < 0) check_refusal(it, limit);
    if (r == AZC_RESCUED)
        SIM_CHECK(op_cut(it, event.bytes) - event.bytes <= limit,
                  "more than the limit was copied");
    op_ends(it, BY_CANCEL, r < 0 ? r : -ECANCELED, event.bytes, r);
}

static void judge_event(const azc_event *event) {
    op_ends(op_of(event->token), BY_EVENT, event->status, event->bytes,
            event->outcome);
}

/* Only one at a time, so that the order of the events is known. */
static void drain(int i) {
    azc_event events[16];
    int max = 1 + (int)sim_below(16), count = max;
    if (world.draining[i]) return;
    world.draining[i] = true;
    while (count == max && kernel_signalled(azc_port_fd(world.ports[i]))) {
        count = azc_port_drain(world.ports[i], events, max);
        SIM_CHECK(count >= 0 && count <= max, "azc_port_drain: %d", count);
        for (int k = 0; k < count; k++) judge_event(&events[k]);
    }
    world.draining[i] = false;
}

static void step_drain(void) { drain((int)sim_below(PORTS)); }

static void check_closed(chan *channel) {
    channel->closed = true;
    SIM_CHECK(channel->opposite || !channel->file->open ||
                  channel->file->stolen,
              "closed, but the fd is open");
    SIM_CHECK(azc_fd(channel->azc) == -1, "closed, but it has an fd");
}

static void close_channel(chan *channel) {
    bool again = channel->close_asked;
    op *it = op_new(channel, CLOSE, 0);
    bool on_copy = bounced(channel);
    channel->closing = true;
    channel->users++;
    int r = azc_close(channel->azc, channel->port, it->token);
    channel->users--;
    sim_trace("close %ld of channel %ld: %ld", (int64_t)it->token,
              channel - channels, r);
    if (r == -ENOMEM) {
        it->end = BY_RETURN;
        return;
    }
    channel->flow->no_more = true;
    channel->close_asked = true;
    channel->bounced |= bounced(channel); /* a FIFO becomes it, once */
    SIM_CHECK(!on_copy || !channel->azc->queue.ops,
              "operations wait for a call on a copy");
    if (r == -EINPROGRESS) return;
    it->end = BY_RETURN;
    if (again) SIM_CHECK(r == -EALREADY, "closed twice: %d", r);
    if (r == 1) check_closed(channel);
    SIM_CHECK(r == 1 || r == -EALREADY, "azc_close: %d", r);
}

static void step_close(void) {
    chan *channel = draw_channel(true);
    if (channel && op_count < OPS - 20) close_channel(channel);
}

/* A channel may be freed before its close has ended, if only its own thread
 * still works on it.  No other call may be in progress. */
static void free_channel(chan *channel) {
    if (channel->freed || channel->users || !channel->close_asked) return;
    channel->freed = true;
    sim_trace("free channel %ld", channel - channels, 0, 0);
    azc_free(channel->azc);
}

static void step_free(void) {
    chan *channel = draw_channel(false);
    if (channel) free_channel(channel);
}

static void step_shutdown(chan *channel) {
    if (!channel->out || channel->opposite) return;
    int r = azc_shutdown(channel->azc);
    SIM_CHECK(r == 0 || r == -ESHUTDOWN, "azc_shutdown: %d", r);
    sim_trace("shutdown of channel %ld: %ld", channel - channels, r, 0);
}

static void step_look(void) {
    chan *channel = draw_channel(false);
    azc_stats stats;
    if (!channel) return;
    channel->users++;
    int r = azc_get_stats(channel->azc, &stats);
    SIM_CHECK(r == 0, "azc_get_stats: %d", r);
    SIM_CHECK(stats.queued_bytes == 0 || stats.queued,
              "%ld bytes of no operation", (long)stats.queued_bytes);
    int fd = azc_fd(channel->azc);
    SIM_CHECK(fd == channel->file->number || fd == -1, "fd %d", fd);
    if (sim_chance(50)) step_shutdown(channel);
    channel->users--;
}

/* A channel whose number was stolen goes before its pump has noticed. */
static void step_hurry(void) {
    chan *channel = world.stolen;
    world.stolen = NULL;
    if (op_count > OPS - 20 || channel->closing) return;
    close_channel(channel);
    free_channel(channel);
}

static void take_step(void) {
    uint64_t kind = sim_below(1000);
    if (world.stolen)
        step_hurry();
    else if (kind < 600)
        step_submit();
    else if (kind < 740)
        step_cancel();
    else if (kind < 940)
        step_drain();
    else if (kind < 965)
        step_look();
    else if (kind < 980)
        step_close();
    else
        step_free();
}

static void *play_caller(void *arg) {
    (void)arg;
    while (world.steps_left > 0) {
        world.steps_left--;
        world.steps++;
        take_step();
        if (sim_chance(512)) sim_pause();
    }
    world.busy_callers--;
    return NULL;
}

static bool is_caller(int thread) {
    return thread >= world.first_caller &&
           thread < world.first_caller + world.callers;
}

/* ---- the peer's steps ------------------------------------------------ */

/* The number goes while bytes wait for the pump: the next to look at the fd
 * must be the pump, and it must notice. */
static void steal(chan *channel) {
    azc_channel *azc = channel->azc;
    if (channel->opposite || channel->freed || channel->closing) return;
    if (azc->state != OPEN || azc->driving) return;
    if (!azc->armed && !azc->pump_listed && !azc->watched) return;
    if (!azc->queue.head || !azc->queue.head->port) return;
    if (sim_mutex_is_held(&azc->lock)) return;
    sim_trace("fd %ld is a stranger's now", channel->file->number, 0, 0);
    peer_steal(channel->file);
    if (sim_chance(400)) world.stolen = channel;
}

static void stall(chan *channel) {
    int kind = channel->file->kind;
    if (kind == SOCKET || kind == REGULAR) return;
    channel->flow->stalled = !channel->flow->stalled;
    sim_faults[FAULT_STALLED] += channel->flow->stalled;
    sim_trace("fd %ld stalled: %ld", channel->file->number,
              channel->flow->stalled, 0);
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
        channel->flow->starved_long = true;
    } else if (kind < 960) {
        steal(channel);
    } else if (kind < 965) {
        peer_end(channel->flow, channel->out      ? -EPIPE
                                : sim_chance(512) ? -ECONNRESET
                                                  : 0);
        sim_trace("the peer of fd %ld ends", channel->file->number, 0, 0);
    } else if (kind < 975) {
        kernel_rates = draw_rates();
    }
}

static bool callers_are_done(void *arg) {
    (void)arg;
    return world.busy_callers == 0;
}

/* In the end it lets go of a caller that it holds in a call. */
static void *play_peer(void *arg) {
    (void)arg;
    while (world.steps_left > 0) {
        take_peer_step();
        sim_pause();
    }
    if (!sim_wait(callers_are_done, NULL, 100))
        for (int i = 0; i < channel_count; i++)
            channels[i].flow->stalled = false;
    return NULL;
}

/* ---- the end of a seed ----------------------------------------------- */

/* The faults stop, the peers read on and write no more.  Now and then the
 * kernel stays out of memory, until the helper gives up. */
static void let_flow(void) {
    kernel_set_faults(false);
    for (int i = 0; i < channel_count; i++) {
        sim_flow *flow = channels[i].flow;
        flow->stalled = false;
        flow->starving = flow->starving && sim_chance(100);
        flow->capacity = (size_t)1 << 40;
        flow->reads_on = true;
        if (!channels[i].out) peer_feed(flow, 5000);
        if (!channels[i].out) peer_end(flow, 0);
    }
}

static void drain_all(void) {
    for (int i = 0; i < PORTS; i++) drain(i);
}

/* The rest of what runs, at rest. */
static void settle(void) {
    let_flow();
    sim_idle();
    drain_all();
    for (int i = 0; i < channel_count; i++)
        channels[i].bounced |= !channels[i].freed && bounced(&channels[i]);
}

static void check_all(bool all_ended) {
    for (int i = 0; i < channel_count; i++) {
        if (channels[i].out) peer_read_remains(channels[i].flow);
        channel_check(&channels[i], all_ended);
        if (all_ended && !channels[i].freed && !channels[i].closing)
            channel_check_stats(&channels[i]);
    }
}

/* The child's channels are dead and touch nothing; new ones work. */
static void play_child(void) {
    azc_stats stats;
    char byte = 1;
    kernel_in_child = true;
    kernel_set_faults(false);
    sim_forked();
    azc_fork_child();
    for (int i = 0; i < channel_count; i++) {
        azc_channel *azc = channels[i].azc;
        if (channels[i].freed) continue;
        SIM_CHECK(azc_send(azc, channels[i].port, 1, &byte, 1) == -ECHILD,
                  "a child sends");
        SIM_CHECK(azc_get_stats(azc, &stats) == -ECHILD, "a child's stats");
        SIM_CHECK(azc_close(azc, channels[i].port, 1) == 1, "a child closes");
        azc_free(azc);
    }
    for (int i = 0; i < PORTS; i++) azc_port_close(world.ports[i]);
    if (pool) azc_pool_close(pool);
    open_pool();
    SIM_CHECK(pool, "a child has no pool");
    azc_pool_close(pool);
    channel_count = 0;
    sim_file *file = kernel_new_file(SOCKET, 1);
    azc_channel *azc = NULL;
    open_ports();
    SIM_CHECK(azc_open(file->number, AZC_OUT, &azc) == 0, "a child opens");
    ssize_t r = azc_send(azc, world.ports[0], 1, "ab", 2);
    SIM_CHECK(r == -EINPROGRESS, "a child sends: %ld", (long)r);
    file->flow[1].capacity = 2;
    sim_idle();
    SIM_CHECK(kernel_signalled(azc_port_fd(world.ports[0])), "a child waits");
    _exit(0);
}

static void fork_now(void) {
    int status = 0;
    azc_fork_prepare();
    pid_t child = fork();
    if (child == 0) play_child();
    azc_fork_parent();
    SIM_CHECK(child < 0 || waitpid(child, &status, 0) == child, "no child");
    SIM_CHECK(status == 0, "the child failed");
}

static void close_all(void) {
    if (sim_chance(200)) {
        int r = azc_stop(3);
        SIM_CHECK(r >= 0, "azc_stop: %d", r);
    }
    for (int i = 0; i < channel_count; i++)
        if (!channels[i].closing || !channels[i].close_asked)
            close_channel(&channels[i]);
    sim_idle();
    drain_all();
    for (int i = 0; i < channel_count; i++) {
        azc_channel *none;
        if (channels[i].freed) continue;
        SIM_CHECK(azc_open_opposite(channels[i].azc, &none) == -EBADF,
                  "the opposite of a closed one");
        azc_free(channels[i].azc);
        channels[i].freed = true;
    }
}

static void close_ports(void) {
    for (int i = 0; i < PORTS; i++) {
        if (world.ports[i]) azc_port_close(world.ports[i]);
        world.ports[i] = NULL;
    }
}

/* In some seeds nobody waits for the operations: their port goes first. */
static void end_abruptly(void) {
    close_ports();
    if (sim_chance(200)) {
        int r = azc_stop(2);
        SIM_CHECK(r >= 0 || r == -ETIMEDOUT, "azc_stop: %d", r);
    }
    for (int i = 0; i < channel_count; i++) {
        if (channels[i].freed) continue;
        channels[i].closing = true;
        azc_close(channels[i].azc, NULL, 0);
        azc_free(channels[i].azc);
        channels[i].freed = true;
    }
    let_flow();
    sim_idle();
}

static void run_seed(uint64_t seed, bool verbose) {
    sim_begin(seed, verbose);
    kernel_begin();
    oracle_begin();
    begin_world();
    int threads[CALLERS + 1], count = 0;
    world.first_caller = sim_self() + 1;
    kernel_is_caller = is_caller;
    while (count < world.callers) {
        threads[count] = sim_spawn(play_caller, NULL);
        if (count == 0) world.first_caller = threads[0];
        count++;
    }
    threads[count++] = sim_spawn(play_peer, NULL);
    for (int i = 0; i < count; i++) sim_join(threads[i]);
    if (sim_chance(100)) {
        for (int i = 0; i < channel_count; i++)
            channels[i].bounced |= !channels[i].freed && bounced(&channels[i]);
        end_abruptly();
        oracle_close_pool();
        check_all(false);
    } else {
        if (seed % 500 == 377) fork_now(); /* in the middle of all */
        settle();
        check_all(true);
        if (seed % 500 == 77) fork_now();
        close_all();
        close_ports();
        oracle_close_pool();
    }
    sim_idle();
    sim_end();
    oracle_end();
    kernel_end();
}

/* ---- the command line ------------------------------------------------ */

static void sabotage(const char *what) {
#ifdef AZC_SABOTAGE
    const char *const names[] = {"order", "tail", "rescue", "identity",
                                 "loan",  "detach", "gap"};
    for (int i = 0; i < 7; i++)
        if (strcmp(what, names[i]) == 0) azc_sabotage |= 1 << i;
#endif
    (void)what;
}

static void print_summary(uint64_t seeds) {
    printf("%llu seeds, %llu steps, %llu bytes, %llu lent, %llu taken back,"
           " %llu twins; faults:",
           (unsigned long long)seeds, (unsigned long long)world.steps,
           (unsigned long long)sim_bytes, (unsigned long long)sim_lent,
           (unsigned long long)sim_taken_back, (unsigned long long)sim_twins);
    for (int i = 0; i < FAULTS; i++)
        printf("%s %llu %s", i ? "," : "", (unsigned long long)sim_faults[i],
               sim_fault_names[i]);
    putchar('\n');
}

int main(int argc, char **argv) {
    SIM_CHECK(azc_portable() == 0, "this is not the portable build");
    uint64_t seeds = 1000, from = 1;
    bool verbose = false;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--verbose") == 0) {
            verbose = true;
            continue;
        }
        if (strcmp(argv[i], "--seeds") == 0) seeds = strtoull(value, NULL, 10);
        if (strcmp(argv[i], "--from") == 0) from = strtoull(value, NULL, 10);
        if (strcmp(argv[i], "--sabotage") == 0) sabotage(value);
        if (strcmp(argv[i], "--lend-to") == 0) {
            world.no_pipe_lends = strcmp(value, "sockets") == 0;
            world.no_socket_lends = strcmp(value, "pipes") == 0;
        }
        i++;
    }
    for (uint64_t i = 0; i < seeds; i++) run_seed(from + i, verbose);
    print_summary(seeds);
    return 0;
}
