/* sys.h - every system call of the helper but those of rings, through one table.
 *
 * Each entry returns >= 0 or -errno, unless it says otherwise, and never -EINTR; no
 * other file but azc_ring.h touches errno.  Calls that a system lacks (splice, say) are
 * NULL.  Tests put a simulated kernel here: they assign other functions before they
 * open a channel.
 *
 * The syscalls, and why
 *   writev, readv     files, ttys and devices; pipes in the portable build, and our
 *                     own pipes in a pump (readv)
 *   write             long pieces to our own pipes: the cheapest call
 *   pwritev2/preadv2  other pipes: RWF_NOWAIT needs no O_NONBLOCK on a description
 *                     that others may share, RWF_NOSIGNAL spares a SIGPIPE
 *   vmsplice          lends pages to a pipe, where FIONREAD counts unread bytes;
 *                     splice takes them on to a UNIX socket, where SIOCOUTQ does
 *   sendmsg, recvmsg  sockets: MSG_DONTWAIT and MSG_NOSIGNAL take the place of the
 *                     RWF flags; SCM_RIGHTS carries fds
 *   statx             is the number still the file that we were given?  With
 *                     AT_STATX_DONT_SYNC, since a file system's server may never
 *                     answer
 *   fcntl             keeps our pipe end non-blocking, whatever another owner of it
 *                     has set
 *   copy              process_vm_readv on ourselves (or a pipe), which returns
 *                     EFAULT for a hole in the caller's memory, where memcpy would
 *                     crash
 */
#ifndef AZC_SYS_H
#define AZC_SYS_H
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

#include "azc.h"

/* How a move on a pipe or socket is to be made. */
enum {
    SYS_NOWAIT = 1, /* -EAGAIN rather than wait, whatever O_NONBLOCK says */
};

/* What restore_sigpipe needs to know. */
typedef struct sys_sigpipe {
    sigset_t before;  /* the thread's signal mask */
    bool blocked;     /* false: SIGPIPE was ignored, so nothing was done */
    bool was_pending; /* a SIGPIPE of the program's was pending before */
} sys_sigpipe;

/* Our own pipe that leads to a socket. */
typedef struct sys_between {
    int ends[2]; /* the first is -1: it is not open */
    dev_t device;
    ino_t inode;
} sys_between;

struct epoll_event;

struct azc_sys {
    /* Bytes */
    ssize_t (*write_file)(int fd, const struct iovec *vec, int count);
    ssize_t (*write_pipe)(int fd, const struct iovec *vec, int count, int how);
    ssize_t (*read)(int fd, const struct iovec *vec, int count, int how);
    /* The cheapest call, for pieces of our own pipes.  Only while SIGPIPE is blocked, as
     * it always is in our threads. */
    ssize_t (*write_piece)(int fd, const void *data, size_t n);
    void (*block_sigpipe)(sys_sigpipe *state);
    void (*restore_sigpipe)(const sys_sigpipe *state, ssize_t written);
    /* Lends to a pipe (between is NULL).  Or lends to a UNIX socket as much of the first
     * piece as it has room for, through `between`, which is opened when needed, and is
     * empty before and after; only while SIGPIPE is blocked. */
    ssize_t (*lend)(int fd, sys_between *between, const struct iovec *vec, int count);
    /* Bytes in a pipe; or at least the bytes that a socket's peer has not read. */
    ssize_t (*unread)(int fd, bool socket);
    /* With open files, unless fds is NULL. */
    ssize_t (*send)(int fd, const struct iovec *vec, int count, const azc_fds *fds);
    ssize_t (*recv)(int fd, const struct iovec *vec, int count, azc_fds *fds);
    /* Move without a copy in user space; both wait only for a socket that blocks. */
    ssize_t (*splice)(int from, int to, size_t n);
    ssize_t (*sendfile)(int from, int to, size_t n);

    /* Fds */
    int (*poll)(struct pollfd *fds, nfds_t count, int timeout_ms);
    /* Only the device, the inode and the mode. */
    int (*identify)(int fd, struct stat *st);
    int (*is_tty)(int fd);     /* 1 or 0 */
    int (*translates)(int fd); /* a terminal, what is written to it; 1 or 0 */
    int (*set_nonblock)(int fd);
    int (*is_nonblocking)(int fd);  /* 1 or 0 */
    int (*no_sigpipe)(int fd);      /* a socket, if MSG_NOSIGNAL is missing */
    int (*takes_loans)(int socket); /* the size of its buffer, or 0 */
    int (*linger)(int fd);          /* seconds that a socket's close may take */
    int (*dup)(int fd);             /* closed on exec, 3 or higher */
    int (*blocking_pipe)(int ends[2]);
    int (*close)(int fd);
    void (*close_between)(sys_between *between);
    int (*shutdown)(int fd);

    /* Waking and waiting: fds of 3 or higher; epoll is for Linux alone */
    int (*open_waker)(int ends[2]); /* an eventfd, twice; or a pipe's ends */
    int (*pipe)(int fds[2]);
    void (*enlarge)(int pipe, int bytes); /* as far as the user's limits allow */
    void (*signal)(int end);
    void (*clear)(int end);
    int (*epoll_create)(void);
    int (*epoll_ctl)(int epoll, int how, int fd, struct epoll_event *event);
    int (*epoll_wait)(int epoll, struct epoll_event *events, int max, int timeout_us);

    /* Memory */
    void *(*allocate)(size_t n);
    void (*release)(void *memory);
    ssize_t (*copy)(void *to, const void *from, size_t n);
    size_t (*page_size)(void);
    void *(*map)(size_t n); /* NULL: there is none */
    int (*unmap)(void *at, size_t n);
    void (*prefer_huge)(void *at, size_t n);
    int (*remap)(void *from, size_t n, void *to); /* replaces the pages at `to` */
    int (*replace)(void *at, size_t n);           /* by fresh pages, even if locked */

    /* Threads (which are detached), processors, time */
    int (*thread_start)(pthread_t *thread, void *(*run)(void *), void *arg);
    int (*has_one_cpu)(void); /* this process may use only one; 1 or 0 */
    uint64_t (*now_ns)(void);
    void (*sleep_us)(unsigned us);
};

extern struct azc_sys azc_sys;

/* Memory of zeros, or NULL. */
static inline void *sys_zeros(size_t n) {
    void *memory = azc_sys.allocate(n);
    return memory ? memset(memory, 0, n) : NULL;
}

/* 1 if the fd is ready for these events now, or has ended; else 0; or -errno. */
static inline int sys_ready(int fd, short events) {
    struct pollfd it = {fd, events, 0};
    return azc_sys.poll(&it, 1, 0);
}

/* Closes the ends of a pipe or waker, unless they are -1.  (It forgets the numbers first:
 * the child of a fork in between must not close another file with one of them.) */
static inline void sys_close_both(int ends[2]) {
    int first = ends[0], second = ends[1];
    ends[0] = ends[1] = -1;
    if (first >= 0) azc_sys.close(first);
    if (second >= 0 && second != first) azc_sys.close(second);
}

#endif
