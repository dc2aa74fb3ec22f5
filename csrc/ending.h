/* ending.h - how operations end: done, cut off, or with their channel.
 *
 * Every operation with a note ends with one event, or with the return of the call
 * that submitted it.  All of these are called with the channel's lock.
 */
#ifndef AZC_ENDING_H
#define AZC_ENDING_H
#include "channel.h"

/* Ends an operation that is in no queue any more, and frees it unless its submitting
 * call still runs.  Returns the outcome that its event tells. */
int azc__end(azc_channel *channel, azc_op *op, int status, int outcome);
/* The same after taking it out of the queue. */
int azc__end_one(azc_channel *channel, azc_op *op, int status, int outcome);
/* Ends what has been moved, and read if it was lent. */
void azc__end_consumed(azc_channel *channel);
/* Ends every operation, in order. */
void azc__end_all(azc_channel *channel, int status);
/* The channel cannot go on. */
void azc__break(azc_channel *channel, int error);
/* Something has left the queue: tells those who waited for room and now have it.  If
 * nothing is left to be moved, no one waits for memory any more either. */
void azc__admit_waiting(azc_channel *channel);

#endif
