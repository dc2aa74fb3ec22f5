/* fork.h - the ends of a process: a fork's child, and the interpreter's exit.
 *
 * A forked child has the memory of all channels but none of the threads, and a lock
 * that was held at the fork is never released there.  So the parent takes the few
 * locks that belong to no object before the fork (pthread_atfork: no Python runs in
 * between).  The child makes new locks for the objects, closes its copies of their
 * fds and forgets them.  Their memory is never freed; their numbers give -ECHILD.
 */
#ifndef AZC_FORK_H
#define AZC_FORK_H

void azc__fork_prepare(void);
void azc__fork_parent(void);
void azc__fork_child(void);

#endif
