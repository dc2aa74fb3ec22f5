/* fan.c - a frame to many sockets, in C: what Broadcast is compared with. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

typedef struct target {
    int fd;
    size_t left;
} target;

/* Sends what the socket takes now; 1 when all is out, 0, or -1. */
static int push(target *to, const char *frame, size_t size) {
    const char *rest = frame + size - to->left;
    ssize_t n = send(to->fd, rest, to->left, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
    to->left -= (size_t)n;
    return to->left == 0;
}

/* Waits for the sockets that were full, and sends them the rest. */
static int push_rest(target *busy, struct pollfd *polled, int count, const char *frame,
                     size_t size) {
    while (count) {
        for (int i = 0; i < count; i++)
            polled[i] = (struct pollfd){busy[i].fd, POLLOUT, 0};
        if (poll(polled, (nfds_t)count, -1) < 0) continue;
        int still = 0;
        for (int i = 0; i < count; i++) {
            int done = polled[i].revents ? push(&busy[i], frame, size) : 0;
            if (done < 0) return -1;
            if (!done) busy[still++] = busy[i];
        }
        count = still;
    }
    return 0;
}

/* Returns when all sockets have the whole frame: 0, or -1. */
int send_to_all(const int *fds, int count, const char *frame, size_t size) {
    target *busy = calloc((size_t)count, sizeof *busy);
    struct pollfd *polled = calloc((size_t)count, sizeof *polled);
    int r = busy && polled ? 0 : -1, full = 0;
    for (int i = 0; i < count && r == 0; i++) {
        target to = {fds[i], size};
        int done = push(&to, frame, size);
        if (done < 0) r = -1;
        if (done == 0) busy[full++] = to;
    }
    if (r == 0) r = push_rest(busy, polled, full, frame, size);
    free(busy);
    free(polled);
    return r;
}
