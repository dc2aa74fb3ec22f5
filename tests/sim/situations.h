/* situations.h - the common part of situations over the kernel of scripted.c.
 *
 * A situation says what the kernel answers, lets its channels send or receive, and
 * checks which calls were made, by which thread, when, and which events came.  It has a
 * port, and channels that it leaves open are freed.
 */
#ifndef SIM_SITUATIONS_H
#define SIM_SITUATIONS_H
#include <sys/types.h>

#include "azc.h"
#include "scripted.h"

#define CHECK(condition)                                                               \
    SIM_CHECK(condition, "%s: not %s (line %d)", what, #condition, __LINE__)

enum { KIB = 1 << 10, MIB = 1 << 20, NAP = 5000, MOST = 17 * MIB };
enum { LENDS = AZC_OUT | AZC_OWN | AZC_READS | AZC_LENDS_ALL };
#define PATIENCE UINT64_C(2000000) /* microseconds */

extern const char *what;  /* the name of the situation */
extern char memory[MOST]; /* everything that is sent and received */
extern azc_id port;       /* of all channels */
extern azc_id writing;    /* the channel that a scripted action is about */
extern uint64_t token;    /* of the latest send or receive */
extern uint64_t recorded; /* acknowledged events */

azc_id open_channel(int kind, int flags);
/* A channel with a message in its queue, which the pump waits to send. */
azc_id open_full(int kind, int flags, size_t n);
azc_channel *inside(azc_id id);
int fd_of(azc_id id);

/* These take the next token; azc_send_bound has token 1000. */
ssize_t put(azc_id id, size_t n);
ssize_t put_from(azc_id id, char *data, size_t n, bool asks_room);
ssize_t put_fds(azc_id id, size_t n);
ssize_t get(azc_id id, size_t n);
int send_bound(azc_id id, size_t n);
/* Frees the channel, and takes its events. */
void drop(azc_id id);
void free_all(void);
/* Reports the fd that a pump waits for as ready. */
void report(azc_id id);

/* Takes the next event, if there is one. */
bool is_told(azc_event *event);
bool nothing_is_told(void);
bool tells(uint64_t of, int status, uint64_t bytes);
bool tells_as(uint64_t of, int status, uint64_t bytes, int outcome);
/* Whether the i-th call of all was about this many bytes of this channel. */
bool called(int i, azc_id id, size_t bytes);

typedef struct situation {
    const char *name;
    void (*play)(void);
} situation;

/* Plays all, one by one; unless `only` is NULL, just the one of that name. */
int situations_play(const situation *all, int count, const char *only);

#endif
