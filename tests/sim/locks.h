/* locks.h - read by the compiler before each file of csrc (with -include).
 *
 * It replaces the real locks by those of the simulated threads, so that a simulated
 * thread can be stopped wherever a real one can, and each lock's rank, owner and end
 * are checked.  The simulation, which forks, also learns what the helper does around
 * a fork.
 */
#ifndef SIM_LOCKS_H
#define SIM_LOCKS_H
#include <pthread.h>

int sim_mutex_init(pthread_mutex_t *mutex, const char *name);
int sim_mutex_destroy(pthread_mutex_t *mutex, const char *name);
int sim_mutex_lock(pthread_mutex_t *mutex, const char *name);
int sim_mutex_unlock(pthread_mutex_t *mutex);
pthread_t sim_thread_self(void);
int sim_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void));

#define pthread_mutex_init(mutex, attributes) sim_mutex_init(mutex, #mutex)
#define pthread_mutex_destroy(mutex)          sim_mutex_destroy(mutex, #mutex)
#define pthread_mutex_lock(mutex)             sim_mutex_lock(mutex, #mutex)
#define pthread_mutex_unlock(mutex)           sim_mutex_unlock(mutex)
#define pthread_self()                        sim_thread_self()
#define pthread_atfork(before, parent, child) sim_atfork(before, parent, child)

#endif
