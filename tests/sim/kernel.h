/* kernel.h - a simulated kernel behind csrc/sys.h and csrc/poller.h.
 *
 * It simulates pipes, FIFOs, ttys, sockets, regular files and devices, each
 * with a small capacity, an end that a peer holds, and faults drawn from the
 * seed.  Loans are in lending.h.  It keeps the rules of a real kernel (an fd
 * reports once and is then silent, a socket with a bad page takes nothing, ...)
 * and checks that the helper keeps them too: no call on a closed or foreign
 * number, no two calls at once on one fd and direction, no lock held during a call
 * that may last, and no caller's thread in such a call.
 */
#ifndef SIM_KERNEL_H
#define SIM_KERNEL_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "lending.h"

enum sim_kind { SOCKET, PIPE, FIFO, TTY, REGULAR, DEVICE, KINDS };

/* Bytes under way in one direction. */
typedef struct sim_flow {
    size_t capacity;    /* out: of the pipe */
    size_t level;       /* bytes in it that have not been read */
    uint64_t moved;     /* by the helper, in all */
    uint64_t read;      /* out: by the peer, in all */
    unsigned char *log; /* out: everything that was accepted */
    size_t log_room;
    sim_loan *loans; /* out: pages whose content is read from memory later */
    int loans_count, loans_room;
    uint64_t lent;          /* bytes, in all */
    bool may_lend;          /* the peer only reads, as AZC_READS says */
    bool refused;           /* but the kernel does not lend */
    bool reads_on;          /* the peer reads everything that comes */
    uint64_t fed;           /* in: what the peer has written, in all */
    bool ended;             /* in: the peer has closed; out: the peer is gone */
    bool stalled;           /* calls do not return (the peer holds the pipe) */
    bool starving;          /* -ENOBUFS or -ENOMEM until the peer releases memory */
    uint64_t starved_since; /* 0: the last call was not starved */
    bool starved_long;      /* starved for so long that a channel may give up */
    bool no_more;           /* azc_close was called */
    int late_calls;         /* calls that have begun since: one may */
    bool busy;              /* a call is in progress */
    bool eof_told;
    int fatal; /* the first -errno that ends a channel */
    uint64_t calls, waits;
} sim_flow;

typedef struct sim_file {
    int kind, number;
    bool open;
    bool stolen;      /* its number belongs to another file now */
    bool succeeds;    /* its number was that of another file of ours */
    bool gone;        /* the old description is closed everywhere */
    bool unpollable;  /* the poller rejects such files */
    bool blocking;    /* O_NONBLOCK was removed from a pipe of ours */
    int waits_told;   /* calls that have met that */
    int linger;       /* duration of a close, in ms */
    sim_flow flow[2]; /* 0: in, 1: out */
} sim_file;

enum { SIM_FILES = 32, SIM_FIRST_FD = 1000 };

/* How often a fault strikes, in 1024. */
typedef struct sim_rates {
    unsigned cut;   /* fewer bytes than there is room for */
    unsigned again; /* -EAGAIN although it was ready */
    unsigned interrupted;
    unsigned starved;   /* one -ENOBUFS or -ENOMEM */
    unsigned broken;    /* -EPIPE, -ECONNRESET, -EIO */
    unsigned no_memory; /* allocate fails */
    unsigned no_thread;
    unsigned no_fd;    /* for a poller or waker; -ENOMEM when arming */
    unsigned one_cpu;  /* for the program and its peers */
    unsigned spurious; /* false readiness; too many unread bytes */
    unsigned refused;  /* the kernel lends no pages */
    unsigned no_pages; /* mmap fails */
    unsigned kept;     /* mremap fails, and mmap over other memory */
} sim_rates;

/* Injected faults, in all seeds together. */
enum sim_fault {
    FAULT_CUT,
    FAULT_AGAIN,
    FAULT_INTERRUPTED,
    FAULT_STARVED,
    FAULT_BROKEN,
    FAULT_BAD_MEMORY,
    FAULT_NO_MEMORY,
    FAULT_NO_THREAD,
    FAULT_NO_FD,
    FAULT_SPURIOUS,
    FAULT_PEER_DIED,
    FAULT_STOLEN,
    FAULT_SUCCEEDED,
    FAULT_STALLED,
    FAULT_REFUSED,
    FAULT_LATE,
    FAULT_NO_PAGES,
    FAULT_KEPT,
    FAULT_BLOCKING,
    FAULT_LINGERS,
    FAULTS,
};
extern uint64_t sim_faults[FAULTS];
extern const char *const sim_fault_names[FAULTS];
extern uint64_t sim_bytes; /* moved, in all seeds together */

/* Whether such a fault was injected since kernel_begin. */
typedef struct sim_excuses {
    bool no_memory, no_thread, no_fd, no_pages, kept;
} sim_excuses;

void kernel_begin(void);
void kernel_end(void); /* fails if anything is still open or allocated */
extern sim_rates kernel_rates;
sim_rates kernel_draw_rates(void);
extern bool kernel_in_child; /* after a fork: one thread, and no peer */
extern sim_excuses kernel_excuses;
extern int kernel_allocations_left; /* negative, as in the beginning: any number */
void kernel_set_faults(bool on);

size_t kernel_draw_capacity(void);
sim_file *kernel_new_file(int kind, size_t capacity);
/* The number of that file has been closed, and now belongs to this one. */
sim_file *kernel_new_successor(sim_file *of, int kind, size_t capacity);
sim_file *kernel_file(int number);
/* Whether the number was ours twice, and names nothing any more. */
bool kernel_is_nothing(int number);
int kernel_files(void);
sim_file *kernel_file_at(int index);
bool kernel_readable(int number); /* for a poller without a thread */

/* Part of csrc/sys.h. */
int kernel_open_waker(int ends[2]);
bool kernel_is_waker(int fd);
bool kernel_signalled(int fd);
void kernel_signal(int fd);
void kernel_clear(int fd);
void kernel_close_waker(int fd);

/* For poller.c.  Progress counts everything that may end a wait. */
extern uint64_t kernel_progress;
bool kernel_strikes(unsigned rate, int fault);
bool kernel_always_ready(const sim_file *file);
bool kernel_is_ready(sim_file *file, int what); /* of poller.h */
void poller_drop_closed(const sim_file *file);
void poller_end(void); /* fails if one is left open */

/* For splicing.c: the parts of a call that moves bytes, in this order.  False: a device
 * refuses it for now. */
bool kernel_begin_move(sim_file *file, bool out, int count);
ssize_t kernel_room(sim_file *file, bool waits); /* or the call's -errno */
ssize_t kernel_put(sim_file *file, const struct iovec *vec, int count, size_t n);
ssize_t kernel_take(sim_file *file, const struct iovec *vec, int count, bool waits);
void kernel_end_move(sim_file *file, bool out, ssize_t r);
/* Draws how many of n bytes are moved this time. */
size_t kernel_cut(size_t n);

/* Memory that a system call cannot read. */
void kernel_mark_bad(const void *from, size_t n);
void kernel_unmark_bad(const void *from);

/* The bytes of a file's stream: 7 bits each, so that poison stands out. */
void pattern_fill(void *to, uint64_t stream, uint64_t offset, size_t n);
bool pattern_equals(const void *data, uint64_t stream, uint64_t offset, size_t n);
uint64_t kernel_stream_of(const sim_file *file);

/* Actions of the peer. */
void peer_read(sim_flow *flow, size_t n);
void peer_read_remains(sim_flow *flow);
void peer_feed(sim_flow *flow, size_t n);
void peer_end(sim_flow *flow, int fatal); /* fatal of 0: an orderly end */
void peer_steal(sim_file *file);
void peer_unset_nonblock(sim_file *file);
void kernel_report_falsely(void);

/* True for threads that play the helper's callers: a system call in such a thread
 * is a short cut; all others are the helper's own. */
extern bool (*kernel_is_caller)(int thread);
/* Called before each call that moves bytes. */
extern void (*kernel_on_move)(sim_file *file, bool out);

#endif
