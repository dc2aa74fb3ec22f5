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
 * A relay that completes is a message from a file of its own.  Cancelled before a byte is
 * out, it leaves no trace; later, its caller is told at once and it goes on.  If the
 * file fails then, the sink breaks, since nobody else would learn of it.  The source may
 * be closed meanwhile, which takes effect at the relay's end.
 *
 * passing.h says how the bytes pass.  What was taken and is not out when the relay ends
 * goes out to the sink before any later message.  If the sink cannot take it, the
 * source's next receive gets it.
 */
#ifndef AZC_RELAY_H
#define AZC_RELAY_H
#include "op.h"

void azc__relay_fork_child(void *relay);

#endif
