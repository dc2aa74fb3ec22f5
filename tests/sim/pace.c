/* pace.c - csrc/pace.c with a clock of our own.
 *
 * A reader gets on with each piece at a cost of its own, in nanoseconds a
 * byte.  Whichever is cheapest, the pace has to find it, to stay with it for
 * at least 80 % of the bytes, and to find another when the costs change.  What
 * passes between two messages is no cost: the idle time here is long, and
 * always falls to the piece that should win.
 */
#include <stdio.h>
#include <stdlib.h>

#include "channel.h"

#define CHECK(condition, ...)                                                  \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "pace: " __VA_ARGS__);                             \
            fputc('\n', stderr);                                               \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

static const uint64_t MESSAGE = 6 << 20, MOVE = 64 << 10;
static const uint64_t GIB = 1 << 30, FIND = 512 << 20;

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
        azc__pace_moved(pace, MOVE);
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
    CHECK(part >= 0.8, "%s: piece %d has %.0f %% of the bytes%s", when,
          favourite, 100 * part, idle ? ", with idle times" : "");
    CHECK(pace->best == favourite, "%s: piece %d is best, not %d", when,
          pace->best, favourite);
}

/* One nanosecond a byte, and more for the two others. */
static void draw_costs(double *cost, int favourite, double next, double last) {
    cost[favourite] = 1;
    cost[(favourite + 1) % PACES] = next;
    cost[(favourite + 2) % PACES] = last;
}

static void check_reader(int favourite, double next, double last, bool idle) {
    azc_pace pace = {0};
    double cost[PACES];
    draw_costs(cost, favourite, next, last);
    check_settled(&pace, cost, favourite, idle, "at first");
    for (int other = 0; other < PACES; other++) {
        draw_costs(cost, other, next, last);
        share(&pace, cost, other, FIND, idle);
        check_settled(&pace, cost, other, idle, "after a change");
    }
}

/* What a caller's thread has moved tells nothing of the reader. */
static void check_not_started(void) {
    azc_pace pace = {0};
    for (int i = 0; i < 1000; i++) azc__pace_moved(&pace, MESSAGE);
    CHECK(pace.now == 0 && pace.bytes == 0, "the clock stood still");
}

/* A smaller piece has to be worth its calls. */
static void check_hardly_cheaper(void) {
    azc_pace pace = {0};
    const double cost[PACES] = {1, 0.98, 0.95};
    check_settled(&pace, cost, 0, false, "all are alike");
}

int main(void) {
    for (int favourite = 0; favourite < PACES; favourite++) {
        for (int idle = 0; idle < 2; idle++) {
            check_reader(favourite, 1.3, 3, idle);
            check_reader(favourite, 3, 1.3, idle);
        }
    }
    check_not_started();
    check_hardly_cheaper();
    return 0;
}
