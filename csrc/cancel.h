/* cancel.h - gives an operation's buffers back before its end.
 *
 * A cancel takes effect at once, unless a system call is using the operation's
 * memory: then the driver applies it after that call.
 */
#ifndef AZC_CANCEL_H
#define AZC_CANCEL_H
#include "channel.h"

/* After a system call, with the lock: marks no operation as in flight any more, and
 * does to each what was put off meanwhile. */
void azc__apply_cancels(azc_channel *channel);
/* The same for one operation, at the end of the call that submits it. */
void azc__apply_cancel_of(azc_channel *channel, azc_op *op);

/* Tells the caller of a hold that completes, and has begun, that it goes on, instead of
 * a cancel.  False: it is none. */
bool azc__let_go(azc_channel *channel, azc_op *op);

#endif
