/* port.c - reports to one event loop the operations that end later.
 *
 * The fd is signalled once for any number of events, and cleared when the last of
 * them is acknowledged.
 */
#include "port.h"

#include <errno.h>

#include "handle.h"
#include "sabotage.h"

typedef struct azc_port {
    azc_id id;
    int waker[2];
    azc_note *first, **end; /* posted notes; and where the next one goes */
    uint64_t sequence;      /* of the last event */
    uint64_t notes;
    bool signalled;
    bool (*retry)(void); /* see azc__port_retry */
} azc_port;

struct azc_note {
    azc_note *next;
    azc_port *port;
    bool listed;
    azc_event event;
};

enum { RETRY_PAUSE_US = 1000 };

static azc_port *enter(azc_id port) { return azc__handle_lock(&azc__ports, port); }

static void leave(const azc_port *port) { azc__handle_unlock(&azc__ports, port->id); }

static void lock(const azc_port *port) {
    pthread_mutex_lock(&azc__handle_slot(&azc__ports, port->id)->lock);
}

/* ---- notes ----------------------------------------------------------- */

azc_note *azc__note_blank(void) { return sys_zeros(sizeof(azc_note)); }

int azc__note_address(azc_note *note, azc_id id, uint64_t token) {
    azc_port *port = enter(id);
    if (!port) return azc__handle_why(&azc__ports, id);
    note->port = port;
    note->event.token = token;
    port->notes++;
    leave(port);
    return 0;
}

int azc__note_new(azc_id id, uint64_t token, azc_note **note) {
    *note = NULL;
    if (!id) return 0;
    *note = azc__note_blank();
    if (!*note) return -ENOMEM;
    int r = azc__note_address(*note, id, token);
    if (r < 0) {
        azc_sys.release(*note);
        *note = NULL;
    }
    return r;
}

uint64_t azc__note_token(const azc_note *note) { return note->event.token; }

/* (mostly the first: notes are acknowledged, and posted again, in order) */
static void unlist(azc_port *port, azc_note *note) {
    azc_note **place = &port->first;
    if (!note->listed) return;
    while (*place != note) place = &(*place)->next;
    *place = note->next;
    if (!note->next) port->end = place;
    note->listed = false;
}

static void list(azc_port *port, azc_note *note) {
    note->next = NULL;
    *port->end = note;
    port->end = &note->next;
    note->listed = true;
}

static void signal_once(azc_port *port) {
    if (!port->signalled) azc_sys.signal(port->waker[1]);
    port->signalled = true;
}

void azc__note_free(azc_note *note) {
    azc_port *port = note ? note->port : NULL;
    if (port) {
        lock(port);
        unlist(port, note);
        port->notes--;
        leave(port);
    }
    azc_sys.release(note);
}

/* A note that is still listed (of AZC_ROOM, say) gets a new sequence number: acknowledging
 * the earlier event must not acknowledge this one. */
void azc__note_post(azc_note *note, uint64_t sent, int status, int outcome) {
    if (!note) return;
    azc_port *port = note->port;
    lock(port);
    unlist(port, note);
    note->event.sequence = ++port->sequence;
    note->event.sent = sent;
    note->event.status = status;
    note->event.outcome = outcome;
    list(port, note);
    signal_once(port);
    leave(port);
}

void azc__port_retry(azc_id id, bool (*retry)(void)) {
    azc_port *port = enter(id);
    if (!port) return;
    if (retry) port->retry = retry;
    signal_once(port);
    leave(port);
}

bool azc__port_is_signalled(azc_id id) {
    azc_port *port = enter(id);
    if (!port) return false;
    bool signalled = port->signalled;
    leave(port);
    return signalled;
}

/* ---- ports ----------------------------------------------------------- */

int azc_port_open(azc_id *out) {
    azc_port *port = sys_zeros(sizeof *port);
    if (!port) return -ENOMEM;
    port->end = &port->first;
    int r = azc_sys.open_waker(port->waker);
    if (r == 0) port->id = azc__handle_new(&azc__ports, port);
    if (r == 0 && !port->id) r = -ENOMEM;
    if (r < 0) {
        sys_close_both(port->waker);
        azc_sys.release(port);
        return r;
    }
    *out = port->id;
    return 0;
}

int azc_port_fd(azc_id id) {
    azc_port *port = enter(id);
    if (!port) return azc__handle_why(&azc__ports, id);
    int fd = port->waker[0];
    leave(port);
    return fd;
}

/* Takes the acknowledged notes out, and frees them.  A note whose status is positive
 * belongs to its operation and is not freed. */
static void forget(azc_port *port, uint64_t recorded) {
    while (port->first && port->first->event.sequence <= recorded) {
        azc_note *note = port->first;
        unlist(port, note);
        if (note->event.status > 0) continue;
        port->notes--;
        azc_sys.release(note);
    }
}

static int take(azc_port *port, azc_event *events, int max) {
    int count = 0;
    for (azc_note *it = port->first; it && count < max; it = it->next)
        events[count++] = it->event;
    if (SABOTAGED(EVENT) && count) forget(port, events[count - 1].sequence);
    if (!port->first && port->signalled && !port->retry) {
        azc_sys.clear(port->waker[0]);
        port->signalled = false;
    }
    return count;
}

/* Wakes this loop again as long as something is left to be retried, whichever port's loop
 * waits for it: that loop may be busy, or have ended. */
static void run_retry(azc_id id, bool (*retry)(void)) {
    if (!retry || !retry()) return;
    azc_sys.sleep_us(RETRY_PAUSE_US);
    azc__port_retry(id, retry);
}

int azc_port_take(azc_id id, uint64_t recorded, azc_event *events, int max) {
    azc_port *port = enter(id);
    if (!port) return azc__handle_why(&azc__ports, id);
    bool (*retry)(void) = port->retry;
    port->retry = NULL;
    forget(port, recorded);
    int count = take(port, events, max);
    leave(port);
    run_retry(id, retry);
    return count;
}

int azc_port_is_busy(azc_id id) {
    azc_port *port = enter(id);
    if (!port) return azc__handle_why(&azc__ports, id);
    int busy = port->notes > 0;
    leave(port);
    return busy;
}

int azc__port_close(azc_id id) {
    azc_port *port = enter(id);
    if (!port) return azc__handle_why(&azc__ports, id);
    if (port->notes) {
        leave(port);
        return -EBUSY;
    }
    azc__handle_drop(&azc__ports, id);
    sys_close_both(port->waker);
    azc_sys.release(port);
    return 0;
}

void azc__port_fork_child(void *object) {
    azc_port *port = object;
    sys_close_both(port->waker);
}
