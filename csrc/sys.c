/* sys.c - the real kernel behind the table of sys.h. */
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/syscall.h>
#endif

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* there, channel.c sets SO_NOSIGPIPE */
#endif
#ifndef RWF_NOSIGNAL
#define RWF_NOSIGNAL 0x100 /* Linux 6.18 */
#endif

static ssize_t result(ssize_t r) { return r < 0 ? -errno : r; }

/* Whether a write to a broken pipe would kill this process. */
static bool sigpipe_is_ignored(void) {
    struct sigaction action;
    return sigaction(SIGPIPE, NULL, &action) == 0 &&
           action.sa_handler == SIG_IGN;
}

/* Takes back the SIGPIPE that our own write has made pending. */
static void consume_sigpipe(const sigset_t *only) {
#ifdef AZC_PORTABLE
    sigset_t pending;
    int number;
    if (sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE))
        sigwait(only, &number);
#else
    const struct timespec now = {0, 0};
    while (sigtimedwait(only, NULL, &now) < 0 && errno == EINTR) {
    }
#endif
}

enum { LEND = -1 }; /* instead of flags */

static ssize_t plain_write(int fd, const struct iovec *vec, int count,
                           int flags) {
#ifndef AZC_PORTABLE
    if (flags == LEND)
        return result(vmsplice(fd, vec, (size_t)count, SPLICE_F_NONBLOCK));
    if (flags) return result(pwritev2(fd, vec, count, -1, flags));
#endif
    (void)flags;
    return result(writev(fd, vec, count));
}

/* Writes that leave no SIGPIPE behind, whatever its disposition: a host program
 * that never heard of SIGPIPE must live when a reader leaves.  In the pump's
 * threads the signal is blocked anyway, and dies with the thread. */
static void sys_hush_begin(sys_hush *hush) {
    sigset_t only, pending;
    hush->blocked = !sigpipe_is_ignored();
    if (!hush->blocked) return;
    sigemptyset(&only);
    sigaddset(&only, SIGPIPE);
    hush->had_one =
        sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &only, &hush->before);
}

static void sys_hush_end(const sys_hush *hush, ssize_t written) {
    sigset_t only;
    if (!hush->blocked) return;
    sigemptyset(&only);
    sigaddset(&only, SIGPIPE);
    if (written == -EPIPE && !hush->had_one) consume_sigpipe(&only);
    pthread_sigmask(SIG_SETMASK, &hush->before, NULL);
}

static ssize_t quiet_write(int fd, const struct iovec *vec, int count,
                           int flags) {
    sys_hush hush;
    sys_hush_begin(&hush);
    ssize_t r = plain_write(fd, vec, count, flags);
    sys_hush_end(&hush, r);
    return r;
}

/* Without the C library's care for threads that are cancelled in it. */
static ssize_t sys_write_piece(int fd, const void *data, size_t n) {
#ifdef AZC_PORTABLE
    return result(write(fd, data, n));
#else
    return result(syscall(SYS_write, fd, data, n));
#endif
}

static ssize_t sys_write_file(int fd, const struct iovec *vec, int count) {
    return quiet_write(fd, vec, count, 0);
}

static ssize_t sys_unread(int fd) {
    int n = 0;
    ssize_t r = result(ioctl(fd, FIONREAD, &n));
    return r < 0 ? r : n;
}

#ifdef AZC_PORTABLE

static ssize_t sys_lend(int fd, const struct iovec *vec, int count) {
    (void)fd, (void)vec, (void)count;
    return -ENOSYS;
}

static ssize_t sys_write_pipe(int fd, const struct iovec *vec, int count,
                              int how) {
    return how & SYS_NOWAIT ? -EOPNOTSUPP : quiet_write(fd, vec, count, 0);
}

static ssize_t sys_read_pipe(int fd, const struct iovec *vec, int count,
                             int how) {
    return how & SYS_NOWAIT ? -EOPNOTSUPP : result(readv(fd, vec, count));
}

/* Through a pipe: the kernel says EFAULT of a hole where memcpy would die. */
static ssize_t copy_through(const int pipe_ends[2], char *to, const char *from,
                            size_t n) {
    for (size_t done = 0; done < n;) {
        size_t piece = n - done < 4096 ? n - done : 4096;
        ssize_t in = result(write(pipe_ends[1], from + done, piece));
        if (in == -EINTR) continue;
        if (in < 0) return in;
        for (ssize_t got = 0; got < in;) {
            ssize_t r = result(
                read(pipe_ends[0], to + done + got, (size_t)(in - got)));
            if (r < 0 && r != -EINTR) return r;
            if (r > 0) got += r;
        }
        done += (size_t)in;
    }
    return (ssize_t)n;
}

static ssize_t sys_copy(void *to, const void *from, size_t n) {
    int pipe_ends[2];
    if (pipe(pipe_ends) < 0) { /* no fd is left */
        memcpy(to, from, n);
        return (ssize_t)n;
    }
    ssize_t r = copy_through(pipe_ends, to, from, n);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    return r;
}

#else

static ssize_t sys_lend(int fd, const struct iovec *vec, int count) {
    return quiet_write(fd, vec, count, LEND);
}

/* -EOPNOTSUPP says that one of the flags is not known here: RWF_NOSIGNAL to
 * an older kernel, or RWF_NOWAIT to a FIFO.  Only the second leaves. */
static ssize_t sys_write_pipe(int fd, const struct iovec *vec, int count,
                              int how) {
    static _Atomic bool no_nosignal;
    int nowait = how & SYS_NOWAIT ? RWF_NOWAIT : 0;
    if (!no_nosignal) {
        ssize_t r = plain_write(fd, vec, count, nowait | RWF_NOSIGNAL);
        if (r != -EOPNOTSUPP) return r;
    }
    ssize_t r = quiet_write(fd, vec, count, nowait);
    if (r != -EOPNOTSUPP) no_nosignal = true;
    return r;
}

static ssize_t sys_read_pipe(int fd, const struct iovec *vec, int count,
                             int how) {
    if (how & SYS_NOWAIT)
        return result(preadv2(fd, vec, count, -1, RWF_NOWAIT));
    return result(readv(fd, vec, count));
}

static ssize_t sys_copy(void *to, const void *from, size_t n) {
    size_t done = 0;
    while (done < n) {
        struct iovec local = {(char *)to + done, n - done};
        struct iovec remote = {(char *)(uintptr_t)from + done, n - done};
        ssize_t r = result(process_vm_readv(getpid(), &local, 1, &remote, 1, 0));
        if (r == -ENOSYS || r == -EPERM) { /* a sandbox forbids it */
            memcpy((char *)to + done, (const char *)from + done, n - done);
            break;
        }
        if (r <= 0) return r < 0 ? r : -EFAULT;
        done += (size_t)r;
    }
    return (ssize_t)n;
}

#endif

static ssize_t sys_read_file(int fd, const struct iovec *vec, int count) {
    return result(readv(fd, vec, count));
}

static struct msghdr message_of(const struct iovec *vec, int count) {
    struct msghdr message;
    memset(&message, 0, sizeof message);
    message.msg_iov = (struct iovec *)(uintptr_t)vec;
    message.msg_iovlen = (size_t)count;
    return message;
}

static ssize_t sys_send(int fd, const struct iovec *vec, int count) {
    if (count == 1) /* spares the kernel from copying the vector */
        return result(send(fd, vec->iov_base, vec->iov_len,
                           MSG_DONTWAIT | MSG_NOSIGNAL));
    struct msghdr message = message_of(vec, count);
    return result(sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL));
}

static ssize_t sys_recv(int fd, const struct iovec *vec, int count) {
    if (count == 1)
        return result(recv(fd, vec->iov_base, vec->iov_len, MSG_DONTWAIT));
    struct msghdr message = message_of(vec, count);
    return result(recvmsg(fd, &message, MSG_DONTWAIT));
}

/* An empty message tells whether a longer one could go. */
static int sys_is_broken(int fd) {
    ssize_t r = result(send(fd, "", 0, MSG_DONTWAIT | MSG_NOSIGNAL));
    return r < 0 && r != -EAGAIN && r != -EINTR ? (int)r : 0;
}

#if defined AZC_PORTABLE || !defined SO_ZEROCOPY

static int sys_zerocopy(int fd) {
    (void)fd;
    return -ENOSYS;
}

static ssize_t sys_send_lent(int fd, const struct iovec *vec, int count) {
    (void)fd, (void)vec, (void)count;
    return -ENOSYS;
}

static int sys_settled(int fd, sys_range *range) {
    (void)fd, (void)range;
    return 0;
}

#else

static int option_of(int fd, int option) {
    int value = -1;
    socklen_t size = sizeof value;
    int r = (int)result(getsockopt(fd, SOL_SOCKET, option, &value, &size));
    return r < 0 ? r : value;
}

/* One that had it before may have counted already. */
static int sys_zerocopy(int fd) {
    int on = 1;
    if (option_of(fd, SO_PROTOCOL) != IPPROTO_TCP) return -EOPNOTSUPP;
    if (option_of(fd, SO_ZEROCOPY) != 0) return -EBUSY;
    return (int)result(
        setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on));
}

static ssize_t sys_send_lent(int fd, const struct iovec *vec, int count) {
    struct msghdr message = message_of(vec, count);
    return result(
        sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL | MSG_ZEROCOPY));
}

static bool is_about_loans(const struct cmsghdr *part,
                           const struct sock_extended_err *told) {
    bool v4 = part->cmsg_level == SOL_IP && part->cmsg_type == IP_RECVERR;
    bool v6 = part->cmsg_level == SOL_IPV6 && part->cmsg_type == IPV6_RECVERR;
    return (v4 || v6) && told->ee_origin == SO_EE_ORIGIN_ZEROCOPY &&
           told->ee_errno == 0;
}

/* What else stands in the queue (ICMP, say) is nobody's business here. */
static int sys_settled(int fd, sys_range *range) {
    for (;;) {
        _Alignas(struct cmsghdr) char parts[256];
        struct sock_extended_err told;
        struct msghdr message = message_of(NULL, 0);
        message.msg_control = parts;
        message.msg_controllen = sizeof parts;
        int r = (int)result(
            recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT));
        if (r == -EINTR) continue;
        if (r < 0) return r;
        struct cmsghdr *part = CMSG_FIRSTHDR(&message);
        if (!part || part->cmsg_len < CMSG_LEN(sizeof told)) continue;
        memcpy(&told, CMSG_DATA(part), sizeof told);
        if (!is_about_loans(part, &told)) continue;
        *range = (sys_range){told.ee_info, told.ee_data,
                             told.ee_code & SO_EE_CODE_ZEROCOPY_COPIED};
        return 1;
    }
}

#endif

static int sys_poll(struct pollfd *fds, nfds_t count, int timeout_ms) {
    return (int)result(poll(fds, count, timeout_ms));
}

static int sys_fstat(int fd, struct stat *st) {
    return (int)result(fstat(fd, st));
}

/* On Linux an interrupted close has closed: never try again. */
static int sys_close(int fd) { return (int)result(close(fd)); }

static int sys_shutdown(int fd) { return (int)result(shutdown(fd, SHUT_WR)); }

/* Signals belong to the program's own threads, so ours block them all. */
static int sys_thread_start(pthread_t *thread, void *(*run)(void *),
                            void *arg) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -failed;
}

static void sys_thread_join(pthread_t thread) { pthread_join(thread, NULL); }

static void sys_thread_detach(pthread_t thread) { pthread_detach(thread); }

static uint64_t sys_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int sys_cores(void) {
#ifdef __linux__
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        return CPU_COUNT(&allowed);
#endif
    return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

struct azc_sys azc_sys = {
    .write_file = sys_write_file,
    .read_file = sys_read_file,
    .write_pipe = sys_write_pipe,
    .read_pipe = sys_read_pipe,
    .write_piece = sys_write_piece,
    .hush = sys_hush_begin,
    .unhush = sys_hush_end,
    .lend = sys_lend,
    .unread = sys_unread,
    .send = sys_send,
    .recv = sys_recv,
    .zerocopy = sys_zerocopy,
    .send_lent = sys_send_lent,
    .settled = sys_settled,
    .is_broken = sys_is_broken,
    .poll = sys_poll,
    .fstat = sys_fstat,
    .close = sys_close,
    .shutdown = sys_shutdown,
    .copy = sys_copy,
    .allocate = malloc,
    .release = free,
    .thread_start = sys_thread_start,
    .thread_join = sys_thread_join,
    .thread_detach = sys_thread_detach,
    .now_ns = sys_now_ns,
    .cores = sys_cores,
};
