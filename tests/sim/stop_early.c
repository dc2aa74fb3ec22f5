/* stop_early.c - a cancel or a close waits for one piece at most.
 *
 * One move gives a pipe many pieces.  Here a cancel, or a close, comes while the
 * first piece is in its system call: no other call may use the caller's memory.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "azc.h"
#include "pace.h"
#include "sys.h"

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "stop_early: not %s\n", #condition);               \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

enum { TOKEN = 7 };

static char memory[64 << 10]; /* several pieces, in one move */
static azc_id channel, port;
static bool closes;
static atomic_int calls; /* that were given the caller's memory */

static ssize_t (*write_piece)(int fd, const void *data, size_t n);
static ssize_t (*write_pipe)(int fd, const struct iovec *vec, int count,
                             int how);

static void interrupt(void) {
    azc_event event;
    if (closes)
        CHECK(azc_close(channel, 0, 0) == -EINPROGRESS);
    else
        CHECK(azc_cancel(channel, TOKEN, sizeof memory, &event) == AZC_LATER);
}

/* The submitter makes the first call, and meets a full pipe; so the pump makes the
 * second, and is interrupted. */
static bool is_full(const char *from) {
    if (from < memory || from >= memory + sizeof memory) return false;
    if (++calls == 2) interrupt();
    return calls == 1;
}

static ssize_t interrupted_piece(int fd, const void *data, size_t n) {
    return is_full(data) ? -EAGAIN : write_piece(fd, data, n);
}

static ssize_t interrupted(int fd, const struct iovec *vec, int count,
                           int how) {
    return is_full(vec->iov_base) ? -EAGAIN : write_pipe(fd, vec, count, how);
}

/* Waits until the operation is over. */
static void wait_for_event(void) {
    struct pollfd told = {azc_port_fd(port), POLLIN, 0};
    azc_event event;
    CHECK(poll(&told, 1, 10000) == 1);
    CHECK(azc_port_take(port, 0, &event, 1) == 1);
    CHECK(azc_port_take(port, event.sequence, NULL, 0) == 0);
    CHECK(event.token == TOKEN);
    CHECK(event.status == (closes ? -ESHUTDOWN : -ECANCELED));
}

static void try_it(bool by_close) {
    int ends[2];
    struct iovec all = {memory, sizeof memory};
    closes = by_close;
    calls = 0;
    CHECK(pipe(ends) == 0);
    CHECK(azc_port_open(&port) == 0);
    CHECK(azc_open(ends[1], AZC_OUT | AZC_OWN, &channel) == 0);
    CHECK(azc_sendv(channel, port, TOKEN, &all, 1, NULL, 0, 0) == -EINPROGRESS);
    wait_for_event();
    CHECK(calls == 2);
    CHECK(azc_free(channel) == 0 && azc_port_close(port) == 0);
    close(ends[0]);
}

int main(void) {
    const azc_pace pace = {0};
    CHECK(azc__pace_piece(&pace) * 2 <= sizeof memory);
    write_piece = azc_sys.write_piece;
    write_pipe = azc_sys.write_pipe;
    azc_sys.write_piece = interrupted_piece;
    azc_sys.write_pipe = interrupted;
    try_it(false);
    try_it(true);
    return 0;
}
