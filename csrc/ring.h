/* ring.h - rings, by number: what a fork does to them. */
#ifndef AZC_RING_OWNER_H
#define AZC_RING_OWNER_H

/* In a forked child: closes our copies of the fds.  The memory stays mapped, since
 * there are views of it. */
void azc__ring_fork_child(void *ring);

#endif
