/* move.h - moves bytes, and judges what each call has done. */
#ifndef AZC_MOVE_H
#define AZC_MOVE_H
#include "channel.h"

/* Why a drive stopped. */
enum azc_drove {
    DROVE_BUDGET,  /* nothing is left, or the budget is spent: others first */
    DROVE_BLOCKED, /* the fd is full, or empty */
    DROVE_STARVED, /* the kernel is out of memory: try again a little later */
};

/* All with the lock, which is released during system calls. */

/* Moves what is queued, up to budget bytes; in_caller: in a thread of the program's. */
enum azc_drove azc__drive(azc_channel *channel, uint64_t budget, bool in_caller);
/* Makes one move of bytes that are in no queue, in VEC_INLINE pieces at most; returns
 * how many, or -errno. */
ssize_t azc__attempt(azc_channel *channel, const struct iovec *vec, int count);
/* Handles what an attempt returned, once its rest is in the queue. */
void azc__finish_attempt(azc_channel *channel, ssize_t r);
/* Leaves what is still queued to the pump, or to a relay whose turn it is. */
void azc__hand_to_pump(azc_channel *channel, enum azc_drove drove);

/* For a driver whose calls use two channels, a relay.  Is it the turn of its hold?  Then
 * it drives the channel, until it ends the turn: that does what was asked for meanwhile,
 * and goes on. */
bool azc__begin_turn(azc_channel *channel, azc_op *hold);
void azc__end_turn(azc_channel *channel);
/* Counts what a call of it has moved: r bytes, or -errno. */
void azc__count(azc_channel *channel, ssize_t r);
/* Handles -errno as a drive does, which may break the channel. */
enum azc_drove azc__handle_error(azc_channel *channel, int error);

#endif
