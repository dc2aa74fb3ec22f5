/* loop.h - event loops that receive by themselves.
 *
 * A receive that a pump finishes wakes two threads, one after the other.  So a port may
 * have a poller, whose fd its loop watches, and the receives of sockets wait there.  The
 * loop finishes them, by azc_port_move, as long as it is awake.
 *
 * Since a loop may render for seconds, the pump of all receiving sockets watches it:
 *
 *              readable                    late
 *    QUIET ---------------> LOOKING ---------------> TAKEN
 *      ^                    |     ^                    |
 *      +--------------------+     +--------------------+
 *        nothing is ready,          the loop has answered
 *        nor was received           PROMPT times in a row
 *
 *   QUIET    the pump waits until the poller is readable
 *   LOOKING  each millisecond the pump looks whether the loop has called azc_port_move.
 *            If it has not, though something was ready, the pump looks once more LATE_US
 *            later, and takes over
 *   TAKEN    new receives wait in the pump's own poller, and the pump moves what still
 *            gets ready in the loop's.  Now and then it wakes the loop, and gives the
 *            work back when the loop answers at once
 *
 * A channel is armed in one poller, for one report, and one thread gets that report.  If
 * two threads have reports of one channel (one is outdated), its lock decides who drives.
 *
 * The lock "loops" guards all of this.  No channel is locked under it, only a port.  The
 * last thread that uses a poller closes it.
 */
#ifndef AZC_LOOP_H
#define AZC_LOOP_H
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "azc.h"
#include "poller.h"

typedef struct azc_channel azc_channel;

/* In a poller's report: it is about a loop's poller, and the rest is a port's number. */
#define AZC_LOOP_REPORT (UINT64_C(1) << 63)

/* Lets the channel wait in the poller of its latest port's loop, which the pump watches
 * from its own poller; with the channel's lock.  1: it waits there; 0: there is no loop,
 * or it is late, or the pump should receive this; or -errno, as azc__poller_arm. */
int azc__loop_arm(azc_channel *channel, azc_poller *watcher);
/* Call it before the channel's fd is closed. */
void azc__loop_forget(azc_channel *channel);

/* Moves what is ready in the port's poller, for a while; 0, or -ESHUTDOWN. */
int azc__loop_move(azc_id port, void (*resume)(azc_id channel));

/* In the pump's thread: takes a report of the pump's poller about a loop. */
void azc__loop_report(const azc_poller *watcher, uint64_t report);
/* In the pump's thread: looks after all loops that it watches, and returns when to call
 * this again. */
uint64_t azc__loops_watch(azc_poller *watcher, void (*resume)(azc_id channel),
                          uint64_t now);
/* Call it when the pump ends. */
void azc__loops_unwatch(azc_poller *watcher);

/* Call it when the port is closed.  True if its loop had a poller. */
bool azc__loop_close(azc_id port);

extern pthread_mutex_t azc__loops_lock;
void azc__loops_fork_child(void);

#endif
