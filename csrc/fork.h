/* fork.h - the ends of a process: a fork's child, and the interpreter's exit.
 *
 * A forked child has the memory of all channels but none of the threads, and any
 * lock may be held for ever there.  So the parent holds the few locks that belong to
 * no object across the fork (pthread_atfork: no Python runs between), and the child
 * makes new ones for the objects, closes its copies of their fds and forgets them.
 * What a forgotten one occupies is never freed; its number answers -ECHILD.
 */
#ifndef AZC_FORK_H
#define AZC_FORK_H

void azc__fork_prepare(void);
void azc__fork_parent(void);
void azc__fork_child(void);

#endif
