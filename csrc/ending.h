/* ending.h - how operations end: done, cut off, or with their channel.
 *
 * Every operation that somebody waits for ends with one event, or with the return
 * of the call that submitted it.  All with the channel's lock.
 */
#ifndef AZC_ENDING_H
#define AZC_ENDING_H
#include "channel.h"

/* It is in no queue any more, and is freed, unless its call still runs.  Returns the
 * outcome that its event tells. */
int azc__end(azc_channel *channel, azc_op *op, int status, int outcome);
/* The same after taking it out of the queue. */
int azc__end_one(azc_channel *channel, azc_op *op, int status, int outcome);
/* What the reader needs no more. */
void azc__end_consumed(azc_channel *channel);
/* Every operation hears of the end, in order. */
void azc__end_all(azc_channel *channel, int status);
/* The channel cannot go on. */
void azc__break(azc_channel *channel, int error);
/* Something has left the queue: lets those in who have room now. */
void azc__let_in(azc_channel *channel);

#endif
