/* lane.h - one way to move bytes: which system calls, and how much at a time. */
#ifndef AZC_LANE_H
#define AZC_LANE_H
#include "azc.h"
#include "sys.h"

typedef struct azc_channel azc_channel;

typedef struct azc_lane {
    /* Without the channel's lock. */
    ssize_t (*move)(azc_channel *channel, struct iovec *vec, int count);
    uint64_t chunk;   /* bytes a move */
    uint64_t direct;  /* bytes that a submitting thread may move itself */
    uint64_t offer;   /* the longest message that it may offer in one call */
    size_t lend_from; /* the shortest piece that is lent, in bytes; 0: none is */
    bool polled;      /* the fd can be polled; else it is always ready */
    bool bounced;     /* the call may block, so it gets a copy of the bytes */
    bool shared;      /* all channels of this direction share one pump */
    bool pieces;      /* the moves are cut into small ones */
} azc_lane;

const azc_lane *azc__lane_for(const struct stat *st, int fd, int flags);
/* The lane of a tty, and of a FIFO that does not know RWF_NOWAIT. */
extern const azc_lane azc__lane_waiting;
/* The longest piece of any bounced lane. */
enum { BOUNCE_CHUNK = 8 << 10 };
/* Allocates the channel's bounce, if its lane works on copies; with the lock. */
int azc__prepare_bounce(azc_channel *channel);
/* Copies the pieces into the channel's bounce; with the lock. */
ssize_t azc__lane_fill(azc_channel *channel, const struct iovec *vec, int count);

#endif
