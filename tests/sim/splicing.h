/* splicing.h - what a relay asks of the simulated kernel.
 *
 * Its own pipes, whose two ends it holds itself; splice and sendfile between files and
 * such pipes; and a poll that waits.  A call of both files takes from the one only what
 * the other accepts, and a fault of either moves nothing.
 */
#ifndef SIM_SPLICING_H
#define SIM_SPLICING_H
#include <stdint.h>

extern uint64_t sim_spliced; /* bytes, all seeds together */

void splicing_begin(void);
void splicing_end(void); /* fails if a pipe is left open */

#endif
