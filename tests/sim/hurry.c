/* hurry.c - who wants his memory back does not wait for more than one piece.
 *
 * A busy pipe is given piece after piece, many in one move.  Here a cancel,
 * or a close, comes while the first piece is in the system call: not one more
 * call may have the caller's memory.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "channel.h"

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "hurry: not %s\n", #condition);                    \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

enum { TOKEN = 7 };

static char memory[64 << 10]; /* several pieces, in one move */
static azc_channel *channel;
static azc_port *port;
static bool closes;
static atomic_int calls; /* that had the caller's memory */

static ssize_t (*write_piece)(int fd, const void *data, size_t n);

static void want_it_back(void) {
    azc_event event;
    if (closes)
        CHECK(azc_close(channel, NULL, 0) == -EINPROGRESS);
    else
        CHECK(azc_cancel(channel, TOKEN, sizeof memory, &event) == AZC_LATER);
}

/* The first call is the submitter's: full, so that the pump has the second. */
static ssize_t interrupted(int fd, const void *data, size_t n) {
    const char *from = data;
    if (from >= memory && from < memory + sizeof memory) {
        if (++calls == 1) return -EAGAIN;
        if (calls == 2) want_it_back();
    }
    return write_piece(fd, data, n);
}

/* Waits until the operation is over. */
static void wait_for_event(void) {
    struct pollfd told = {azc_port_fd(port), POLLIN, 0};
    azc_event event;
    CHECK(poll(&told, 1, 10000) == 1);
    CHECK(azc_port_drain(port, &event, 1) == 1);
    CHECK(event.token == TOKEN);
    CHECK(event.status == (closes ? -ESHUTDOWN : -ECANCELED));
}

static void try_it(bool by_close) {
    int ends[2];
    closes = by_close;
    calls = 0;
    CHECK(pipe(ends) == 0);
    CHECK(azc_port_open(&port) == 0);
    CHECK(azc_open(ends[1], AZC_OUT | AZC_OWN, &channel) == 0);
    CHECK(azc__pace_piece(&channel->pace) * 2 <= sizeof memory);
    CHECK(azc_send(channel, port, TOKEN, memory, sizeof memory) ==
          -EINPROGRESS);
    wait_for_event();
    CHECK(calls == 2);
    if (!by_close) azc_close(channel, NULL, 0);
    azc_free(channel);
    azc_port_close(port);
    close(ends[0]);
}

int main(void) {
    write_piece = azc_sys.write_piece;
    azc_sys.write_piece = interrupted;
    try_it(false);
    try_it(true);
    return 0;
}
