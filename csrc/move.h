/* move.h - moves bytes, and judges what each call has done. */
#ifndef AZC_MOVE_H
#define AZC_MOVE_H
#include "channel.h"

/* Why a drive stopped. */
enum azc_drove {
    DROVE_BUDGET,  /* nothing is left, or the budget is spent */
    DROVE_BLOCKED, /* the fd is full, or empty */
    DROVE_STARVED, /* the kernel is out of memory: try again a little later */
};

/* All of these are called with the lock, which is released during system calls. */

/* Moves what is queued, up to budget bytes; in_caller: for the call that submits it. */
enum azc_drove azc__drive(azc_channel *channel, uint64_t budget, bool in_caller);
/* Makes one move of bytes that are in no queue, in VEC_INLINE pieces at most; returns
 * the number of bytes, or -errno. */
ssize_t azc__attempt(azc_channel *channel, const struct iovec *vec, int count);
/* Handles the result of an attempt, once the rest of its bytes is in the queue. */
void azc__finish_attempt(azc_channel *channel, ssize_t r);
/* Leaves what is still queued to the pump, or to a relay whose turn it is. */
void azc__hand_to_pump(azc_channel *channel, enum azc_drove drove);

/* For relays, whose calls use two channels.  If it is the turn of this hold, its relay
 * becomes the channel's driver. */
bool azc__begin_turn(azc_channel *channel, azc_op *hold);
/* Does what other threads asked for meanwhile, and lets the channel go on. */
void azc__end_turn(azc_channel *channel);
/* Counts a call: it moved r bytes, or failed with -errno. */
void azc__count(azc_channel *channel, ssize_t r);
/* Handles -errno as a drive does, which may break the channel. */
enum azc_drove azc__handle_error(azc_channel *channel, int error);

#endif
