/* ending.h - how operations end: done, cancelled, or with their channel.
 *
 * Every operation with a note ends with one event, or with the return of the call
 * that submitted it.  A cancel takes effect at once, unless a system call is using the
 * operation's memory: then the driver applies it after that call.
 *
 * All of these but the last are called with the channel's lock.
 */
#ifndef AZC_ENDING_H
#define AZC_ENDING_H
#include "channel.h"

/* Takes an operation out of the queue, ends it, and frees it unless its submitting call
 * still runs.  Returns the outcome in its event. */
int azc__end_one(azc_channel *channel, azc_op *op, int status, int outcome);
/* Ends operations that were moved and, if they were lent, read. */
void azc__end_consumed(azc_channel *channel);
/* Ends every operation, in order. */
void azc__end_all(azc_channel *channel, int status);
/* Breaks the channel: every operation ends with this error. */
void azc__break(azc_channel *channel, int error);
/* Is the number still our file's?  Other code may have closed it, and the kernel given
 * it to another file. */
bool azc__still_ours(const azc_channel *channel);
/* Breaks the channel if the number is no longer its file's; returns whether it did. */
bool azc__was_replaced(azc_channel *channel);
/* After something has left the queue: notifies the operations that now have room.  If
 * nothing is left to be moved, the wait for the kernel's memory is over, too. */
void azc__admit_waiting(azc_channel *channel);

/* After a system call, with the lock: no operation is in flight any more, and the
 * cancels and copies that were put off meanwhile are applied. */
void azc__apply_cancels(azc_channel *channel);
/* Applies what was put off for one operation, at the end of the call that submits it. */
void azc__apply_cancel_of(azc_channel *channel, azc_op *op);

/* If this is a hold that completes and has begun, reports to its caller that it goes on,
 * and ignores the cancel.  False: it is no such hold. */
bool azc__let_go(azc_channel *channel, azc_op *op);

/* CLOSING -> CLOSED (closing.c); the lock is released meanwhile.  False: another thread
 * is still closing the fd. */
bool azc__finish_close(azc_channel *channel);
/* In a forked child, without the lock. */
void azc__channel_fork_child(void *channel);

#endif
