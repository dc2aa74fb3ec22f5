/* loop.h - event loops that receive what has come themselves.
 *
 * A receive that a pump finishes wakes two threads, one after the other.  So a port may
 * have a poller, whose fd its loop watches, and the receives of sockets wait there.  They
 * are the loop's to finish, by azc_port_move, as long as the loop is awake.
 *
 * The pump of all receiving sockets watches, since a loop may render for seconds:
 *
 *              readable                    late
 *    QUIET ---------------> LOOKING ---------------> TAKEN
 *      ^                    |     ^                    |
 *      +--------------------+     +--------------------+
 *        nothing is ready,          the loop has answered
 *        nor was received           PROMPT times in a row
 *
 *   QUIET    the pump waits until the poller is readable
 *   LOOKING  it looks each millisecond whether the loop has been there.  If not, though
 *            something was ready, it looks once more LATE_US later, and takes over
 *   TAKEN    what has to wait waits in the pump's own poller, and the pump moves what
 *            still gets ready in the loop's.  Now and then it wakes the loop, and gives
 *            its work back when it comes at once
 *
 * A channel waits in one poller at a time, for one report.  So two threads never move for
 * one report; and if both had one, the channel's lock and its queue decide, as always.
 *
 * All of this is guarded by the lock "loops", the last but the port's, under which no
 * channel is locked.  A poller is closed by the last thread that uses it.
 */
#ifndef AZC_LOOP_H
#define AZC_LOOP_H
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "azc.h"
#include "poller.h"

typedef struct azc_channel azc_channel;

/* What a poller's report says of a loop's poller instead of a channel's number. */
#define AZC_LOOP_REPORT (UINT64_C(1) << 63)

/* Lets the channel wait in the poller of its latest port's loop, watched from that of
 * its pump; with the channel's lock.  1: it does; 0: no loop is there, or it is late,
 * or this is the pump's; or -errno, as azc__poller_arm. */
int azc__loop_arm(azc_channel *channel, azc_poller *watcher);
/* Its fd is closed. */
void azc__loop_forget(azc_channel *channel);

/* Moves what is ready in the port's poller, for a while; 0, or -ESHUTDOWN. */
int azc__loop_move(azc_id port, void (*resume)(azc_id channel));

/* In the pump's thread: its poller made this report of a loop; and look after all loops
 * that it watches.  Returns when that has to be done next. */
void azc__loop_report(const azc_poller *watcher, uint64_t report);
uint64_t azc__loops_watch(azc_poller *watcher, void (*resume)(azc_id channel),
                          uint64_t now);
/* The pump ends. */
void azc__loops_unwatch(azc_poller *watcher);

/* The port is closed.  True if its loop had a poller. */
bool azc__loop_close(azc_id port);

extern pthread_mutex_t azc__loops_lock;
void azc__loops_fork_child(void);

#endif
