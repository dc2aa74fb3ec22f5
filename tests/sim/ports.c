/* ports.c - the ports of a simulated program; see ports.h. */
#include "ports.h"

#include <errno.h>
#include <string.h>

#include "threads.h"

enum { TAKEN_MAX = 16 };

typedef struct port {
    azc_id id;
    int fd; /* of the poller that its loop watches, or negative */
    bool open, retired, draining, closed;
    int users;               /* calls in progress that name it */
    int pending;             /* operations whose end it has yet to report */
    uint64_t judged;         /* all events up to this number were judged */
    uint64_t recorded;       /* acknowledged up to this number with the next call */
    azc_event told[2 * OPS]; /* events that are not acknowledged yet */
    int count;
} port;

uint64_t ports_moves;

static struct {
    port all[PORTS_EVER];
    int count, in_use[PORTS];
} ports;

/* ---- opening and closing ------------------------------------------------- */

static bool open_one(int place) {
    int i = ports.count++;
    port *it = &ports.all[i];
    memset(it, 0, sizeof *it);
    int r = azc_port_open(&it->id);
    SIM_CHECK(r == 0 || r == -ENOMEM || r == -EMFILE, "azc_port_open: %d", r);
    if (r < 0) return false;
    it->fd = r = sim_chance(700) ? azc_port_watch(it->id) : -EMFILE;
    SIM_CHECK(r >= 0 || r == -ENOMEM || r == -EMFILE, "azc_port_watch: %d", r);
    it->open = true;
    ports.in_use[place] = i;
    return true;
}

void ports_begin(void) {
    ports.count = 0;
    for (int i = 0; i < PORTS; i++) {
        while (!open_one(i)) kernel_set_faults(false);
        kernel_set_faults(true);
    }
}

azc_id port_number(int i) { return ports.all[i].id; }

void ports_expect(op *it, int place) {
    it->port = ports.in_use[place];
    ports.all[it->port].users++;
}

void ports_submitted(op *it, bool queued) {
    ports.all[it->port].users--;
    ports.all[it->port].pending += queued;
}

void ports_renew_one(void) {
    int place = (int)sim_below(PORTS), before = ports.in_use[place];
    if (ports.count == PORTS_EVER || !open_one(place)) return;
    ports.all[before].retired = true;
    sim_trace("port %ld retires", before, 0, 0);
}

static void close_retired(port *it) {
    int busy = azc_port_is_busy(it->id), r = azc_port_close(it->id);
    SIM_CHECK(busy == (it->pending > 0) && r == (it->pending ? -EBUSY : 0),
              "azc_port_is_busy: %d, azc_port_close: %d, %d operations name it", busy,
              r, it->pending);
    it->closed = r == 0;
    it->open = !it->closed;
}

void ports_call_late(void) {
    azc_event event;
    const port *it = &ports.all[sim_below((uint64_t)ports.count)];
    if (!it->closed) return;
    SIM_CHECK(azc_port_fd(it->id) == -ESHUTDOWN &&
                  azc_port_take(it->id, 0, &event, 1) == -ESHUTDOWN &&
                  azc_port_is_busy(it->id) == -ESHUTDOWN &&
                  azc_port_move(it->id) == -ESHUTDOWN &&
                  azc_port_watch(it->id) == -ESHUTDOWN &&
                  azc_port_close(it->id) == -ESHUTDOWN,
              "a closed port answers");
}

/* ---- events -------------------------------------------------------------- */

static bool is_same(const azc_event *a, const azc_event *b) {
    return a->sequence == b->sequence && a->token == b->token && a->sent == b->sent &&
           a->status == b->status && a->outcome == b->outcome;
}

/* Acknowledged events are not repeated. */
static void drop_recorded(port *it) {
    int kept = 0;
    for (int i = 0; i < it->count; i++) {
        if (it->told[i].sequence > it->recorded)
            it->told[kept++] = it->told[i];
        else if (it->told[i].status <= 0)
            it->pending--;
    }
    it->count = kept;
}

/* Compares with earlier events; returns how many of them are repeated. */
static int compare(port *it, const azc_event *events, int count, int max) {
    int kept = 0, same = 0;
    for (int i = 0; i < it->count; i++) {
        const azc_event *told = &it->told[i];
        bool again = same < count && is_same(told, &events[same]);
        SIM_CHECK(again || same == max || told->status > 0,
                  "an event is forgotten, of operation %ld", (long)told->token);
        if (again || same == max) it->told[kept++] = *told;
        same += again;
    }
    it->count = kept;
    return same;
}

static void judge(port *it, const azc_event *event) {
    op *of = op_of(event->token);
    SIM_CHECK(event->sequence > it->judged, "events are out of order");
    SIM_CHECK(&ports.all[of->port] == it, "operation %ld ends elsewhere",
              (long)event->token);
    it->judged = event->sequence;
    it->told[it->count++] = *event;
    if (event->status == AZC_ROOM) {
        op_has_room(of);
    } else if (event->status == AZC_COPIED) {
        SIM_CHECK(of->copy, "operation %ld was moved to nothing", (long)event->token);
        op_goes_on(of, of->copy);
        of->copy = NULL;
    } else {
        op_ends(of, BY_EVENT, event);
    }
}

static void acknowledge(port *it, unsigned all_in_1024) {
    if (sim_chance(all_in_1024))
        it->recorded = it->judged;
    else if (it->count && sim_chance(512))
        it->recorded = it->told[sim_below((uint64_t)it->count)].sequence;
}

static void take(port *it, int max) {
    azc_event events[TAKEN_MAX];
    int count = azc_port_take(it->id, it->recorded, events, max);
    SIM_CHECK(count >= 0 && count <= max, "azc_port_take: %d", count);
    drop_recorded(it);
    for (int i = compare(it, events, count, max); i < count; i++) judge(it, &events[i]);
    SIM_CHECK(!it->count || kernel_signalled(azc_port_fd(it->id)),
              "a port that has something to tell is silent");
}

/* The loop is awake, or late now and then. */
static void move_ready(const port *it) {
    if (it->fd < 0 || !kernel_readable(it->fd) || sim_chance(200)) return;
    int r = azc_port_move(it->id);
    SIM_CHECK(r == 0 || r == 1, "azc_port_move: %d", r);
    ports_moves++;
}

/* One caller at a time, so that the order of the events is known. */
static bool take_often(port *it, int times, unsigned all_in_1024) {
    bool any = false;
    if (!it->open || it->draining) return false;
    it->draining = true;
    move_ready(it);
    while (times-- && kernel_signalled(azc_port_fd(it->id))) {
        take(it, (int)sim_below(TAKEN_MAX + 1));
        acknowledge(it, all_in_1024);
        any = true;
    }
    if (it->retired && !it->users) close_retired(it);
    it->draining = false;
    return any;
}

void ports_take_some(void) {
    port *it = &ports.all[sim_below((uint64_t)ports.count)];
    take_often(it, 1 + (int)sim_below(4), 600);
}

bool ports_take_all(void) {
    bool any = false;
    for (int i = 0; i < ports.count; i++) any |= take_often(&ports.all[i], 1000, 1024);
    return any;
}

void ports_end(void) {
    for (int i = 0; i < ports.count; i++)
        if (ports.all[i].open) close_retired(&ports.all[i]);
    for (int i = 0; i < ports.count; i++)
        SIM_CHECK(!ports.all[i].open, "port %d cannot be closed", i);
}
