/* splicing.h - the simulated system calls of relays.
 *
 * They are a relay's own pipes, of which it has both ends; splice and sendfile between
 * files and such pipes; and a poll that waits.  A call with two files takes from the
 * one only bytes that the other accepts, and a fault of either moves nothing.
 */
#ifndef SIM_SPLICING_H
#define SIM_SPLICING_H
#include <stdint.h>

extern uint64_t sim_spliced; /* bytes, in all seeds together */

void splicing_begin(void);
void splicing_end(void); /* fails if a pipe is still open */

#endif
