/* relay.h - moves bytes from one channel to another, with a thread of its own.
 *
 * A relay waits its turn as any message does: it has an operation in each of the two
 * queues, a hold, which has no bytes of its own.  The queue stops at a hold.
 *
 *   both holds submitted --> the sink's turn --> the source's turn --> moving --> over
 *
 * A turn comes when the hold is the first of its queue and no other thread is driving
 * the channel.  From then on the relay is what drives it (channel.h), with in_call
 * set: so a cancel, a close or an error of another thread only asks the relay to stop,
 * and wakes it.  Before its turn a hold may end like any operation; then the relay
 * ends, and has moved nothing.
 *
 * passing.h says how the bytes pass.  What was taken and is not out when the relay ends
 * goes out to the sink before any later message.  If the sink cannot take it, the
 * source's next receive gets it.
 */
#ifndef AZC_RELAY_H
#define AZC_RELAY_H
#include "op.h"

/* Both with the channel's lock, as long as the hold is in its queue. */

/* The hold's turn may have come, or the relay is asked to stop. */
void azc__relay_wake(azc_relay *relay);
/* The sink's hold (outward), or the source's, has ended. */
void azc__relay_lost(azc_relay *relay, bool outward, int status);

void azc__relay_fork_child(void *relay);

#endif
