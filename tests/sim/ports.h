/* ports.h - the ports of a simulated program, and the events that they report.
 *
 * Two ports are in use at a time.  Now and then, a new one replaces one of them, which
 * is drained until no operation names it any more, and then closed.
 *
 * Checked for a port
 *   - an event that was not acknowledged is repeated, unchanged and in order; only an
 *     event of room is dropped after the operation's end
 *   - its fd is readable until all events are acknowledged
 *   - it can be closed if, and only if, it has no event now and gets none later
 *   - after the close, its number names nothing
 */
#ifndef SIM_PORTS_H
#define SIM_PORTS_H
#include "oracle.h"

enum { PORTS = 2 }; /* in use at a time */

void ports_begin(void);
extern uint64_t ports_moves; /* calls of azc_port_move */

azc_id port_number(int port);

/* The port that now has this place may report the operation's end. */
void ports_expect(op *it, int place);
/* The call has returned: the operation is queued, or has ended. */
void ports_submitted(op *it, bool queued);

/* Takes some events of any port, and acknowledges all, some or none of them. */
void ports_take_some(void);
/* Takes all events; returns whether there were any. */
bool ports_take_all(void);
void ports_renew_one(void);
/* Calls with numbers that name nothing any more. */
void ports_call_late(void);
void ports_end(void);

#endif
