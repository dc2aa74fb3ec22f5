/* relays.c - relays between real fds, with real threads, for the sanitizers.
 *
 * Usage: relays [--rounds N] [--seed S]
 *
 * In each round, a thread writes into the source's other end, one reads from the
 * sink's, one sends blocks of 0xff to the sink, and one cancels, or sometimes closes an
 * end.  Meanwhile relays follow each other.  All other bytes follow from their place in
 * the stream.
 *
 * Checked: bytes arrive in order, each block is in one piece, each relay ends once, and
 * unless an end was closed, all bytes that relays took arrive.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "azc.h"
#include "check.h"

enum { BLOCK = 64, TOTAL = 3 << 20, PATIENCE_MS = 20000 };

static struct {
    int feed, drain; /* the other ends */
    azc_id source, sink, port;
    atomic_ullong token; /* of the current relay */
    atomic_bool over, closed;
    uint64_t arrived;
    unsigned seed;
} now;

static unsigned draw(unsigned *seed, unsigned n) {
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % n;
}

static unsigned char byte_at(uint64_t place) {
    return (unsigned char)((place * 7 + place / 253) % 127);
}

static void *feed(void *unused) {
    static unsigned char data[1 << 16];
    unsigned seed = now.seed + 1;
    uint64_t fed = 0;
    while (fed < TOTAL) {
        size_t n = 1 + draw(&seed, sizeof data);
        if (n > TOTAL - fed) n = TOTAL - fed;
        for (size_t i = 0; i < n; i++) data[i] = byte_at(fed + i);
        ssize_t r = write(now.feed, data, n);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) break;
        fed += (uint64_t)r;
    }
    close(now.feed);
    return unused;
}

static void *drain(void *unused) {
    static unsigned char data[1 << 16];
    unsigned seed = now.seed + 2;
    uint64_t block = 0;
    for (;;) {
        ssize_t n = read(now.drain, data, 1 + draw(&seed, sizeof data));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        for (ssize_t i = 0; i < n; i++) {
            if (data[i] == 0xff) {
                block = (block + 1) % BLOCK;
                continue;
            }
            CHECK(block == 0, "a block is in two pieces");
            CHECK(data[i] == byte_at(now.arrived), "a wrong byte at %llu",
                  (unsigned long long)now.arrived);
            now.arrived++;
        }
    }
    close(now.drain);
    return unused;
}

static void await_event(azc_id port, uint64_t token, azc_event *event) {
    struct pollfd ready = {azc_port_fd(port), POLLIN, 0};
    uint64_t recorded = 0;
    for (;;) {
        int n = azc_port_take(port, recorded, event, 1);
        if (n == 1) recorded = event->sequence;
        if (n == 1 && event->token == token) break;
        if (n == 1) continue;
        CHECK(poll(&ready, 1, PATIENCE_MS) > 0, "an operation never ends");
    }
    azc_event none;
    azc_port_take(port, recorded, &none, 1);
}

static void *send_blocks(void *unused) {
    unsigned char block[BLOCK];
    struct iovec vec = {block, sizeof block};
    azc_id port;
    azc_event event;
    memset(block, 0xff, sizeof block);
    CHECK(azc_port_open(&port) == 0, "no port");
    for (uint64_t token = 1u << 20; !now.over; token++) {
        int r = azc_sendv(now.sink, port, token, &vec, 1, NULL, 0, 0);
        if (r == -EINPROGRESS)
            await_event(port, token, &event);
        else if (r < 0)
            break;
    }
    CHECK(azc_port_close(port) == 0, "an event too many");
    return unused;
}

static void *disturb(void *unused) {
    unsigned seed = now.seed + 3;
    while (!now.over) {
        struct pollfd none = {-1, 0, 0};
        poll(&none, 1, (int)draw(&seed, 3));
        switch (draw(&seed, 40)) {
        case 0:
            now.closed = true;
            azc_close(draw(&seed, 2) ? now.source : now.sink, 0, 0);
            break;
        default:
            azc_cancel(now.sink, now.token, 1 << 20, NULL);
        }
    }
    return unused;
}

static void open_pair(unsigned kind, bool source, int *ours, int *theirs) {
    int fds[2];
    if (kind) {
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0, "no sockets");
    } else {
        CHECK(pipe(fds) == 0, "no pipe");
    }
    *ours = fds[source ? 0 : 1];
    *theirs = fds[source ? 1 : 0];
    fcntl(*ours, F_SETFL, O_NONBLOCK);
}

/* Returns how many bytes were taken from the source. */
static uint64_t relay_on(unsigned *seed) {
    uint64_t taken = 0;
    while (taken < TOTAL) {
        azc_id relay = 0;
        int failed, more = 0;
        azc_relay_state state;
        azc_event event;
        azc_relay_request wanted = {.source = now.source,
                                    .sink = now.sink,
                                    .port = now.port,
                                    .token = now.token + 1,
                                    .nbytes = 1 + draw(seed, 1 << 20),
                                    .once = draw(seed, 4) == 0};
        now.token++;
        if (azc_relay_open(&wanted, &relay, &failed) != -EINPROGRESS) break;
        await_event(now.port, wanted.token, &event);
        CHECK(azc_relay_ask(relay, &state) == 0, "no relay");
        CHECK(event.sent == state.sent, "two counts of what was moved");
        CHECK(state.sent <= state.taken, "more was moved than taken");
        taken += state.taken;
        more = event.status == 0 || event.status == -ECANCELED;
        CHECK(more || now.closed, "status %d", event.status);
        azc_relay_free(relay);
        if (!more) break;
    }
    return taken;
}

static void run_round(unsigned seed) {
    pthread_t threads[4];
    void *(*works[])(void *) = {feed, drain, send_blocks, disturb};
    int in, out;
    now.seed = seed;
    now.over = now.closed = false;
    now.arrived = 0;
    now.token = 1;
    unsigned kinds = draw(&seed, 4);
    open_pair(kinds & 1, true, &in, &now.feed);
    open_pair(kinds >> 1, false, &out, &now.drain);
    CHECK(azc_open(in, AZC_IN, &now.source) == 0, "no source");
    CHECK(azc_open(out, AZC_OUT, &now.sink) == 0, "no sink");
    CHECK(azc_port_open(&now.port) == 0, "no port");
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, works[i], NULL);
    uint64_t taken = relay_on(&seed);
    now.over = true;
    pthread_join(threads[3], NULL);
    pthread_join(threads[2], NULL);
    struct iovec nothing = {NULL, 0};
    azc_event event;
    if (azc_sendv(now.sink, now.port, 1u << 30, &nothing, 1, NULL, 0, 0) ==
        -EINPROGRESS)
        await_event(now.port, 1u << 30, &event); /* a flush */
    azc_free(now.sink);
    azc_free(now.source);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    CHECK(now.closed || taken == now.arrived, "%llu taken, %llu arrived",
          (unsigned long long)taken, (unsigned long long)now.arrived);
    CHECK(azc_port_close(now.port) == 0, "an event too many");
}

int main(int argc, char **argv) {
    unsigned rounds = 20, seed = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        unsigned value = (unsigned)strtoul(argv[i + 1], NULL, 10);
        *(strcmp(argv[i], "--rounds") == 0 ? &rounds : &seed) = value;
    }
    signal(SIGPIPE, SIG_IGN);
    for (unsigned i = 0; i < rounds; i++) run_round(seed * 1000 + i);
    printf("%u rounds\n", rounds);
    return 0;
}
