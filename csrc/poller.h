/* poller.h - waiting for fds, and waking the thread that waits.
 *
 * Two implementations with the same names: poller_epoll.c, and poller_poll.c for the
 * portable build.
 *
 * An fd is armed for one report, and not reported again until it is armed again.
 * All functions but azc__poller_close may be called while another thread waits.  A
 * report may be outdated, and names a channel, or a loop's port, by its number, which is
 * never reused.
 */
#ifndef AZC_POLLER_H
#define AZC_POLLER_H
#include <stdbool.h>
#include <stdint.h>

typedef struct azc_poller azc_poller;

/* wakes: a thread waits in azc__poller_wait and may be woken; else wait for its fd. */
int azc__poller_open(azc_poller **poller, bool wakes);
/* An fd that is readable while a wait would return reports. */
int azc__poller_fd(const azc_poller *poller);
bool azc__poller_is_readable(const azc_poller *poller);
void azc__poller_close(azc_poller *poller);
/* In a forked child: only closes the fds. */
void azc__poller_abandon(azc_poller *poller);
/* What to wait for.  An error and the end of the other side are always reported. */
enum { POLLER_IN, POLLER_OUT };
/* Once fd is ready a wait reports `who`.  -EPERM: such a file cannot be waited for. */
int azc__poller_arm(azc_poller *poller, int fd, int what, uint64_t who);
void azc__poller_forget(azc_poller *poller, int fd);
/* Stores up to max reports, and returns how many; 0 after a wake or the timeout. */
int azc__poller_wait(azc_poller *poller, uint64_t *who, int max, int timeout_us);
void azc__poller_wake(azc_poller *poller);

#endif
