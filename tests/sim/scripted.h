/* scripted.h - a kernel that answers what a test has written down beforehand.
 *
 * It stands behind csrc/sys.h and csrc/poller.h in the place of kernel.c and poller.c,
 * with the threads and locks of threads.c.  Nothing is drawn from a seed, and no time
 * passes but what a test lets pass: so a test knows of each call when it comes, with
 * how many bytes, from which thread, and in which round of a pump.
 *
 * Memory that is released is filled with poison and kept until the end.  The pages of
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

enum file_kind { SOCKET, PIPE, TTY, REGULAR, DEVICE };

enum {
    ALL = 1 << 30, /* an answer: all bytes that the call is about */
    FIRST_FD = 100,
    FDS = 16,
    CALLS = 2400,
    ANSWERS = 8,
    ROUNDS = 64,
    SECOND = 1000000, /* in microseconds */
};

/* A call that moved bytes, or tried to. */
typedef struct call {
    int fd;
    size_t bytes;
    int returned;
    bool in_caller; /* made by the test's own thread */
    bool with_fds;
    bool lends;
    bool nowait; /* SYS_NOWAIT */
    int round;   /* of any pump: how many there were before */
    int looks;   /* fstats of this fd before it */
} call;

typedef struct file {
    int kind;
    bool replaced;      /* the number belongs to another file */
    bool ready;         /* it is reported as soon as it is armed */
    int arm_fails;      /* -errno, the next time that it is armed; or 0 */
    azc_poller *poller; /* in which it is armed, or NULL */
    uint64_t who;
    int arms; /* how often it was armed */
    int forgotten;
    int looks; /* fstats */
    bool closed;
} file;

typedef struct kernel {
    uint64_t now; /* in nanoseconds */
    int clocks;   /* how often it was asked for the time */
    uint64_t ns_per_call;
    file files[FDS];
    int count;

    /* what calls return: bytes, or -errno, or ALL; after its end always -EAGAIN */
    const int *script;
    int answers, answered;
    bool takes_all;                   /* ... or after its end ALL */
    void (*meanwhile[ANSWERS])(void); /* what happens in each of these calls */
    call calls[CALLS];
    int ncalls;
    int unread;      /* bytes of a pipe or socket; or -errno */
    bool full;       /* the socket */
    bool unreadable; /* the memory of messages */
    short told;      /* what poll says of any reader besides */
    bool keeps_pages;
    const void *taken_back; /* the slot whose pages came back last */

    int rounds;             /* waits of pumps */
    int timeouts[ROUNDS];   /* of the latest ones, in microseconds */
    int threads, no_thread; /* started; to be refused */
    int wakes;
    int pollers;   /* that are open */
    int abandoned; /* after a fork */
    int sleeps;
} kernel;

extern kernel world;

void scripted_begin(void);
void scripted_end(void); /* fails if anything is left */
/* The next calls return these, one after the other. */
void scripted_say(const int *script, int count);
/* ... and while the i-th of these calls runs, somebody does this. */
void scripted_meanwhile(int i, void (*act)(void));
int scripted_file(int kind);
file *file_of(int fd);
void scripted_pass(uint64_t us);
void scripted_pass_ns(uint64_t ns);
/* The fd is ready.  False: nobody has asked to be told. */
bool scripted_report(int fd);
void scripted_wake(azc_poller *poller);
/* Of the round before the wait in which a pump is now. */
int scripted_timeout(void);
bool scripted_signalled(int fd);
size_t scripted_bytes(void); /* moved by all calls */

#define KERNEL_SAYS(...)                                                               \
    do {                                                                               \
        static const int script[] = {__VA_ARGS__};                                     \
        scripted_say(script, (int)(sizeof script / sizeof *script));                   \
    } while (0)

#endif
