/* race.c - real threads on real pipes and sockets, for the thread sanitizer.
 *
 * Usage: race [--operations N] [--seed S]
 *
 * In each round, some threads send on some links, one thread cancels and closes at
 * random, one takes the port's events (and acknowledges them later), and each link
 * has a reader: half of them use read(2), the others azc_recv.  Every message begins
 * with a header, so a reader can check it whatever was cancelled.  Half of the
 * messages are in a pool, whose pages are lent to some pipes and sockets.  Most ports
 * have a loop that moves ready data, and that is late now and then; and now and then
 * a reader changes to another port.
 *
 * Checked: each operation ends once, and none is lost; messages arrive whole, in the
 * order in which each thread sent them, and without poison, which is stored as soon
 * as an operation's memory is ours again.  Messages that were dropped never arrive,
 * and those that were reported as sent do; an unknown end allows either.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "azc.h"
#include "check.h"

enum {
    LINKS = 6,
    SENDERS = 3,
    PER_SENDER = 60, /* messages in each round */
    SLOTS = SENDERS * PER_SENDER,
    CLOSE_TOKEN = 1 << 20,
    READ_TOKEN = 1 << 21,
    PATIENCE_MS = 10000,
    POISON = 0xdb,
    LONGEST = 150000,
};

typedef struct header {
    uint64_t slot, length; /* including the header */
} header;

enum { RUNNING, OUT, DROPPED, RESCUED, FAILED, UNKNOWN };

typedef struct slot {
    atomic_bool ready; /* the fields below may be read */
    atomic_int end;
    atomic_bool submitted; /* its submitting call has returned */
    atomic_bool back;      /* its memory is ours again */
    atomic_bool arrived;
    int link, sender;
    unsigned char *data;
    bool pooled; /* its memory is in the pool */
    size_t length;
} slot;

typedef struct loop {
    azc_id port;
    int fd; /* of the poller that it watches, or negative */
} loop;

typedef struct wire {
    azc_id out, in;
    loop at;           /* for its azc_recv */
    uint64_t recorded; /* acknowledged events of that port */
    int fd;            /* for a reader that uses read(2) */
    atomic_bool closing, closed;
    bool early; /* the reader leaves early */
    bool whole; /* the reader saw the end of the stream */
    int64_t last[SENDERS];
    pthread_t reader;
    unsigned seed;
} wire;

static struct {
    slot slots[SLOTS];
    wire links[LINKS];
    azc_id pool; /* with a slot for each message */
    loop at;
    atomic_int begun[SENDERS], ended;
    atomic_bool sent, over;
    uint64_t operations, cancelled, rescued, failed, unknown, lent;
    unsigned seed;
} race;

static unsigned draw(unsigned *seed, unsigned n) {
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % n;
}

static uint64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ---- loops ----------------------------------------------------------- */

static void open_loop(loop *it, unsigned *seed) {
    CHECK(azc_port_open(&it->port) == 0, "no port");
    it->fd = draw(seed, 5) ? azc_port_watch(it->port) : -1;
    CHECK(it->fd >= -1 || it->fd == -EOPNOTSUPP, "azc_port_watch: %d", it->fd);
}

/* Waits until data is ready or, if it hears, for an event. */
static void turn(const loop *it, bool hears, int ms, unsigned *seed) {
    struct pollfd ready[2] = {{it->fd, POLLIN, 0}};
    ready[1] = (struct pollfd){hears ? azc_port_fd(it->port) : -1, POLLIN, 0};
    if (draw(seed, 30) == 0) poll(NULL, 0, (int)draw(seed, 6));
    poll(ready, 2, ms);
    if (ready[0].revents) CHECK(azc_port_move(it->port) >= 0, "a loop is lost");
}

/* ---- operations ------------------------------------------------------ */

static unsigned char byte_of(uint64_t slot, uint64_t offset) {
    return (unsigned char)((slot * 37 + offset * 11 + offset / 251) % 128);
}

static void fill(slot *it, uint64_t number) {
    header head = {number, it->length};
    memcpy(it->data, &head, sizeof head);
    for (size_t i = sizeof head; i < it->length; i++) it->data[i] = byte_of(number, i);
}

/* The memory is ours again, so it is spoilt at once. */
static void take_back(slot *it) {
    if (atomic_exchange(&it->back, true)) return;
    memset(it->data, POISON, it->length);
    if (!it->pooled) free(it->data);
}

static void end(slot *it, int how) {
    int before = atomic_exchange(&it->end, how);
    CHECK(before == RUNNING, "an operation ends twice: %d, %d", before, how);
    take_back(it);
    atomic_fetch_add(&race.ended, 1);
}

static size_t draw_length(unsigned *seed) {
    unsigned kind = draw(seed, 10);
    size_t n = kind < 4 ? draw(seed, 100) : draw(seed, 9000);
    if (kind > 7) n = draw(seed, LONGEST);
    return n + sizeof(header);
}

static int submit(slot *it, uint64_t token, unsigned *seed) {
    size_t first = draw(seed, 2) ? it->length : draw(seed, (unsigned)it->length);
    struct iovec vec[2] = {{it->data, first}, {it->data + first, it->length - first}};
    return azc_sendv(race.links[it->link].out, race.at.port, token, vec, 2, NULL, 0,
                     draw(seed, 2) == 0);
}

static void *send_some(void *arg) {
    int sender = (int)(intptr_t)arg;
    unsigned seed = race.seed * 31 + (unsigned)sender;
    for (int i = 0; i < PER_SENDER; i++) {
        int number = sender * PER_SENDER + i;
        slot *it = &race.slots[number];
        it->link = (int)draw(&seed, LINKS);
        it->sender = sender;
        it->length = draw_length(&seed);
        it->pooled = draw(&seed, 2);
        it->data = it->pooled ? azc_pool_slot(race.pool, number) : malloc(it->length);
        CHECK(it->data, "no memory");
        fill(it, (uint64_t)number);
        atomic_store(&it->ready, true);
        atomic_store(&race.begun[sender], i + 1);
        int r = submit(it, (uint64_t)number, &seed);
        atomic_store(&it->submitted, true);
        if (r == -EINPROGRESS || r == -EBUSY) continue;
        end(it, r >= 0 ? OUT : FAILED);
    }
    return NULL;
}

/* An operation that has ended or not begun keeps its memory until its call returns. */
static void cancel(slot *it, uint64_t token, unsigned *seed) {
    azc_event event;
    uint64_t limit = draw(seed, 8) ? 64 << 20 : 1000;
    bool submitted = atomic_load(&it->submitted);
    int r = azc_cancel(race.links[it->link].out, token, limit, &event);
    CHECK(r >= AZC_DROPPED && r <= AZC_UNKNOWN, "azc_cancel: %d", r);
    if (r != AZC_LATER && (r != AZC_OVER || submitted)) take_back(it);
}

static void close_link(wire *it, int number) {
    bool before = false;
    if (!atomic_compare_exchange_strong(&it->closing, &before, true)) return;
    int r = azc_close(it->out, race.at.port, (uint64_t)(CLOSE_TOKEN + number));
    CHECK(r == 1 || r == -EINPROGRESS, "azc_close: %d", r);
    if (r == 1) atomic_store(&it->closed, true);
}

/* Draws one of the latest operations of a sender. */
static unsigned draw_recent(unsigned *seed) {
    unsigned sender = draw(seed, SENDERS), back = draw(seed, 12);
    unsigned begun = (unsigned)atomic_load(&race.begun[sender]);
    return sender * PER_SENDER + (begun > back ? begun - back - 1 : 0);
}

static void *cancel_some(void *arg) {
    unsigned seed = race.seed * 77 + 5;
    (void)arg;
    while (!atomic_load(&race.sent)) {
        azc_stats stats;
        unsigned number = draw_recent(&seed);
        slot *it = &race.slots[number];
        if (atomic_load(&it->ready)) cancel(it, number, &seed);
        wire *any = &race.links[draw(&seed, LINKS)];
        CHECK(azc_get_stats(any->out, &stats) == 0, "no stats");
        CHECK(azc_fd(any->out) >= 0 || atomic_load(&any->closing), "no fd");
        if (draw(&seed, 10000) == 0) close_link(any, (int)(any - race.links));
        if (draw(&seed, 4) == 0) sched_yield();
    }
    return NULL;
}

static void judge(const azc_event *event) {
    if (event->status == AZC_ROOM) return;
    if (event->token >= CLOSE_TOKEN) {
        atomic_store(&race.links[event->token - CLOSE_TOKEN].closed, true);
        return;
    }
    int how = event->status == 0              ? OUT
              : event->outcome == AZC_RESCUED ? RESCUED
              : event->outcome == AZC_UNKNOWN ? UNKNOWN
              : event->sent                   ? FAILED
                                              : DROPPED;
    end(&race.slots[event->token], how);
}

static bool all_closed(void) {
    for (int i = 0; i < LINKS; i++)
        if (!atomic_load(&race.links[i].closed)) return false;
    return true;
}

/* The first events are repeated ones, which come until they are acknowledged. */
static void take_events(uint64_t *recorded, uint64_t *judged, unsigned *seed) {
    azc_event events[8];
    int count = azc_port_take(race.at.port, *recorded, events, 8);
    CHECK(count >= 0, "azc_port_take: %d", count);
    CHECK(*judged == *recorded || count, "events are forgotten");
    for (int i = 0; i < count; i++) {
        if (events[i].sequence <= *judged) continue;
        *judged = events[i].sequence;
        judge(&events[i]);
    }
    if (draw(seed, 3)) *recorded = *judged;
}

static void *take_all(void *arg) {
    uint64_t deadline = now_ms() + PATIENCE_MS, recorded = 0, judged = 0;
    unsigned seed = race.seed * 51 + 3;
    (void)arg;
    while (atomic_load(&race.ended) < SLOTS || !all_closed()) {
        turn(&race.at, true, 20, &seed);
        take_events(&recorded, &judged, &seed);
        CHECK(now_ms() < deadline, "operations are lost: %d of %d ended",
              atomic_load(&race.ended), SLOTS);
    }
    CHECK(azc_port_take(race.at.port, judged, NULL, 0) == 0, "a late event");
    atomic_store(&race.over, true);
    return NULL;
}

/* A second thread that moves data for the same loop. */
static void *move_some(void *arg) {
    unsigned seed = race.seed * 13 + 7;
    (void)arg;
    while (!atomic_load(&race.over)) turn(&race.at, false, 5, &seed);
    return NULL;
}

/* ---- readers --------------------------------------------------------- */

static void change_loop(wire *it) {
    CHECK(azc_port_close(it->at.port) == 0, "a port stays");
    open_loop(&it->at, &it->seed);
    it->recorded = 0;
}

/* Receives up to n bytes; 0 at the end of the stream. */
static ssize_t receive(wire *it, void *data, size_t n) {
    uint64_t come = 0, deadline = now_ms() + PATIENCE_MS;
    azc_event event;
    if (!it->in) return read(it->fd, data, n);
    if (draw(&it->seed, 20) == 0) change_loop(it);
    if (draw(&it->seed, 2)) azc_recv_now(it->in, data, n, n, &come);
    if (come) return (ssize_t)come;
    ssize_t r = azc_recv(it->in, it->at.port, READ_TOKEN, data, n, 1, NULL);
    if (r != -EINPROGRESS) return r;
    while (azc_port_take(it->at.port, it->recorded, &event, 1) == 0) {
        turn(&it->at, true, PATIENCE_MS, &it->seed);
        CHECK(now_ms() < deadline, "a reader waits");
    }
    it->recorded = event.sequence;
    azc_port_take(it->at.port, it->recorded, NULL, 0);
    return event.status < 0 ? event.status : (ssize_t)event.sent;
}

/* Fills data, or returns false at the end of the stream. */
static bool receive_all(wire *it, unsigned char *data, size_t n) {
    while (n) {
        size_t most = 1 + draw(&it->seed, 8192);
        ssize_t r = receive(it, data, n < most ? n : most);
        if (r <= 0) return false;
        data += r;
        n -= (size_t)r;
    }
    return true;
}

static void check_message(wire *it, const header *head, const unsigned char *data) {
    slot *sent = &race.slots[head->slot];
    CHECK(atomic_load(&sent->ready), "a message from the future");
    for (size_t i = sizeof *head; i < head->length; i++)
        CHECK(data[i] == byte_of(head->slot, i), "byte %zu of message %d", i,
              (int)head->slot);
    CHECK(&race.links[sent->link] == it, "a message on another link");
    CHECK((int64_t)head->slot > it->last[sent->sender], "out of order");
    it->last[sent->sender] = (int64_t)head->slot;
    CHECK(!atomic_exchange(&sent->arrived, true), "a message arrives twice");
}

static void *read_link(void *arg) {
    static const size_t longest = LONGEST + sizeof(header);
    wire *it = arg;
    unsigned char *data = malloc(longest);
    header head;
    int left = it->early ? (int)draw(&it->seed, 30) : SLOTS + 1;
    CHECK(data, "no memory");
    while (left-- > 0) {
        memcpy(data, "end", 4);
        if (!receive_all(it, data, sizeof head)) break;
        memcpy(&head, data, sizeof head);
        CHECK(head.slot < SLOTS && head.length <= longest, "not a header");
        if (!receive_all(it, data + sizeof head, head.length - sizeof head)) break;
        check_message(it, &head, data);
    }
    it->whole = !it->early;
    free(data);
    if (it->in) {
        CHECK(azc_free(it->in) == 0, "no channel to free");
        CHECK(azc_port_close(it->at.port) == 0, "a port stays");
    } else {
        close(it->fd);
    }
    return NULL;
}

/* ---- rounds ---------------------------------------------------------- */

/* The reader's buffer is small, so that a lot has to wait. */
static void connect_over_tcp(int fds[2]) {
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof at;
    int size = 4096, listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 &&
              listen(listener, 1) == 0,
          "nothing listens");
    getsockname(listener, (struct sockaddr *)&at, &length);
    fds[1] = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(fds[1], (struct sockaddr *)&at, sizeof at) == 0, "no connection");
    fds[0] = accept(listener, NULL, NULL);
    close(listener);
}

/* Every reader here only reads, so pages may be lent to it. */
static int lending_flags(int kind, int fd, unsigned *seed) {
    if (kind % 3 == 2 || draw(seed, 2)) return 0;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return AZC_READS | AZC_OWN;
}

static void open_fds(int kind, int fds[2]) {
    if (kind % 3 == 2) {
        connect_over_tcp(fds);
    } else if (kind % 3) {
        int size = 4096;
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0, "no sockets");
        setsockopt(fds[1], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    } else {
        CHECK(pipe(fds) == 0, "no pipe");
#ifdef F_SETPIPE_SZ
        fcntl(fds[1], F_SETPIPE_SZ, 4096);
#endif
    }
}

static void open_link(int number, unsigned *seed) {
    wire *it = &race.links[number];
    int fds[2], more = draw(seed, 4) ? 0 : AZC_UNTRUSTED;
    memset(it, 0, sizeof *it);
    for (int i = 0; i < SENDERS; i++) it->last[i] = -1;
    it->seed = draw(seed, 1 << 20);
    it->early = draw(seed, 6) == 0;
    open_fds(number, fds);
    if (!more) more = lending_flags(number, fds[1], seed);
    CHECK(azc_open(fds[1], AZC_OUT | more, &it->out) == 0, "no channel");
    if (draw(seed, 2)) azc_set_limit(it->out, draw(seed, LONGEST));
    it->fd = fds[0];
    if (number >= LINKS / 2) {
        CHECK(azc_open(fds[0], AZC_IN, &it->in) == 0, "no channel");
        open_loop(&it->at, &it->seed);
    }
    CHECK(pthread_create(&it->reader, NULL, read_link, it) == 0, "no thread");
}

/* What readers have got must match the reported ends. */
static void check_round(void) {
    for (int i = 0; i < SLOTS; i++) {
        slot *it = &race.slots[i];
        int how = atomic_load(&it->end);
        bool arrived = atomic_load(&it->arrived);
        CHECK(!(arrived && how == DROPPED), "a dropped message arrives");
        CHECK(arrived || how != OUT || !race.links[it->link].whole,
              "a message that is out does not arrive");
        race.operations++;
        race.cancelled += how == DROPPED;
        race.rescued += how == RESCUED;
        race.failed += how == FAILED;
        race.unknown += how == UNKNOWN;
    }
}

static void count_loans(azc_id channel) {
    azc_stats stats = {0};
    CHECK(azc_get_stats(channel, &stats) == 0, "no stats");
    race.lent += stats.lent;
}

static void run_round(unsigned seed) {
    pthread_t senders[SENDERS], canceller, drainer, mover;
    memset(race.slots, 0, sizeof race.slots);
    race.seed = seed;
    atomic_store(&race.ended, 0);
    for (int i = 0; i < SENDERS; i++) atomic_store(&race.begun[i], 0);
    atomic_store(&race.sent, false);
    atomic_store(&race.over, false);
    open_loop(&race.at, &seed);
    CHECK(azc_pool_open(LONGEST + sizeof(header), SLOTS, &race.pool) == 0, "no pool");
    for (int i = 0; i < LINKS; i++) open_link(i, &seed);
    pthread_create(&drainer, NULL, take_all, NULL);
    pthread_create(&mover, NULL, move_some, NULL);
    pthread_create(&canceller, NULL, cancel_some, NULL);
    for (int i = 0; i < SENDERS; i++)
        pthread_create(&senders[i], NULL, send_some, (void *)(intptr_t)i);
    for (int i = 0; i < SENDERS; i++) pthread_join(senders[i], NULL);
    atomic_store(&race.sent, true);
    pthread_join(canceller, NULL);
    unsigned ms = draw(&seed, 2) ? draw(&seed, 10) : 300; /* (300: enough for all) */
    while (atomic_load(&race.ended) < SLOTS && ms--) poll(NULL, 0, 1);
    for (int i = 0; i < LINKS; i++) close_link(&race.links[i], i);
    pthread_join(drainer, NULL);
    pthread_join(mover, NULL);
    for (int i = 0; i < LINKS; i++) {
        count_loans(race.links[i].out);
        azc_free(race.links[i].out);
        pthread_join(race.links[i].reader, NULL);
    }
    CHECK(azc_port_close(race.at.port) == 0, "a port stays");
    CHECK(azc_pool_close(race.pool) == 0, "a pool stays");
    check_round();
}

int main(int argc, char **argv) {
    uint64_t operations = 10000;
    unsigned seed = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        unsigned long value = strtoul(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--operations") == 0) operations = value;
        if (strcmp(argv[i], "--seed") == 0) seed = (unsigned)value;
    }
    while (race.operations < operations) run_round(seed++);
    printf("%llu operations, %llu dropped, %llu rescued, %llu cut off, "
           "%llu unknown, %llu bytes lent\n",
           (unsigned long long)race.operations, (unsigned long long)race.cancelled,
           (unsigned long long)race.rescued, (unsigned long long)race.failed,
           (unsigned long long)race.unknown, (unsigned long long)race.lent);
    return 0;
}
