/* move.h - the only place that moves bytes. */
#ifndef AZC_MOVE_H
#define AZC_MOVE_H
#include "channel.h"

/* What made a drive stop: */
enum azc_drove {
    DROVE_DRY,     /* nothing is left to be moved */
    DROVE_BLOCKED, /* the fd is full, or empty */
    DROVE_BUDGET,  /* others want their turn, or the submitter has had his */
    DROVE_LENT,    /* all is out, but some is lent */
    DROVE_STARVED, /* the kernel is out of memory: try again a little later */
};

/* All with the lock, which is let go of during system calls. */

/* Moves what is queued, in the caller's thread, up to budget bytes. */
enum azc_drove azc__drive(azc_channel *channel, uint64_t budget);
/* Moves bytes that are in no queue, as one move; returns how many, or -errno. */
ssize_t azc__attempt(azc_channel *channel, const void *data, size_t n);
/* The meaning of what an attempt returned, once its rest is in the queue. */
void azc__weigh_attempt(azc_channel *channel, ssize_t r);
/* Sees to it that what is left will be driven later. */
void azc__hand_over(azc_channel *channel, enum azc_drove drove);

#endif
