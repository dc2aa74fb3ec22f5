/* relaying.c - seeded scenarios for relays over the simulated kernel.
 *
 * Usage: relaying, with the arguments of seeds.h.
 *
 * A seed opens one or two sources and one or two sinks, of any kind.  Up to three
 * callers relay from sources to sinks, receive, send blocks to the sinks, cancel and
 * close, while peers feed, read, stall and die.  Each source is used by one caller, so
 * the order in which its operations take bytes is known; received bytes may be given to
 * the next relay, to be sent first.  Then the faults stop, and everything must come to
 * its end.
 *
 * Checked
 *   - each operation ends once, and a relay's two counts of moved bytes agree
 *   - a source's operations take its bytes in their order, each byte once, and the next
 *     receive gets bytes that a relay took and could not deliver
 *   - a sink's reader gets everything that relays took, each relay in one piece, and
 *     whole blocks between relays; or a prefix of that, if the sink broke
 *   - the checks of kernel.h for every call
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "azc.h"
#include "kernel.h"
#include "seeds.h"
#include "splicing.h"
#include "threads.h"

enum {
    STEPS = 120,
    ENDS_MAX = 2, /* sources, and sinks */
    OPS = 240,
    RECEIVED_MAX = 6000,
    BLOCK_MAX = 90, /* so that its first byte is never the poison of kernel.c */
    LANES = 4,
};

enum op_kind { RELAY, RECEIVE, BLOCK };

typedef struct op {
    int kind, source, sink;
    bool queued, over; /* queued, but not over: an event reports the end */
    bool broke;        /* a relay whose sink broke */
    int status;
    uint64_t bytes;
    azc_id relay;
    azc_relay_state state; /* of a relay, after its end */
    uint64_t first;        /* bytes that it was given to send first */
    unsigned char *data;
} op;

typedef struct end {
    azc_id channel;
    sim_file *file;
    bool torn;        /* closed or broken */
    uint64_t held;    /* source: bytes of its caller's last receive */
    int relayed[OPS]; /* sink: its relays, in the order of their ends */
    int count;
    uint64_t blocks; /* sink: blocks that must arrive */
} end;

static struct {
    op ops[OPS];
    int count;
    end sources[ENDS_MAX], sinks[ENDS_MAX];
    int nsources, nsinks;
    azc_id port;
    uint64_t recorded;
    bool draining;
    uint64_t relays, broken, lanes[LANES]; /* in all seeds together */
} world;

/* ---- opening ---------------------------------------------------------- */

static void open_end(end *it, bool out) {
    static const int kinds[] = {SOCKET, PIPE, FIFO, TTY, REGULAR, DEVICE};
    int kind = kinds[sim_below(sim_chance(450) ? 2 : out ? 6 : 5)];
    int flags = out ? AZC_OUT : AZC_IN, r;
    memset(it, 0, sizeof *it);
    it->file = kernel_new_file(kind, kernel_draw_capacity());
    if (kind == PIPE && sim_chance(300)) flags |= AZC_OWN;
    if ((kind == PIPE || kind == FIFO) && sim_chance(200)) flags |= AZC_UNTRUSTED;
    while ((r = azc_open(it->file->number, flags, &it->channel)) < 0)
        SIM_CHECK(r == -ENOMEM, "azc_open: %d", r);
    if (kind == REGULAR && !out) peer_feed(&it->file->flow[0], 100000);
    sim_trace(out ? "sink %ld: fd %ld, kind %ld" : "source %ld: fd %ld, kind %ld",
              out ? it - world.sinks : it - world.sources, it->file->number, kind);
}

static void open_port(void) {
    while (azc_port_open(&world.port) < 0) kernel_set_faults(false);
    kernel_set_faults(true);
    world.recorded = 0;
}

static void begin_world(void) {
    kernel_rates = kernel_draw_rates();
    open_port();
    world.count = 0;
    world.draining = false;
    world.nsources = 1 + (int)sim_below(ENDS_MAX);
    world.nsinks = 1 + (int)sim_below(ENDS_MAX);
    for (int i = 0; i < world.nsources; i++) open_end(&world.sources[i], false);
    for (int i = 0; i < world.nsinks; i++) open_end(&world.sinks[i], true);
}

/* ---- operations ------------------------------------------------------- */

static op *op_new(int kind, int source, int sink) {
    op *it = &world.ops[world.count++];
    *it = (op){.kind = kind, .source = source, .sink = sink};
    return it;
}

static uint64_t token_of(const op *it) { return (uint64_t)(it - world.ops) + 1; }

/* A refused relay tears its source, and the sink stays usable. */
static void note_torn(const op *it, int outcome) {
    bool sources = it->kind == RECEIVE || (it->kind == RELAY && outcome == AZC_REFUSED);
    if (it->status == 0 || it->status == -ECANCELED) return;
    (sources ? &world.sources[it->source] : &world.sinks[it->sink])->torn = true;
}

static void op_ends(op *it, const azc_event *event) {
    SIM_CHECK(!it->over, "operation %ld ends twice", (long)token_of(it));
    it->over = true;
    it->status = event->status;
    it->bytes = event->sent;
    it->broke = it->kind == RELAY && it->status < 0 && it->status != -ECANCELED &&
                event->outcome != AZC_REFUSED;
    world.broken += it->broke;
    note_torn(it, event->outcome);
    end *sink = &world.sinks[it->sink];
    if (it->kind == RELAY) sink->relayed[sink->count++] = (int)(it - world.ops);
    bool arrives = !it->status || event->outcome == AZC_RESCUED;
    if (it->kind == BLOCK) sink->blocks += arrives;
    sim_trace("operation %ld ends: %ld, %ld bytes", (int64_t)token_of(it), it->status,
              (int64_t)it->bytes);
}

static void op_returns(op *it, ssize_t r) {
    if (r == -EINPROGRESS) {
        it->queued = true;
        return;
    }
    SIM_CHECK(!it->over, "operation %ld ends twice", (long)token_of(it));
    it->over = true;
    it->status = r < 0 ? (int)r : 0;
    if (it->kind == RECEIVE && r > 0) it->bytes = (uint64_t)r;
    if (it->kind == BLOCK) world.sinks[it->sink].blocks += r >= 0;
    if (it->kind != RELAY && r != -EAGAIN && r != -ENOMEM) note_torn(it, 0);
}

static bool take_events(void) {
    azc_event events[16];
    bool any = false;
    if (world.draining) return false;
    world.draining = true;
    while (kernel_signalled(azc_port_fd(world.port))) {
        int n = azc_port_take(world.port, world.recorded, events, 16);
        any = true; /* (this call may have started a missing pump) */
        for (int i = 0; i < n; i++) {
            op_ends(&world.ops[events[i].token - 1], &events[i]);
            world.recorded = events[i].sequence;
        }
    }
    world.draining = false;
    return any;
}

/* ---- the callers' steps ----------------------------------------------- */

/* Bytes that the caller may relay first, if the source is idle. */
static uint64_t held_by(int source) {
    for (int i = 0; i < world.count; i++)
        if (world.ops[i].source == source && world.ops[i].kind != BLOCK &&
            !world.ops[i].over)
            return 0;
    return world.sources[source].held;
}

/* Checks a relay that is over: azc_relay_ask knows it until azc_relay_free. */
static void settle(op *it) {
    if (!it->relay || !it->over) return;
    SIM_CHECK(azc_relay_ask(it->relay, &it->state) == 0, "no relay");
    SIM_CHECK(it->state.sent == it->bytes, "two counts: %ld and %ld",
              (long)it->state.sent, (long)it->bytes);
    SIM_CHECK(it->state.sent <= it->state.taken, "moved, but not taken");
    SIM_CHECK(azc_relay_free(it->relay) == 0, "azc_relay_free");
    it->relay = 0;
    world.lanes[it->state.lane]++;
}

static void settle_all(int source) {
    for (int i = 0; i < world.count; i++)
        if (world.ops[i].kind == RELAY && world.ops[i].source == source)
            settle(&world.ops[i]);
}

/* The bytes of the last receive may be sent first. */
static const void *draw_first(op *it) {
    end *source = &world.sources[it->source];
    const op *last = NULL;
    uint64_t held = held_by(it->source);
    for (int i = 0; i < world.count - 1; i++)
        if (world.ops[i].source == it->source && world.ops[i].kind != BLOCK)
            last = &world.ops[i];
    source->held = 0;
    if (!held || !last || last->kind != RECEIVE || sim_chance(512)) return NULL;
    it->first = 1 + sim_below(last->bytes);
    return last->data + last->bytes - it->first;
}

static void step_relay(int source) {
    op *it = op_new(RELAY, source, (int)sim_below((uint64_t)world.nsinks));
    const void *first = draw_first(it);
    int failed;
    azc_relay_request wanted = {
        .source = world.sources[source].channel,
        .sink = world.sinks[it->sink].channel,
        .port = world.port,
        .token = token_of(it),
        .nbytes = sim_chance(300) ? UINT64_MAX : 1 + sim_below(200000),
        .first = first,
        .nfirst = it->first,
        .once = sim_chance(512),
    };
    if (wanted.nbytes < it->first) wanted.nbytes = it->first;
    sim_trace("relay %ld of source %ld to sink %ld", (int64_t)token_of(it), source,
              it->sink);
    world.relays++;
    int r = azc_relay_open(&wanted, &it->relay, &failed);
    sim_trace("relay %ld returns %ld", (int64_t)token_of(it), r, 0);
    SIM_CHECK(r < 0 && (r != -EINVAL), "azc_relay_open: %d", r);
    op_returns(it, r);
}

static void step_receive(int source, size_t n) {
    op *it = op_new(RECEIVE, source, 0);
    it->data = calloc(1, n);
    if (!it->data) abort();
    end *from = &world.sources[source];
    from->held = 0;
    ssize_t r = azc_recv(from->channel, world.port, token_of(it), it->data, n, 1, NULL);
    sim_trace("receive %ld from source %ld returns %ld", (int64_t)token_of(it), source,
              r);
    op_returns(it, r);
    if (r > 0) from->held = (uint64_t)r;
}

static void step_block(void) {
    static unsigned char blocks[BLOCK_MAX + 1][BLOCK_MAX];
    int sink = (int)sim_below((uint64_t)world.nsinks);
    size_t n = 2 + sim_below(BLOCK_MAX - 1);
    memset(blocks[n], 0xff, n);
    blocks[n][0] = (unsigned char)(0x80 + n);
    op *it = op_new(BLOCK, -1, sink);
    struct iovec vec = {blocks[n], n};
    int r = azc_sendv(world.sinks[sink].channel, world.port, token_of(it), &vec, 1,
                      NULL, 0, 0);
    sim_trace("block %ld of %ld bytes returns %ld", (int64_t)token_of(it), (int64_t)n,
              r);
    op_returns(it, r);
}

static void step_cancel(void) {
    if (!world.count) return;
    uint64_t recent = 1 + sim_below(world.count < 10 ? (uint64_t)world.count : 10);
    op *it = &world.ops[(uint64_t)world.count - recent];
    azc_id channel = it->kind == RECEIVE ? world.sources[it->source].channel
                                         : world.sinks[it->sink].channel;
    azc_event event;
    if (it->over) return;
    int r = azc_cancel(channel, token_of(it), 1 << 20, &event);
    sim_trace("cancel %ld: %ld", (int64_t)token_of(it), r, 0);
    SIM_CHECK(r >= AZC_DROPPED && r <= AZC_KEPT, "azc_cancel: %d", r);
}

static void step_close(void) {
    bool out = sim_chance(512);
    uint64_t count = (uint64_t)(out ? world.nsinks : world.nsources);
    end *it = out ? &world.sinks[sim_below(count)] : &world.sources[sim_below(count)];
    it->torn = true;
    int r = azc_close(it->channel, 0, 0);
    sim_trace("close fd %ld: %ld", it->file->number, r, 0);
    SIM_CHECK(r == 1 || r == -EALREADY || r == -EINPROGRESS, "azc_close: %d", r);
}

static int draw_source(int caller) {
    int source = (int)sim_below((uint64_t)world.nsources);
    return source % sim_callers == caller ? source : -1;
}

static void take_step(int caller) {
    uint64_t kind = sim_below(1000);
    int source = draw_source(caller);
    bool room = world.count < OPS - 20;
    if (source >= 0) settle_all(source);
    if (kind < 250 && source >= 0 && room)
        step_relay(source);
    else if (kind < 400 && source >= 0 && room)
        step_receive(source, 1 + sim_below(RECEIVED_MAX));
    else if (kind < 600 && room)
        step_block();
    else if (kind < 750)
        step_cancel();
    else if (kind < 990)
        take_events();
    else
        step_close();
}

/* ---- the peer's steps ------------------------------------------------- */

static void take_peer_step(void) {
    bool out = sim_chance(512);
    uint64_t count = (uint64_t)(out ? world.nsinks : world.nsources);
    end *it = out ? &world.sinks[sim_below(count)] : &world.sources[sim_below(count)];
    sim_flow *flow = &it->file->flow[out];
    int kind = it->file->kind;
    uint64_t step = sim_below(1000);
    if (step < 870 && out)
        peer_read(flow, 1 + sim_below(100000));
    else if (step < 870)
        peer_feed(flow, 1 + sim_below(50000));
    else if (step < 900)
        kernel_report_falsely();
    else if (step < 940 && kind != SOCKET && kind != REGULAR)
        flow->stalled = !flow->stalled;
    else if (step < 955)
        flow->starving = !flow->starving;
    else if (step < 965)
        peer_end(flow, out ? -EPIPE : sim_chance(512) ? -ECONNRESET : 0);
    else if (step < 975)
        kernel_rates = kernel_draw_rates();
}

static void unstall_all(void) {
    for (int i = 0; i < world.nsources; i++)
        world.sources[i].file->flow[0].stalled = false;
    for (int i = 0; i < world.nsinks; i++) world.sinks[i].file->flow[1].stalled = false;
}

/* ---- checks ----------------------------------------------------------- */

static void check_error(end *it, bool out) {
    it->torn |= it->file->flow[out].fatal != 0;
}

/* Returns how many of the source's bytes its operations have taken and kept. */
static uint64_t check_source(int number) {
    const sim_file *file = world.sources[number].file;
    uint64_t at = 0;
    for (int i = 0; i < world.count; i++) {
        op *it = &world.ops[i];
        if (it->kind == BLOCK || it->source != number) continue;
        if (it->kind == RELAY && it->state.began) {
            SIM_CHECK(!it->broke || world.sources[number].torn ||
                          it->state.taken == it->state.sent,
                      "relay %ld took %ld bytes and moved %ld", (long)token_of(it),
                      (long)it->state.taken, (long)it->state.sent);
            at = at - it->first + it->state.taken;
        } else if (it->kind == RECEIVE) {
            SIM_CHECK(pattern_equals(it->data, kernel_stream_of(file), at, it->bytes),
                      "operation %ld got something else than the bytes from %ld",
                      (long)token_of(it), (long)at);
            at += it->bytes;
        }
    }
    return at;
}

static uint64_t place_of(const op *relay) {
    uint64_t at = 0;
    for (const op *it = world.ops; it <= relay; it++) {
        if (it->kind == BLOCK || it->source != relay->source) continue;
        if (it->kind == RECEIVE) at += it->bytes;
        if (it->kind == RELAY && it->state.began)
            at = at - it->first + (it == relay ? 0 : it->state.taken);
    }
    return at;
}

/* Returns the length of a block at the start of the log, or 0. */
static size_t block_at(const unsigned char *log, uint64_t n, bool torn) {
    if (!n || log[0] < 0x80) return 0;
    size_t length = log[0] - 0x80u, have = length < n ? length : n;
    SIM_CHECK(have == length || torn, "a block is cut off");
    for (size_t i = 1; i < have; i++)
        SIM_CHECK(log[i] == 0xff, "a block is in two pieces");
    return have;
}

static void check_sink(const end *sink) {
    const unsigned char *log = sink->file->flow[1].log;
    uint64_t moved = sink->file->flow[1].moved, at = 0, blocks = 0;
    for (int i = 0; i <= sink->count; i++) {
        for (size_t n; (n = block_at(log + at, moved - at, sink->torn)); at += n)
            blocks++;
        if (i == sink->count) break;
        const op *it = &world.ops[sink->relayed[i]];
        uint64_t bytes = it->state.began ? it->state.taken : 0;
        if (bytes > moved - at) {
            SIM_CHECK(sink->torn, "relay %ld lost %ld bytes", (long)token_of(it),
                      (long)(bytes - (moved - at)));
            bytes = moved - at;
        }
        sim_file *from = world.sources[it->source].file;
        SIM_CHECK(pattern_equals(log + at, kernel_stream_of(from), place_of(it), bytes),
                  "relay %ld: the reader has something else", (long)token_of(it));
        at += bytes;
    }
    SIM_CHECK(at == moved, "%ld bytes too many", (long)(moved - at));
    SIM_CHECK(sink->torn || blocks == sink->blocks, "%ld blocks, not %ld", (long)blocks,
              (long)sink->blocks);
}

/* ---- the end of a seed ------------------------------------------------ */

static void let_flow(void) {
    kernel_set_faults(false);
    unstall_all();
    for (int i = 0; i < world.nsources; i++) {
        sim_flow *flow = &world.sources[i].file->flow[0];
        flow->starving = false;
        peer_feed(flow, 5000);
        peer_end(flow, 0);
    }
    for (int i = 0; i < world.nsinks; i++) {
        sim_flow *flow = &world.sinks[i].file->flow[1];
        flow->starving = false;
        flow->capacity = (size_t)1 << 40;
    }
}

static void rest(void) {
    do sim_idle();
    while (take_events());
}

/* The last receives get the bytes that operations left. */
static void receive_the_rest(int source) {
    const op *last;
    do {
        step_receive(source, 1 << 20);
        last = &world.ops[world.count - 1];
        rest();
        SIM_CHECK(last->over, "a receive at the end of a stream does not end");
    } while (last->bytes && world.count < OPS - 4);
}

static void check_all(void) {
    for (int i = 0; i < world.count; i++) {
        SIM_CHECK(world.ops[i].over, "operation %d is lost", i + 1);
        settle(&world.ops[i]);
    }
    for (int i = 0; i < world.nsinks; i++) {
        check_error(&world.sinks[i], true);
        check_sink(&world.sinks[i]);
    }
    for (int i = 0; i < world.nsources; i++) {
        end *source = &world.sources[i];
        check_error(source, false);
        if (!source->torn) receive_the_rest(i);
        uint64_t taken = check_source(i);
        SIM_CHECK(source->torn || taken == source->file->flow[0].moved,
                  "source %d: %ld bytes of %ld", i, (long)taken,
                  (long)source->file->flow[0].moved);
    }
}

static void free_all(void) {
    for (int i = 0; i < world.nsources; i++)
        SIM_CHECK(azc_free(world.sources[i].channel) == 0, "azc_free");
    for (int i = 0; i < world.nsinks; i++)
        SIM_CHECK(azc_free(world.sinks[i].channel) == 0, "azc_free");
}

/* In some seeds, no caller waits for its operations. */
static void end_world(void) {
    if (sim_chance(150)) {
        for (int i = 0; i < ENDS_MAX; i++)
            world.sources[i].torn = world.sinks[i].torn = true;
        if (sim_chance(300)) azc_stop(2);
        free_all();
        let_flow();
        rest();
        check_all();
    } else {
        let_flow();
        rest();
        check_all();
        free_all();
        rest();
    }
}

static void release_all(void) {
    for (int i = 0; i < world.count; i++) {
        free(world.ops[i].data);
        world.ops[i].data = NULL;
    }
}

static const sim_cast cast = {STEPS, take_step, take_peer_step, unstall_all};

static void run_seed(uint64_t seed, bool verbose) {
    sim_begin(seed, verbose);
    kernel_begin();
    splicing_begin();
    begin_world();
    seeds_play(&cast);
    end_world();
    SIM_CHECK(azc_port_close(world.port) == 0, "the port has more to tell");
    sim_idle();
    sim_end();
    release_all();
    splicing_end();
    kernel_end();
}

static void print_summary(uint64_t seeds) {
    printf("%llu seeds, %llu steps, %llu bytes, %llu spliced, %llu relays:"
           " %llu copied, %llu by sendfile, %llu by splice, %llu by a pipe;"
           " %llu lost their sink\n",
           (unsigned long long)seeds, (unsigned long long)sim_steps,
           (unsigned long long)sim_bytes, (unsigned long long)sim_spliced,
           (unsigned long long)world.relays, (unsigned long long)world.lanes[0],
           (unsigned long long)world.lanes[1], (unsigned long long)world.lanes[2],
           (unsigned long long)world.lanes[3], (unsigned long long)world.broken);
}

int main(int argc, char **argv) {
    print_summary(seeds_run(argc, argv, run_seed));
    return 0;
}
