/* ending.h - how operations end: done, cancelled, or with their channel.
 *
 * Every operation with a note ends with one event, or with the return of the call
 * that submitted it.  A cancel takes effect at once, unless a system call is using the
 * operation's memory: then the driver applies it after that call.
 *
 * All of these are called with the channel's lock.
 */
#ifndef AZC_ENDING_H
#define AZC_ENDING_H
#include "channel.h"

/* Takes an operation out of the queue, ends it, and frees it unless its submitting call
 * still runs.  Returns the outcome that its event tells. */
int azc__end_one(azc_channel *channel, azc_op *op, int status, int outcome);
/* Ends what has been moved, and read if it was lent. */
void azc__end_consumed(azc_channel *channel);
/* Ends every operation, in order. */
void azc__end_all(azc_channel *channel, int status);
/* The channel cannot go on. */
void azc__break(azc_channel *channel, int error);
/* Is the number still our file's?  Other code may have closed it, and the kernel given
 * it to another file. */
bool azc__still_ours(const azc_channel *channel);
/* If it is not the channel is broken. */
bool azc__was_replaced(azc_channel *channel);
/* Something has left the queue: tells those who waited for room and now have it.  If
 * nothing is left to be moved, no one waits for memory any more either. */
void azc__admit_waiting(azc_channel *channel);

/* After a system call, with the lock: marks no operation as in flight any more, and
 * does to each what was put off meanwhile. */
void azc__apply_cancels(azc_channel *channel);
/* The same for one operation, at the end of the call that submits it. */
void azc__apply_cancel_of(azc_channel *channel, azc_op *op);

/* Tells the caller of a hold that completes, and has begun, that it goes on, instead of
 * a cancel.  False: it is none. */
bool azc__let_go(azc_channel *channel, azc_op *op);

/* CLOSING -> CLOSED (closing.c); the lock is released meanwhile.  False: another thread is
 * closing the fd. */
bool azc__finish_close(azc_channel *channel);
/* In a forked child, without the lock. */
void azc__channel_fork_child(void *channel);

#endif
