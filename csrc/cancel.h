/* cancel.h - gives an operation's buffers back before its end.
 *
 * A cancel takes effect at once, unless a system call has the operation's memory
 * right now: then the driver does it when it is back.
 */
#ifndef AZC_CANCEL_H
#define AZC_CANCEL_H
#include "channel.h"

/* After a system call, with the lock: no operation is in flight any more, and
 * those which were to be cancelled are. */
void azc__apply_cancels(azc_channel *channel);
/* One whose submitting call is over. */
void azc__apply_cancel_of(azc_channel *channel, azc_op *op);

#endif
