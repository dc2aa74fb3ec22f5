/* pace.c - how much to give a pipe at a time, found out by measuring.
 *
 * A pipe keeps two pages for the next write.  With pieces of two pages, and a
 * reader that keeps up, every byte goes through these two, which stay in the
 * caches: 6 GB/s where whole frames get 2.5, for a third less of the CPU.  If
 * reader and writer are far apart, on cores that share no cache, it is the
 * other way round: 1.5 and 2.3.  No one tells how it is, and it changes.
 *
 * So the favourite, a small piece at first, goes on for a term; then it is
 * measured, and its rival after it.  A rival that is cheaper WINS times in a
 * row becomes the favourite: what else the machine does disturbs a single lap.
 * One that is not has cost something (it fills the pipe, and whoever has to wait
 * for that), so the term after it is twice as long, up to TERM << LONGEST.
 *
 * The clock runs from the first call of the pump, or of who writes in its place,
 * until the queue is dry: what the program does between two messages is no fault
 * of the piece.
 */
#include "pace.h"

#include "sys.h"

enum {
    TERM = 256 << 20, /* bytes that nobody measures, and then twice as many */
    LONGEST = 4,
    SETTLE = 1 << 20, /* bytes until the pipe holds none of the other piece */
    LAP = 4 << 20,    /* bytes to measure a piece by */
    WINS = 3,
};

static const size_t pieces[PACES] = {SHORTEST_PIECE, 1 << 20};

/* What a rival's byte may cost, measured by the favourite's. */
static const double worth_it = 0.9;

size_t azc__pace_piece(const azc_pace *pace) { return pieces[pace->now]; }

void azc__pace_start(azc_pace *pace) {
    if (!pace->since) pace->since = azc_sys.now_ns();
}

void azc__pace_stop(azc_pace *pace) {
    if (pace->since) pace->spent += azc_sys.now_ns() - pace->since;
    pace->since = 0;
}

/* The favourite's lap tells what to beat, its rival's lap whether it was. */
static azc_pace_part after_lap(azc_pace *pace, double cost) {
    if (pace->now == pace->favourite) {
        pace->to_beat = cost * worth_it;
        pace->now = !pace->favourite;
        return SETTLING;
    }
    bool won = cost < pace->to_beat;
    pace->wins = won ? pace->wins + 1 : 0;
    pace->lost += !won && pace->lost < LONGEST;
    if (pace->wins == WINS) {
        pace->favourite = pace->now;
        pace->wins = pace->lost = 0;
    }
    pace->now = pace->favourite;
    return pace->wins ? SETTLING : RESTING;
}

/* Is the rest of a rival's lap not worth its price? */
static bool is_lost(const azc_pace *pace) {
    if (pace->part != MEASURED || pace->now == pace->favourite) return false;
    uint64_t spent = pace->spent + azc_sys.now_ns() - pace->since;
    return (double)spent >= pace->to_beat * LAP;
}

static bool is_over(const azc_pace *pace) {
    uint64_t length[] = {[RESTING] = (uint64_t)TERM << pace->lost,
                         [SETTLING] = SETTLE,
                         [MEASURED] = LAP};
    return pace->bytes >= length[pace->part] || is_lost(pace);
}

void azc__pace_moved(azc_pace *pace, uint64_t bytes) {
    if (!pace->since) return;
    pace->bytes += bytes;
    if (!is_over(pace)) return;
    azc__pace_stop(pace);
    double cost = (double)pace->spent / (double)pace->bytes;
    if (pace->part == MEASURED)
        pace->part = after_lap(pace, cost);
    else
        pace->part = MEASURED;
    pace->bytes = pace->spent = 0;
    azc__pace_start(pace);
}
