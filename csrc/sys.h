/* sys.h - every system call of the helper, through one table.
 *
 * Each entry returns >= 0 or -errno; no other file touches errno.  Tests put a
 * simulated kernel here: they assign other functions to the entries of
 * azc_sys before the first channel is opened.
 *
 * The syscalls, and why
 *   writev, readv     files, ttys, and everything in the portable build
 *   pwritev2/preadv2  pipes: RWF_NOWAIT needs no O_NONBLOCK on a description
 *                     that others may share, RWF_NOSIGNAL spares a SIGPIPE
 *   write             pieces of a pipe that is ours: nothing is as short
 *   vmsplice          lends pages to a pipe; FIONREAD tells what is not read yet
 *   sendmsg, recvmsg  sockets: MSG_DONTWAIT and MSG_NOSIGNAL do the same there.
 *                     MSG_ZEROCOPY lends pages, and MSG_ERRQUEUE tells which
 *                     are needed no more
 *   poll              is a tty or FIFO ready, before a call that could block
 *   fstat             is the number still the file that we were given
 *   copy              process_vm_readv on ourselves (or a pipe): a copy that
 *                     meets a hole in the caller's memory says EFAULT where
 *                     memcpy would die
 *   the poller's own  epoll and eventfd, or poll and a pipe (see poller.h)
 */
#ifndef AZC_SYS_H
#define AZC_SYS_H
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>

/* How a move on a pipe or socket is to be made. */
enum {
    SYS_NOWAIT = 1, /* -EAGAIN rather than wait, whatever O_NONBLOCK says */
};

/* What unhush has to undo. */
typedef struct sys_hush {
    sigset_t before;
    bool blocked, had_one;
} sys_hush;

/* Loans to a socket that are over, by their numbers, the last one included. */
typedef struct sys_range {
    uint32_t first, last;
    bool copied; /* the kernel had to copy them all the same */
} sys_range;

struct azc_sys {
    ssize_t (*write_file)(int fd, const struct iovec *vec, int count);
    ssize_t (*read_file)(int fd, const struct iovec *vec, int count);
    ssize_t (*write_pipe)(int fd, const struct iovec *vec, int count, int how);
    ssize_t (*read_pipe)(int fd, const struct iovec *vec, int count, int how);
    ssize_t (*write_piece)(int fd, const void *data, size_t n); /* hushed */
    void (*hush)(sys_hush *hush); /* no SIGPIPE of this thread, until: */
    void (*unhush)(const sys_hush *hush, ssize_t written);
    ssize_t (*lend)(int fd, const struct iovec *vec, int count);
    ssize_t (*unread)(int fd);
    ssize_t (*send)(int fd, const struct iovec *vec, int count);
    ssize_t (*recv)(int fd, const struct iovec *vec, int count);
    int (*zerocopy)(int fd); /* may it be lent pages?  They count from 0 on */
    ssize_t (*send_lent)(int fd, const struct iovec *vec, int count);
    int (*settled)(int fd, sys_range *range); /* 1 if there was one */
    int (*is_broken)(int fd); /* 0, or why nothing can be sent any more */
    int (*poll)(struct pollfd *fds, nfds_t count, int timeout_ms);
    int (*fstat)(int fd, struct stat *st);
    int (*close)(int fd);
    int (*shutdown)(int fd);
    ssize_t (*copy)(void *to, const void *from, size_t n);
    void *(*allocate)(size_t n);
    void (*release)(void *memory);
    int (*thread_start)(pthread_t *thread, void *(*run)(void *), void *arg);
    void (*thread_join)(pthread_t thread);
    void (*thread_detach)(pthread_t thread);
    uint64_t (*now_ns)(void);
    int (*cores)(void); /* that this process may run on */
};

extern struct azc_sys azc_sys;

#endif
