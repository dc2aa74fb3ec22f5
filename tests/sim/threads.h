/* threads.h - simulated threads: one real thread, many stacks, one seed.
 *
 * A simulated thread runs until it waits, or until sim_yield, drawing from the seed,
 * lets another run.  So every interleaving could happen with real threads, and a seed
 * always repeats its own.  Time stands still while a thread can run.
 */
#ifndef SIM_THREADS_H
#define SIM_THREADS_H
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { SIM_THREADS = 64, SIM_FOREVER = -1 };

/* Everything that happens is drawn from these numbers. */
uint64_t sim_random(void);
uint64_t sim_below(uint64_t n);
bool sim_chance(unsigned in_1024);

/* The latest steps are printed when a seed fails. */
void sim_trace(const char *format, int64_t a, int64_t b, int64_t c);
_Noreturn void sim_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define SIM_CHECK(condition, ...)                                                      \
    do {                                                                               \
        if (!(condition)) sim_fail(__VA_ARGS__);                                       \
    } while (0)

void sim_begin(uint64_t seed, bool verbose);
void sim_end(void); /* fails if a thread is still alive */
/* Tables of numbers stay with a process; this gives each seed its own. */
void sim_forget_numbers(void);

/* Starts a thread; returns its number, or -1 when there are too many. */
int sim_spawn(void *(*run)(void *), void *arg);
void sim_join(int thread);
void sim_detach(int thread);
int sim_self(void); /* 0 called sim_begin */

/* Forks, with the helper's handlers around it; the child's handler runs in
 * sim_fork_ends. */
pid_t sim_fork(void);
void sim_fork_ends(void);

void sim_yield(void); /* another thread may run here */
void sim_pause(void); /* another thread runs here, if there is one */
/* Waits for ready(arg), for at most ms; returns whether it became true. */
bool sim_wait(bool (*ready)(void *), void *arg, int64_t ms);
/* Thread 0 only: waits until all others wait for events that cannot come, or have been
 * polling for seconds. */
void sim_idle(void);

uint64_t sim_now(void);
void sim_pass_time(void);
bool sim_holds_locks(void);
bool sim_mutex_is_held(const pthread_mutex_t *mutex);

/* Called when the running thread has taken a channel's lock. */
extern void (*sim_on_channel_lock)(pthread_mutex_t *mutex);

#endif
