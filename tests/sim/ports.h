/* ports.h - the ports of a simulated program, and what they have told.
 *
 * Two ports are in use at a time.  Now and then one gives its place to a new one;
 * it is drained until no operation names it any more, and closed.
 *
 * Checked of a port
 *   - what was told and not acknowledged is told again, the same and in the same
 *     order; only that there was room is told no more once the end is
 *   - its fd is readable until all was acknowledged
 *   - it can be closed if, and only if, it has nothing to tell now or later
 *   - once it is closed, its number names nothing
 */
#ifndef SIM_PORTS_H
#define SIM_PORTS_H
#include "oracle.h"

enum { PORTS = 2 }; /* in use */

void ports_begin(void);
extern uint64_t ports_moves; /* by loops that were awake */

azc_id port_number(int port);

/* Its end may be told by the port that has this place now. */
void ports_expect(op *it, int place);
/* Its call is over: it is queued, or has ended. */
void ports_submitted(op *it, bool queued);

/* Takes events, a few times, of any port; acknowledges all of them, some or none. */
void ports_take_some(void);
/* All there are; true if there were any. */
bool ports_take_all(void);
void ports_renew_one(void);
/* Calls of a number that names nothing any more. */
void ports_call_late(void);
void ports_end(void);

#endif
