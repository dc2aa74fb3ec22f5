/* closing.h - the end of a channel: its fd is closed, or left to its next owner. */
#ifndef AZC_CLOSING_H
#define AZC_CLOSING_H
#include "channel.h"

/* CLOSING -> CLOSED, with the lock, which is released meanwhile.  False: another thread
 * is closing the fd. */
bool azc__finish_close(azc_channel *channel);

/* In a forked child, without the lock. */
void azc__channel_fork_child(void *channel);

#endif
