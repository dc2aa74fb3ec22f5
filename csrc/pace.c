/* pace.c - how much to give a pipe at a time, found out by measuring.
 *
 * A pipe is locked while a call copies, so the piece decides how reader and
 * writer share it, and the best one depends on how the reader reads.  Measured
 * with a 1 MiB pipe: a reader of 32 KiB gets 4 GB/s from pieces of 8 KiB and 2
 * from whole frames; one of 256 KiB gets 1.3 and 2.  So each pipe tries them
 * all, keeps the cheapest, and tries another now and then.
 *
 * The clock runs from the pump's first call until the queue is dry: what the
 * program does between two messages is no fault of the piece.
 */
#include "channel.h"

enum {
    TRIAL = 4 << 20,  /* bytes to try a piece with */
    TERM = 128 << 20, /* bytes to stay with the best, before another trial */
};

static const size_t pieces[PACES] = {1 << 20, 32 << 10, 8 << 10};

/* A smaller piece has to be cheaper by this much: it takes more calls. */
static const double worth_it = 0.9;

size_t azc__pace_piece(const azc_pace *pace) { return pieces[pace->now]; }

void azc__pace_start(azc_pace *pace) {
    if (!pace->since) pace->since = azc_sys.now_ns();
}

void azc__pace_stop(azc_pace *pace) {
    if (pace->since) pace->spent += azc_sys.now_ns() - pace->since;
    pace->since = 0;
}

static int cheapest(const azc_pace *pace) {
    int best = 0;
    for (int i = 1; i < PACES; i++) {
        if (pace->cost[i] < pace->cost[best] * worth_it) best = i;
    }
    return best;
}

/* Every piece is tried once, then they take turns as the best one's rival. */
static int next_pace(azc_pace *pace) {
    if (pace->tried < PACES) return pace->tried;
    bool was_best = pace->now == pace->best;
    pace->best = cheapest(pace);
    if (!was_best) return pace->best;
    pace->rival = (pace->rival + 1) % PACES;
    return pace->rival;
}

void azc__pace_moved(azc_pace *pace, uint64_t bytes) {
    if (!pace->since) return;
    pace->bytes += bytes;
    bool settled = pace->tried == PACES && pace->now == pace->best;
    if (pace->bytes < (settled ? TERM : TRIAL)) return;
    azc__pace_stop(pace);
    pace->cost[pace->now] = (double)pace->spent / (double)pace->bytes;
    if (!pace->warm)
        pace->warm = true; /* the reader was starting */
    else if (pace->tried < PACES)
        pace->tried++;
    pace->now = next_pace(pace);
    pace->bytes = pace->spent = 0;
    azc__pace_start(pace);
}
