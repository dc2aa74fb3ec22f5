/* sys.c - the real kernel behind the table of sys.h. */
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "sabotage.h"
#ifdef __linux__
#include <sys/sysmacros.h>
#endif
#ifndef AZC_PORTABLE
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/utsname.h>

#include <linux/sockios.h>
#endif

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* such systems have SO_NOSIGPIPE */
#endif
#ifndef MSG_CMSG_CLOEXEC
#define MSG_CMSG_CLOEXEC 0 /* recv_fds sets FD_CLOEXEC afterwards */
#endif
#ifndef SIOCOUTQ
#define SIOCOUTQ FIONREAD /* unused: such systems lend nothing to a socket */
#endif
#ifndef RWF_NOWAIT
#define RWF_NOWAIT 8
#endif
#ifndef RWF_NOSIGNAL
#define RWF_NOSIGNAL 0x100 /* Linux 6.18 */
#endif

/* What a call returns, or -errno.  A call that a signal handler interrupted has done
 * nothing, and is made again. */
#define RESULT(call)                                                                   \
    __extension__({                                                                    \
        ssize_t result_;                                                               \
        do result_ = (call);                                                           \
        while (result_ < 0 && errno == EINTR && !SABOTAGED(INTERRUPT));                \
        result_ < 0 ? -errno : result_;                                                \
    })

/* Gives a new fd a number from 3 on, or closes it and returns -errno.  A daemon may have
 * closed 0, 1 and 2, which other code still writes to. */
static int above_stdio(int fd) {
    if (fd < 0 || fd > 2) return fd;
    int r = (int)RESULT(fcntl(fd, F_DUPFD_CLOEXEC, 3));
    close(fd);
    return r;
}

/* If false, a write to a broken pipe raises SIGPIPE, which may kill this process. */
static bool sigpipe_is_ignored(void) {
    struct sigaction action;
    return sigaction(SIGPIPE, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

/* Takes back the SIGPIPE that our own write raised. */
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

enum { BY_VMSPLICE = -1 }; /* in the place of flags */

#ifndef AZC_PORTABLE
/* preadv2 or pwritev2, at the fd's own position.  musl has no such functions before
 * 1.2.5, and a wheel for musl also runs on older ones.  As with glibc's, a kernel
 * without the call is one that supports no flags.  (Emulators and sandboxes may lack
 * it.) */
static ssize_t with_flags(long call, int fd, const struct iovec *vec, int count,
                          int flags) {
    ssize_t n = syscall(call, fd, vec, (long)count, -1L, -1L, flags);
    if (n < 0 && errno == ENOSYS) errno = EOPNOTSUPP;
    return n;
}
#endif

static ssize_t plain_write(int fd, const struct iovec *vec, int count, int flags) {
#ifndef AZC_PORTABLE
    if (flags == BY_VMSPLICE)
        return RESULT(vmsplice(fd, vec, (size_t)count, SPLICE_F_NONBLOCK));
    if (flags) return RESULT(with_flags(SYS_pwritev2, fd, vec, count, flags));
#endif
    (void)flags;
    return RESULT(writev(fd, vec, count));
}

/* A write to a broken pipe must not kill a program that knows nothing of SIGPIPE.  So the
 * signal is blocked during our writes, and taken back if they raise it.  (In the pump's
 * threads it is always blocked.) */
static void sys_block_sigpipe(sys_sigpipe *state) {
    sigset_t only, pending;
    state->blocked = !sigpipe_is_ignored();
    if (!state->blocked) return;
    sigemptyset(&only);
    sigaddset(&only, SIGPIPE);
    state->was_pending =
        sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &only, &state->before);
}

static void sys_restore_sigpipe(const sys_sigpipe *state, ssize_t written) {
    sigset_t only;
    if (!state->blocked) return;
    sigemptyset(&only);
    sigaddset(&only, SIGPIPE);
    if (written == -EPIPE && !state->was_pending) consume_sigpipe(&only);
    pthread_sigmask(SIG_SETMASK, &state->before, NULL);
}

static ssize_t write_without_sigpipe(int fd, const struct iovec *vec, int count,
                                     int flags) {
    sys_sigpipe sigpipe;
    sys_block_sigpipe(&sigpipe);
    ssize_t r = plain_write(fd, vec, count, flags);
    sys_restore_sigpipe(&sigpipe, r);
    return r;
}

/* The bare system call: glibc's write is a pthread cancellation point, which takes time. */
static ssize_t sys_write_piece(int fd, const void *data, size_t n) {
#ifdef AZC_PORTABLE
    return RESULT(write(fd, data, n));
#else
    return RESULT(syscall(SYS_write, fd, data, n));
#endif
}

static ssize_t sys_write_file(int fd, const struct iovec *vec, int count) {
    return write_without_sigpipe(fd, vec, count, 0);
}

static ssize_t sys_unread(int fd, bool socket) {
    int n = 0;
    ssize_t r = RESULT(ioctl(fd, socket ? SIOCOUTQ : FIONREAD, &n));
    return r < 0 ? r : n;
}

#ifdef AZC_PORTABLE

static int sys_takes_loans(int socket) { return (void)socket, 0; }

static ssize_t sys_write_pipe(int fd, const struct iovec *vec, int count, int how) {
    return how & SYS_NOWAIT ? -EOPNOTSUPP : write_without_sigpipe(fd, vec, count, 0);
}

static ssize_t sys_read(int fd, const struct iovec *vec, int count, int how) {
    return how & SYS_NOWAIT ? -EOPNOTSUPP : RESULT(readv(fd, vec, count));
}

/* Through a pipe: where memcpy would crash at a hole, the kernel returns EFAULT.  (One
 * read returns the whole piece that was written.) */
static ssize_t sys_copy(void *to, const void *from, size_t n) {
    int ends[2];
    ssize_t r = 0;
    if (pipe(ends) < 0) { /* no fd is left */
        memcpy(to, from, n);
        return (ssize_t)n;
    }
    for (size_t done = 0; r >= 0 && done < n; done += r > 0 ? (size_t)r : 0) {
        size_t piece = n - done < 4096 ? n - done : 4096;
        r = RESULT(write(ends[1], (const char *)from + done, piece));
        if (r > 0) r = RESULT(read(ends[0], (char *)to + done, (size_t)r));
    }
    close(ends[0]);
    close(ends[1]);
    return r < 0 ? r : (ssize_t)n;
}

#else

enum {
    A_BUFFER = 64 << 10, /* bytes in each buffer that a splice queues */
    A_HEAD = 768,        /* more bytes that the kernel counts for each */
    BETWEEN = 512 << 10, /* bytes that the pipe should hold */
};

/* How many bytes a splice would put into the socket's queue now. */
static ssize_t room_of(int socket) {
    int room = 0;
    socklen_t size = sizeof room;
    ssize_t r = RESULT(getsockopt(socket, SOL_SOCKET, SO_SNDBUF, &room, &size));
    ssize_t used = r < 0 ? r : sys_unread(socket, true);
    if (used < 0) return used;
    if (used >= room) return 0;
    return ((room - used) / (A_BUFFER + A_HEAD) + 1) * A_BUFFER;
}

static bool is_still_between(const sys_between *it, int end) {
    struct stat st;
    return azc_sys.identify(it->ends[end], &st) == 0 && st.st_dev == it->device &&
           st.st_ino == it->inode;
}

/* Closes only numbers that are still the pipe's: other code may have closed one, and
 * opened another file with it. */
static void sys_close_between(sys_between *it) {
    for (int i = 0; i < 2; i++)
        if (is_still_between(it, i)) close(it->ends[i]);
    it->ends[0] = -1;
}

/* A user with many pipes gets only two pages for each new one.  Such a pipe is closed
 * again, and the channel copies. */
static int open_between(sys_between *it) {
    struct stat st = {0};
    if (azc_sys.pipe(it->ends) < 0) return -ENOSYS;
    azc_sys.enlarge(it->ends[1], BETWEEN);
    int r = azc_sys.identify(it->ends[1], &st);
    it->device = st.st_dev;
    it->inode = st.st_ino;
    if (r == 0 && fcntl(it->ends[1], F_GETPIPE_SZ) >= A_BUFFER) return 0;
    sys_close_both(it->ends);
    return -ENOSYS;
}

/* There is no other way to share pages with a socket.  Bytes that it does not take, though
 * it had room, are thrown away with the pipe. */
static ssize_t lend_to_socket(int socket, sys_between *it, const struct iovec *vec) {
    ssize_t n = room_of(socket);
    if (n <= 0) return n < 0 ? n : -EAGAIN;
    if (it->ends[0] < 0 && open_between(it) < 0) return -ENOSYS;
    int r = azc_sys.set_nonblock(socket); /* or splice would wait */
    if (r < 0) return r;
    if (!is_still_between(it, 0) || !is_still_between(it, 1)) {
        sys_close_between(it);
        return -ENOSYS;
    }
    struct iovec piece = *vec;
    if ((size_t)n < piece.iov_len) piece.iov_len = (size_t)n;
    n = plain_write(it->ends[1], &piece, 1, BY_VMSPLICE);
    if (n <= 0) return n;
    ssize_t taken = azc_sys.splice(it->ends[0], socket, (size_t)n);
    if (taken < n) sys_close_between(it);
    return taken ? taken : -EAGAIN;
}

static ssize_t sys_lend(int fd, sys_between *between, const struct iovec *vec,
                        int count) {
    if (between) return lend_to_socket(fd, between, vec);
    return write_without_sigpipe(fd, vec, count, BY_VMSPLICE);
}

/* Only UNIX sockets take loans.  Before Linux 6.5 a splice would wait for a reader that is
 * inside its system call. */
static int sys_takes_loans(int socket) {
    int domain = 0, type = 0, major = 0, minor = 0, room = 0;
    socklen_t size = sizeof domain;
    struct utsname name;
    if (uname(&name) < 0) return 0;
    sscanf(name.release, "%d.%d", &major, &minor);
    getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &size);
    getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &size);
    if (major * 100 + minor < 605 || domain != AF_UNIX || type != SOCK_STREAM) return 0;
    getsockopt(socket, SOL_SOCKET, SO_SNDBUF, &room, &size);
    return room;
}

/* -EOPNOTSUPP means that one of the flags is not known: RWF_NOSIGNAL in an older
 * kernel, or RWF_NOWAIT for a FIFO.  The caller gets it only for the latter. */
static ssize_t sys_write_pipe(int fd, const struct iovec *vec, int count, int how) {
    static _Atomic bool no_nosignal;
    int nowait = how & SYS_NOWAIT ? RWF_NOWAIT : 0;
    if (!no_nosignal) {
        ssize_t r = plain_write(fd, vec, count, nowait | RWF_NOSIGNAL);
        if (r != -EOPNOTSUPP) return r;
    }
    ssize_t r = write_without_sigpipe(fd, vec, count, nowait);
    if (r != -EOPNOTSUPP) no_nosignal = true;
    return r;
}

static ssize_t sys_read(int fd, const struct iovec *vec, int count, int how) {
    if (how & SYS_NOWAIT)
        return RESULT(with_flags(SYS_preadv2, fd, vec, count, RWF_NOWAIT));
    return RESULT(readv(fd, vec, count));
}

static ssize_t sys_copy(void *to, const void *from, size_t n) {
    size_t done = 0;
    while (done < n) {
        struct iovec local = {(char *)to + done, n - done};
        struct iovec remote = {(char *)(uintptr_t)from + done, n - done};
        ssize_t r = RESULT(process_vm_readv(getpid(), &local, 1, &remote, 1, 0));
        if (r == -ENOSYS || r == -EPERM) { /* (a sandbox forbids the call) */
            memcpy((char *)to + done, (const char *)from + done, n - done);
            break;
        }
        if (r <= 0) return r < 0 ? r : -EFAULT;
        done += (size_t)r;
    }
    return (ssize_t)n;
}

#endif

static struct msghdr message_of(const struct iovec *vec, int count) {
    return (struct msghdr){.msg_iov = (struct iovec *)(uintptr_t)vec,
                           .msg_iovlen = (size_t)count};
}

/* For the sender's credentials and the like, which a socket option may ask for. */
enum { OTHER_WORDS = 128 };

/* Aligned room for control messages. */
typedef union beside {
    struct cmsghdr first;
    char room[CMSG_SPACE(sizeof(int) * AZC_MOST_FDS) + OTHER_WORDS];
} beside;

static ssize_t send_fds(int fd, const struct iovec *vec, int count,
                        const azc_fds *fds) {
    size_t n = (size_t)fds->count * sizeof *fds->fds;
    struct msghdr message = message_of(vec, count);
    beside it;
    memset(&it, 0, sizeof it);
    message.msg_control = &it;
    message.msg_controllen = CMSG_SPACE(n);
    it.first.cmsg_level = SOL_SOCKET;
    it.first.cmsg_type = SCM_RIGHTS;
    it.first.cmsg_len = CMSG_LEN(n);
    memcpy(CMSG_DATA(&it.first), fds->fds, n);
    return RESULT(sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL));
}

static void store_fds(struct msghdr *message, azc_fds *fds) {
    fds->count = 0;
    for (struct cmsghdr *it = CMSG_FIRSTHDR(message); it;
         it = CMSG_NXTHDR(message, it)) {
        if (it->cmsg_level != SOL_SOCKET || it->cmsg_type != SCM_RIGHTS) continue;
        size_t n = it->cmsg_len - CMSG_LEN(0);
        if (n > sizeof fds->fds) n = sizeof fds->fds;
        memcpy(fds->fds, CMSG_DATA(it), n);
        fds->count = (int32_t)(n / sizeof *fds->fds);
    }
}

/* (a few more fds than expected may come, into the room for OTHER_WORDS) */
static ssize_t recv_fds(int fd, const struct iovec *vec, int count, azc_fds *fds) {
    struct msghdr message = message_of(vec, count);
    beside it;
    message.msg_control = &it;
    message.msg_controllen =
        OTHER_WORDS + CMSG_LEN((size_t)fds->room * sizeof *fds->fds);
    ssize_t r = RESULT(recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC));
    if (r < 0) return r;
    store_fds(&message, fds);
    fds->cut_off = (message.msg_flags & MSG_CTRUNC) != 0;
    for (int i = 0; i < fds->count; i++) {
        if (fds->cut_off)
            close(fds->fds[i]);
        else if (!MSG_CMSG_CLOEXEC)
            fcntl(fds->fds[i], F_SETFD, FD_CLOEXEC);
    }
    if (fds->cut_off) fds->count = 0;
    return r;
}

static ssize_t sys_send(int fd, const struct iovec *vec, int count,
                        const azc_fds *fds) {
    if (fds) return send_fds(fd, vec, count, fds);
    if (count == 1) /* spares the kernel a copy of the vector */
        return RESULT(
            send(fd, vec->iov_base, vec->iov_len, MSG_DONTWAIT | MSG_NOSIGNAL));
    struct msghdr message = message_of(vec, count);
    return RESULT(sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL));
}

static ssize_t sys_recv(int fd, const struct iovec *vec, int count, azc_fds *fds) {
    if (fds) return recv_fds(fd, vec, count, fds);
    if (count == 1) return RESULT(recv(fd, vec->iov_base, vec->iov_len, MSG_DONTWAIT));
    struct msghdr message = message_of(vec, count);
    return RESULT(recvmsg(fd, &message, MSG_DONTWAIT));
}

#ifndef AZC_PORTABLE

static ssize_t sys_splice(int from, int to, size_t n) {
    return RESULT(splice(from, NULL, to, NULL, n, SPLICE_F_NONBLOCK));
}

static ssize_t sys_sendfile(int from, int to, size_t n) {
    return RESULT(sendfile(to, from, NULL, n));
}

#endif

/* ---- fds ---------------------------------------------------------------- */

static int sys_has_one_cpu(void) {
#ifdef CPU_COUNT
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) == 1;
#else
    return sysconf(_SC_NPROCESSORS_ONLN) == 1;
#endif
}

static uint64_t sys_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* (It cannot exceed its timeout: only our own threads wait in it, which block signals.) */
static int sys_poll(struct pollfd *fds, nfds_t count, int timeout_ms) {
    return (int)RESULT(poll(fds, count, timeout_ms));
}

static int sys_identify(int fd, struct stat *st) {
#if defined STATX_TYPE && !defined AZC_PORTABLE
    struct statx it;
    const int how = AT_EMPTY_PATH | AT_STATX_DONT_SYNC;
    /* (by number: musl has no such function before 1.2.5, either) */
    int r = (int)RESULT(syscall(SYS_statx, fd, "", how, STATX_TYPE | STATX_INO, &it));
    if (r == 0) {
        st->st_dev = makedev(it.stx_dev_major, it.stx_dev_minor);
        st->st_ino = it.stx_ino;
        st->st_mode = it.stx_mode;
    }
    if (r != -ENOSYS && r != -EPERM) return r; /* (a sandbox forbids statx) */
#endif
    return (int)RESULT(fstat(fd, st));
}

static int sys_translates(int fd) {
    struct termios it;
    return tcgetattr(fd, &it) == 0 && it.c_oflag & OPOST;
}

static int sys_set_nonblock(int fd) {
    int flags = (int)RESULT(fcntl(fd, F_GETFL));
    if (flags < 0 || flags & O_NONBLOCK) return flags < 0 ? flags : 0;
    return (int)RESULT(fcntl(fd, F_SETFL, flags | O_NONBLOCK));
}

static int sys_is_nonblocking(int fd) {
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && flags & O_NONBLOCK;
}

#ifdef SO_NOSIGPIPE
static int sys_no_sigpipe(int fd) {
    int on = 1;
    return (int)RESULT(setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on));
}
#endif

static int sys_linger(int fd) {
    struct linger linger = {0, 0};
    socklen_t size = sizeof linger;
    if (getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &size) < 0) return 0;
    return linger.l_onoff ? linger.l_linger : 0;
}

static int sys_dup(int fd) { return (int)RESULT(fcntl(fd, F_DUPFD_CLOEXEC, 3)); }

static int sys_blocking_pipe(int ends[2]) {
#ifdef AZC_PORTABLE
    return (int)RESULT(pipe(ends));
#else
    return (int)RESULT(pipe2(ends, O_CLOEXEC));
#endif
}

/* On Linux an interrupted close has closed the fd: never repeat it. */
static int sys_close(int fd) { return close(fd) < 0 && errno != EINTR ? -errno : 0; }

static int sys_shutdown(int fd) { return (int)RESULT(shutdown(fd, SHUT_WR)); }

/* ---- waking and waiting --------------------------------------------------- */

static int sys_pipe(int fds[2]) {
#ifdef AZC_PORTABLE
    int r = (int)RESULT(pipe(fds));
#else
    int r = (int)RESULT(pipe2(fds, O_CLOEXEC | O_NONBLOCK));
#endif
    if (r < 0) fds[0] = fds[1] = -1;
    for (int i = 0; i < 2 && r >= 0; i++) {
        r = fds[i] = above_stdio(fds[i]);
#ifdef AZC_PORTABLE
        fcntl(r, F_SETFD, FD_CLOEXEC);
        fcntl(r, F_SETFL, O_NONBLOCK);
#endif
    }
    if (r < 0) sys_close_both(fds);
    return r < 0 ? r : 0;
}

static int sys_open_waker(int ends[2]) {
#ifdef AZC_PORTABLE
    return sys_pipe(ends);
#else
    int r = above_stdio((int)RESULT(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
    ends[0] = ends[1] = r < 0 ? -1 : r;
    return r < 0 ? r : 0;
#endif
}

static void sys_enlarge(int fd, int bytes) {
#ifdef F_SETPIPE_SZ
    while (bytes > fcntl(fd, F_GETPIPE_SZ) && fcntl(fd, F_SETPIPE_SZ, bytes) < 0)
        bytes /= 2; /* it is above the limit of one pipe, or of the user's pipes */
#else
    (void)fd, (void)bytes;
#endif
}

/* Writes eight bytes, since an eventfd takes numbers. */
static void sys_signal(int fd) {
    const uint64_t one = 1;
    (void)RESULT(write(fd, &one, sizeof one));
}

/* One read empties an eventfd; a pipe may need several. */
static void sys_clear(int fd) {
    char ignored[64];
    while (RESULT(read(fd, ignored, sizeof ignored)) == sizeof ignored) {
    }
}

#ifndef AZC_PORTABLE

static int sys_epoll_create(void) {
    return above_stdio((int)RESULT(epoll_create1(EPOLL_CLOEXEC)));
}

static int sys_epoll_ctl(int epoll, int how, int fd, struct epoll_event *event) {
    return (int)RESULT(epoll_ctl(epoll, how, fd, event));
}

/* epoll_wait counts in milliseconds.  If that is too coarse, ppoll waits for the epoll
 * fd. */
enum { COARSE_US = 100000 };

static int sys_epoll_wait(int epoll, struct epoll_event *events, int max,
                          int timeout_us) {
    struct pollfd ready = {epoll, POLLIN, 0};
    struct timespec most = {timeout_us / 1000000, timeout_us % 1000000 * 1000};
    int timeout_ms = timeout_us < 0 ? -1 : timeout_us / 1000;
    if (timeout_us > 0 && timeout_us < COARSE_US) {
        ppoll(&ready, 1, &most, NULL);
        timeout_ms = 0;
    }
    return (int)RESULT(epoll_wait(epoll, events, max, timeout_ms));
}

#endif

/* ---- memory --------------------------------------------------------------- */

static size_t sys_page_size(void) { return (size_t)sysconf(_SC_PAGESIZE); }

static void *sys_map(size_t n) {
    void *at =
        mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static int sys_unmap(void *at, size_t n) { return (int)RESULT(munmap(at, n)); }

static void sys_prefer_huge(void *at, size_t n) {
#ifdef MADV_HUGEPAGE
    madvise(at, n, MADV_HUGEPAGE);
#else
    (void)at, (void)n;
#endif
}

#ifndef AZC_PORTABLE
static int sys_remap(void *from, size_t n, void *to) {
    void *at = mremap(from, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    return at == MAP_FAILED ? -errno : 0;
}
#endif

/* madvise first: fresh pages in the old mapping need no new mapping, which a limit could
 * refuse. */
static int sys_replace(void *at, size_t n) {
#ifndef AZC_PORTABLE
    const int locked = 24; /* MADV_DONTNEED_LOCKED, Linux 5.18 */
    if (madvise(at, n, MADV_DONTNEED) == 0 || madvise(at, n, locked) == 0) return 0;
#endif
    void *fresh = mmap(at, n, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    return fresh == MAP_FAILED ? -errno : 0;
}

/* ---- threads, time -------------------------------------------------------- */

/* Signals are for the program's own threads, so ours block them all. */
static int sys_thread_start(pthread_t *thread, void *(*run)(void *), void *arg) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed) pthread_detach(*thread);
    return -failed;
}

static void sys_sleep_us(unsigned us) {
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    while (nanosleep(&t, &t) < 0 && errno == EINTR) {
    }
}

struct azc_sys azc_sys = {
    .write_file = sys_write_file,
    .write_pipe = sys_write_pipe,
    .read = sys_read,
    .write_piece = sys_write_piece,
    .block_sigpipe = sys_block_sigpipe,
    .restore_sigpipe = sys_restore_sigpipe,
    .unread = sys_unread,
    .send = sys_send,
    .recv = sys_recv,
    .poll = sys_poll,
    .identify = sys_identify,
    .is_tty = isatty,
    .translates = sys_translates,
    .set_nonblock = sys_set_nonblock,
    .is_nonblocking = sys_is_nonblocking,
#ifdef SO_NOSIGPIPE
    .no_sigpipe = sys_no_sigpipe,
#endif
    .takes_loans = sys_takes_loans,
    .linger = sys_linger,
    .dup = sys_dup,
    .blocking_pipe = sys_blocking_pipe,
    .close = sys_close,
    .shutdown = sys_shutdown,
    .open_waker = sys_open_waker,
    .pipe = sys_pipe,
    .enlarge = sys_enlarge,
    .signal = sys_signal,
    .clear = sys_clear,
#ifndef AZC_PORTABLE
    .lend = sys_lend,
    .close_between = sys_close_between,
    .splice = sys_splice,
    .sendfile = sys_sendfile,
    .remap = sys_remap,
    .epoll_create = sys_epoll_create,
    .epoll_ctl = sys_epoll_ctl,
    .epoll_wait = sys_epoll_wait,
#endif
    .allocate = malloc,
    .release = free,
    .copy = sys_copy,
    .page_size = sys_page_size,
    .map = sys_map,
    .unmap = sys_unmap,
    .prefer_huge = sys_prefer_huge,
    .replace = sys_replace,
    .thread_start = sys_thread_start,
    .has_one_cpu = sys_has_one_cpu,
    .now_ns = sys_now_ns,
    .sleep_us = sys_sleep_us,
};
