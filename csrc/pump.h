/* pump.h - the threads that finish what a call could not finish at once.
 *
 * All but the two for a fork are called with the channel's lock held.
 */
#ifndef AZC_PUMP_H
#define AZC_PUMP_H
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "azc.h"

typedef struct azc_channel azc_channel;
typedef struct azc_pump azc_pump;
typedef struct azc_list azc_list;

/* A channel's part in a pump. */
typedef struct azc_pumping {
    azc_pump *pump;
    azc_list *list; /* the pump's list that has it, or NULL; under the pump's lock */
    azc_channel *next, *before;
    uint64_t due; /* when its nap ends */
    bool armed;   /* the pump, or a loop, will resume it, sooner or later */
    azc_id loop;  /* the port in whose poller it waited last, or 0 */
} azc_pumping;

/* Gives the channel a pump, which will call resume; 0 or -errno. */
int azc__pump_attach(azc_channel *channel, void (*resume)(azc_id channel));
/* Has the pump resume the channel at once. */
void azc__pump_kick(azc_channel *channel);
/* Has the pump resume the channel in us microseconds at the latest. */
void azc__pump_nap(azc_channel *channel, unsigned us);
/* Has the pump, or a loop that is awake, resume the channel when its fd is ready.  0 or
 * -errno, as azc__poller_arm. */
int azc__pump_poll(azc_channel *channel);
/* Takes a closed channel from its pump, which ends if this was its last channel. */
void azc__pump_leave(azc_channel *channel);
bool azc__pump_is_private(const azc_channel *channel);

extern pthread_mutex_t azc__pumps_lock; /* guards the pumps that channels share */
/* In a forked child. */
void azc__pump_fork_child(const azc_channel *channel);
void azc__pump_fork_done(void);

#endif
