/* pace.c - csrc/pace.c with a clock of our own.
 *
 * Each piece size has a cost here, in nanoseconds a byte.  The pace has to find the
 * cheaper one, to use it for at least 95 % of the bytes, and to find the other when
 * the costs change.  The time between two messages is not to count: here it is long,
 * and always comes after the piece that should win.
 */
#include <stdio.h>
#include <stdlib.h>

#include "pace.h"
#include "sys.h"

#define CHECK(condition, ...)                                                  \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "pace: " __VA_ARGS__);                             \
            fputc('\n', stderr);                                               \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

static const uint64_t MESSAGE = 6 << 20, MOVE = 64 << 10;
static const uint64_t GIB = 1 << 30, FIND = 512 << 20, LEFT = 1 << 20;
/* It had been sure of the other. */
static const uint64_t FIND_AGAIN = (uint64_t)5 << 30;

static uint64_t now = 1;

static uint64_t now_ns(void) { return now; }

struct azc_sys azc_sys = {.now_ns = now_ns};

/* One message; counts its bytes by the piece that moved them. */
static void send_message(azc_pace *pace, const double *cost, uint64_t *bytes) {
    for (uint64_t done = 0; done < MESSAGE; done += MOVE) {
        int piece = pace->now;
        azc__pace_start(pace);
        now += (uint64_t)(cost[piece] * (double)MOVE);
        bytes[piece] += MOVE;
        azc__pace_sent(pace, MOVE);
    }
    azc__pace_stop(pace);
}

/* The share of the favourite piece in so many bytes. */
static double share(azc_pace *pace, const double *cost, int favourite,
                    uint64_t total, bool idle) {
    uint64_t bytes[PACES] = {0};
    for (uint64_t sent = 0; sent < total; sent += MESSAGE) {
        send_message(pace, cost, bytes);
        if (idle && pace->now == favourite) now += 1000 * MESSAGE;
    }
    return (double)bytes[favourite] / (double)total;
}

static void check_settled(azc_pace *pace, const double *cost, int favourite,
                          bool idle, const char *when) {
    double part = share(pace, cost, favourite, 2 * GIB, idle);
    CHECK(part >= 0.95, "%s: piece %d has %.0f %% of the bytes%s", when,
          favourite, 100 * part, idle ? ", with idle times" : "");
    CHECK(pace->favourite == favourite, "%s: piece %d is best, not %d", when,
          pace->favourite, favourite);
}

/* One nanosecond a byte, and more for the other. */
static void draw_costs(double *cost, int favourite, double other) {
    cost[favourite] = 1;
    cost[!favourite] = other;
}

static void check_reader(int favourite, double other, bool idle) {
    azc_pace pace = {0};
    double cost[PACES];
    draw_costs(cost, favourite, other);
    share(&pace, cost, favourite, FIND, idle);
    check_settled(&pace, cost, favourite, idle, "at first");
    draw_costs(cost, !favourite, other);
    share(&pace, cost, !favourite, FIND_AGAIN, idle);
    check_settled(&pace, cost, !favourite, idle, "after a change");
}

/* What a caller's thread has moved tells nothing of the reader. */
static void check_not_started(void) {
    azc_pace pace = {0};
    for (int i = 0; i < 1000; i++) azc__pace_sent(&pace, MESSAGE);
    CHECK(pace.now == 0 && pace.bytes == 0, "the clock stood still");
}

/* Both ways: what is hardly cheaper is not worth a change. */
static void check_hardly_cheaper(void) {
    for (int favourite = 0; favourite < PACES; favourite++) {
        azc_pace pace = {.now = favourite, .favourite = favourite};
        double cost[PACES];
        draw_costs(cost, !favourite, 1.08);
        check_settled(&pace, cost, favourite, false, "hardly cheaper");
    }
}

/* What a piece's first bytes meet in the pipe is the other's: the first MiB
 * after each change costs nothing. */
static void check_leftovers(void) {
    azc_pace pace = {0};
    double cost[PACES];
    draw_costs(cost, 0, 1.15);
    uint64_t since_change = 0, bytes[PACES] = {0};
    for (uint64_t sent = 0; sent < 2 * GIB; sent += MOVE) {
        int piece = pace.now;
        azc__pace_start(&pace);
        double price = since_change < LEFT ? 0 : cost[piece];
        now += (uint64_t)(price * (double)MOVE);
        bytes[piece] += MOVE;
        azc__pace_sent(&pace, MOVE);
        since_change = pace.now == piece ? since_change + MOVE : 0;
    }
    CHECK(bytes[0] >= 0.95 * 2 * GIB, "the other's leftovers won");
}

/* A rival that is far behind is tried ever more rarely, and not to the end. */
static void check_price(void) {
    azc_pace pace = {0};
    const double cost[PACES] = {1, 4};
    unsigned trials = 0;
    uint64_t tried = 0;
    for (uint64_t sent = 0; sent < 16 * GIB; sent += MOVE) {
        int piece = pace.now;
        azc__pace_start(&pace);
        now += (uint64_t)(cost[piece] * (double)MOVE);
        azc__pace_sent(&pace, MOVE);
        trials += pace.now == 1 && piece == 0;
        tried += piece == 1 ? MOVE : 0;
    }
    CHECK(trials >= 5 && trials <= 8, "%u trials in 16 GiB", trials);
    CHECK(tried <= trials * 2 * LEFT, "%.1f MiB in %u trials",
          (double)tried / (1 << 20), trials);
}

/* Nobody is sure of a new favourite. */
static void check_new_favourite(void) {
    azc_pace pace = {0};
    double cost[PACES];
    draw_costs(cost, 0, 3);
    share(&pace, cost, 0, 16 * GIB, false);
    draw_costs(cost, 1, 3);
    while (pace.favourite == 0) share(&pace, cost, 1, MESSAGE, false);
    draw_costs(cost, 0, 3);
    share(&pace, cost, 0, FIND, false);
    CHECK(pace.favourite == 0, "a new favourite was kept for long");
}

/* Something else disturbs the favourite's laps, now and then. */
static void check_disturbed(void) {
    azc_pace pace = {0};
    uint64_t bytes[PACES] = {0};
    unsigned laps = 0;
    int before = 0;
    for (uint64_t sent = 0; sent < 64 * GIB; sent += MESSAGE) {
        laps += pace.now == 0 && before == 1;
        before = pace.now;
        bool disturbed = laps % 3 == 0;
        const double cost[PACES] = {disturbed ? 4 : 1, 1.3};
        send_message(&pace, cost, bytes);
    }
    CHECK(pace.favourite == 0, "a disturbed lap cost the favourite its place");
    CHECK(laps > 10, "%u laps are too few to tell", laps);
}

int main(void) {
    for (int favourite = 0; favourite < PACES; favourite++) {
        for (int idle = 0; idle < 2; idle++) {
            check_reader(favourite, 1.3, idle);
            check_reader(favourite, 3, idle);
        }
    }
    check_not_started();
    check_hardly_cheaper();
    check_leftovers();
    check_price();
    check_new_favourite();
    check_disturbed();
    return 0;
}
