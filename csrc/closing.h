/* closing.h - the end of a channel: its fd is closed, or left to its next owner. */
#ifndef AZC_CLOSING_H
#define AZC_CLOSING_H
#include "channel.h"

/* CLOSING -> CLOSED, with the lock, which is released meanwhile.  False: another thread
 * is closing the fd. */
bool azc__finish_close(azc_channel *channel);

/* Returns the fd if it is to be closed: by the last of its channels, and not if the
 * number is lost. */
int azc__give_up_file(azc_file *file, int fd);

/* In a forked child, without the lock. */
void azc__channel_fork_child(void *channel);

#endif
