/* pace.c - how much to give a pipe at a time, found out by measuring.
 *
 * A pipe keeps two pages for the next write.  With pieces of two pages, and a
 * reader that keeps up, every byte goes through these two, which stay in the
 * caches: 6 GB/s where whole frames get 2.5, for a third less of the CPU.  If
 * reader and writer run on cores that share no cache, it is the other way round:
 * 1.5 and 2.3 GB/s.  The kernel does not tell which it is, and it changes.
 *
 * So there are two piece sizes, the favourite and its rival; at first the short one
 * is the favourite.  For a term the favourite is used and nothing measured.  Then it
 * runs for one measured lap, and its rival after it.  A rival that is cheaper WINS
 * times in a row becomes the favourite: a single lap may be disturbed by whatever
 * else the machine does.  A lap that the rival loses has a cost (it fills the pipe,
 * and the reader waits), so the next term is twice as long, up to TERM << LONGEST.
 *
 * The clock runs from the first call of the pump, or of the caller that writes in
 * its place, until the queue is empty.  The time between two messages is the
 * program's and does not count.
 */
#include "pace.h"

#include "sys.h"

enum {
    TERM = 256 << 20, /* bytes between two measurements, at first */
    LONGEST = 4,      /* how often the term is doubled */
    SETTLE =
        1 << 20,   /* bytes after a change, until the pipe holds only those */
    LAP = 4 << 20, /* bytes of one measurement */
    WINS = 3,      /* laps that make the rival the favourite */
};

static const size_t pieces[PACES] = {SHORTEST_PIECE, 1 << 20};

/* The rival wins a lap if its byte costs less than this part of the favourite's. */
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

/* Has the rival lost its lap before the end? */
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

void azc__pace_sent(azc_pace *pace, uint64_t bytes) {
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
