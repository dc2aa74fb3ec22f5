/* scripted.h - a kernel that gives the answers that a test has written down.
 *
 * It stands behind csrc/sys.h and csrc/poller.h, instead of kernel.c and poller.c, with
 * the threads and locks of threads.c.  Nothing is drawn from a seed, and time passes
 * only when a test lets it pass: so a test knows when each call comes, with how many
 * bytes, from which thread, and in which round of a pump.
 *
 * Released memory is filled with poison and kept until the end.  The pages of
 * pools are real.
 */
#ifndef SIM_SCRIPTED_H
#define SIM_SCRIPTED_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "channel.h"
#include "poller.h"
#include "threads.h"

enum file_kind { SOCKET, PIPE, TTY, REGULAR, DEVICE, LOOP };

enum {
    ALL = 1 << 30, /* an answer: all bytes of the call */
    FIRST_FD = 100,
    FDS = 16,
    CALLS = 2400,
    ANSWERS = 8,
    ROUNDS = 64,
    SECOND = 1000000, /* in microseconds */
};

/* A call that moved bytes, or attempted to. */
typedef struct call {
    int fd;
    size_t bytes;
    int returned;
    bool in_caller; /* made by the test's thread */
    bool with_fds;
    bool lends;
    bool nowait; /* SYS_NOWAIT */
    int round;   /* waits of pumps before it */
    int looks;   /* fstats of this fd before it */
} call;

typedef struct file {
    int kind;
    bool replaced;      /* the number names another file */
    bool ready;         /* reported as soon as it is armed */
    int arm_fails;      /* -errno for the next time that it is armed, or 0 */
    azc_poller *poller; /* the one that has it armed, or NULL */
    azc_poller *polls;  /* LOOP: the poller whose fd this is */
    uint64_t who;
    int arms; /* how often it was armed */
    int forgotten;
    int looks; /* number of fstats */
    bool closed, no_sigpipe, nonblock;
} file;

typedef struct kernel {
    uint64_t now; /* in nanoseconds */
    int clocks;   /* how often the time was asked for */
    uint64_t ns_per_call;
    file files[FDS];
    int count;

    /* results of calls: bytes, -errno, or ALL; after the last one -EAGAIN */
    const int *script;
    int answers, answered;
    bool takes_all;                   /* after the last one ALL instead */
    void (*meanwhile[ANSWERS])(void); /* done during each of these calls */
    call calls[CALLS];
    int ncalls;
    int unread;      /* bytes of a pipe or socket; or -errno */
    bool full;       /* the socket has no room */
    bool unreadable; /* the messages' memory cannot be read */
    int poll_error;  /* what poll returns, if not 0 */
    short told;      /* events that poll reports in any case */
    bool keeps_pages;
    const void *taken_back; /* the slot whose pages were taken back last */

    int takes;              /* how often reports were taken from a loop's poller */
    int rounds;             /* number of waits of pumps */
    int timeouts[ROUNDS];   /* of the latest ones, in microseconds */
    int threads, no_thread; /* started; still to be refused */
    int wakes;
    int pollers;   /* how many are open */
    int abandoned; /* after a fork */
    int sleeps;
    int first_fd; /* FIRST_FD, unless a test changes it */
    int lingers, one_cpu, shutdown_says;
    int no_memory; /* the allocation that is refused: 1 is the next; 0: none */
    bool no_loans;
    int sigpipes_held, sigpipes; /* blocked and not restored yet; ever blocked */
} kernel;

extern kernel world;

void scripted_begin(void);
void scripted_end(void); /* fails if anything is left */
/* The next calls return these, one by one. */
void scripted_say(const int *script, int count);
/* Somebody does this during the i-th of these calls. */
void scripted_meanwhile(int i, void (*act)(void));
int scripted_file(int kind);
file *file_of(int fd);
void scripted_pass(uint64_t us);
void scripted_pass_ns(uint64_t ns);
/* Reports the fd as ready; false if it is not armed. */
bool scripted_report(int fd);
void scripted_wake(azc_poller *poller);
/* The timeout with which a pump waits now. */
int scripted_timeout(void);
bool scripted_signalled(int fd);
int scripted_wakers(void);   /* how many ends are open */
size_t scripted_bytes(void); /* moved by all calls */

#define KERNEL_SAYS(...)                                                               \
    do {                                                                               \
        static const int script[] = {__VA_ARGS__};                                     \
        scripted_say(script, (int)(sizeof script / sizeof *script));                   \
    } while (0)

#endif
