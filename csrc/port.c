/* port.c - where one event loop hears of the operations that ended later.
 *
 * Ended operations wait here, in order, as the nodes of a list, so that telling
 * needs no memory.  The fd is signalled once for any number of them: when the
 * list stops being empty.  A port lives until it was closed and no operation
 * names it any more.
 */
#include <errno.h>
#include <string.h>

#include "channel.h"
#include "poller.h"
#include "registry.h"

struct azc_port {
    pthread_mutex_t lock;
    azc_registered registered;
    azc_notifier notifier;
    azc_op *head, *tail;
    atomic_int refs;
    bool signalled, closed;
};

int azc_port_open(azc_port **out) {
    azc_port *port = azc_sys.allocate(sizeof *port);
    if (!port) return -ENOMEM;
    memset(port, 0, sizeof *port);
    int r = azc__notifier_open(&port->notifier);
    if (r < 0) {
        azc_sys.release(port);
        return r;
    }
    pthread_mutex_init(&port->lock, NULL);
    port->refs = 1;
    azc__register(REGISTERED_PORT, &port->registered, port);
    *out = port;
    return 0;
}

int azc_port_fd(azc_port *port) { return port->notifier.read_fd; }

void azc__port_hold(azc_port *port) {
    port->refs++;
}

void azc__port_drop(azc_port *port) {
    if (--port->refs) return;
    azc__unregister(&port->registered);
    azc__notifier_close(&port->notifier);
    pthread_mutex_destroy(&port->lock);
    azc_sys.release(port);
}

/* The operation is the port's from here on, and the port stays for it.  Of a
 * port that was closed nobody will ask. */
void azc__port_post(azc_port *port, azc_op *op) {
    op->next = NULL;
    pthread_mutex_lock(&port->lock);
    if (port->closed) {
        pthread_mutex_unlock(&port->lock);
        azc__op_free(op);
        azc__port_drop(port);
        return;
    }
    if (port->tail)
        port->tail->next = op;
    else
        port->head = op;
    port->tail = op;
    if (!port->signalled) azc__notifier_signal(&port->notifier);
    port->signalled = true;
    pthread_mutex_unlock(&port->lock);
}

int azc_port_drain(azc_port *port, azc_event *events, int max) {
    int count = 0;
    if (azc__is_dead(&port->registered)) return 0;
    pthread_mutex_lock(&port->lock);
    while (count < max && port->head) {
        azc_op *op = port->head;
        port->head = op->next;
        events[count++] = (azc_event){.token = op->token,
                                      .bytes = op->done,
                                      .status = op->status,
                                      .outcome = op->outcome};
        azc__op_free(op);
        port->refs--; /* never the last: the caller has one */
    }
    if (!port->head) {
        port->tail = NULL;
        if (port->signalled) azc__notifier_clear(&port->notifier);
        port->signalled = false;
    }
    pthread_mutex_unlock(&port->lock);
    return count;
}

void azc_port_close(azc_port *port) {
    azc_event rest[16];
    if (azc__is_dead(&port->registered)) return; /* the parent's: let it be */
    pthread_mutex_lock(&port->lock);
    port->closed = true;
    pthread_mutex_unlock(&port->lock);
    while (azc_port_drain(port, rest, 16) == 16) {
    }
    azc__port_drop(port);
}

void azc__port_fork_child(azc_port *port) {
    azc__notifier_close(&port->notifier);
}
