/* situations.c - the common part of situations; see situations.h. */
#include "situations.h"

#include <errno.h>
#include <string.h>

const char *what;
char memory[MOST];
azc_id port, writing;
uint64_t token, recorded;
static azc_fds files = {.count = 1};
static azc_id opened[FDS];
static int count_opened;

azc_id open_channel(int kind, int flags) {
    azc_id id;
    CHECK(azc_open(scripted_file(kind), flags, &id) == 0);
    azc_bind_port(id, port, 1000, 1 << 30);
    opened[count_opened++] = id;
    return id;
}

void free_all(void) {
    while (count_opened) azc_free(opened[--count_opened]);
}

azc_channel *inside(azc_id id) { return azc__handle_slot(&azc__channels, id)->object; }

int fd_of(azc_id id) { return inside(id)->fd; }

ssize_t put_from(azc_id id, char *data, size_t n, bool asks_room) {
    struct iovec all = {data, n};
    ssize_t r = azc_sendv(id, port, ++token, &all, 1, NULL, 0, asks_room);
    return r > 0 ? 0 : r;
}

ssize_t put(azc_id id, size_t n) { return put_from(id, memory, n, false); }

ssize_t put_fds(azc_id id, size_t n) {
    ssize_t r = azc_send_fds(id, port, ++token, memory, n, &files);
    return r > 0 ? 0 : r;
}

int send_bound(azc_id id, size_t n) {
    azc_bind_port(id, port, 1000, 1 << 30);
    int r = azc_send_bound(id, 1000, memory, n, 1, 0);
    return r > 0 ? 0 : r;
}

ssize_t get(azc_id id, size_t n) {
    return azc_recv(id, port, ++token, memory, n, n, NULL);
}

bool is_told(azc_event *event) {
    if (azc_port_take(port, recorded, event, 1) != 1) return false;
    recorded = event->sequence;
    return true;
}

bool nothing_is_told(void) {
    azc_event event;
    return !is_told(&event);
}

bool tells(uint64_t of, int status, uint64_t bytes) {
    azc_event event;
    return is_told(&event) && event.token == of && event.status == status &&
           event.sent == bytes;
}

bool tells_as(uint64_t of, int status, uint64_t bytes, int outcome) {
    azc_event event;
    return is_told(&event) && event.token == of && event.status == status &&
           event.sent == bytes && event.outcome == outcome;
}

void drop(azc_id id) {
    azc_event event;
    CHECK(azc_free(id) == 0);
    sim_idle();
    while (is_told(&event)) continue;
}

bool called(int i, azc_id id, size_t bytes) {
    const call *it = &world.calls[i];
    return i < world.ncalls && it->fd == fd_of(id) && it->bytes == bytes;
}

azc_id open_full(int kind, int flags, size_t n) {
    azc_id id = open_channel(kind, flags);
    KERNEL_SAYS(-EAGAIN);
    CHECK(put(id, n) == -EINPROGRESS);
    sim_idle();
    world.ncalls = 0;
    return id;
}

void report(azc_id id) {
    CHECK(scripted_report(fd_of(id)));
    sim_idle();
}

static void play(const situation *it) {
    azc_event event;
    what = it->name;
    scripted_begin();
    token = recorded = 0;
    CHECK(azc_port_open(&port) == 0);
    it->play();
    free_all();
    sim_idle();
    while (is_told(&event)) continue;
    azc_port_take(port, recorded, NULL, 0);
    CHECK(azc_port_close(port) == 0);
    scripted_end();
}

int situations_play(const situation *all, int count, const char *only) {
    for (int i = 0; i < count; i++)
        if (!only || strcmp(only, all[i].name) == 0) play(&all[i]);
    return 0;
}
