/* situations.h - what situations over the kernel of scripted.c are made of.
 *
 * Each says what the kernel answers, lets its channels send or receive, and looks at
 * which calls were made, by which thread, when, and what was told.  It has a port, and
 * what it leaves open is freed.
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
extern char memory[MOST]; /* of all that is sent and received */
extern azc_id port;       /* of all channels */
extern azc_id writing;    /* for what happens meanwhile: the channel it is about */
extern uint64_t token;    /* of the latest send or receive */
extern uint64_t recorded; /* events so far */

azc_id open_channel(int kind, int flags);
/* A channel with one message in its queue, for which the pump waits. */
azc_id open_full(int kind, int flags, size_t n);
azc_channel *inside(azc_id id);
int fd_of(azc_id id);

/* These take the next token; azc_send_bound has token 1000. */
ssize_t put(azc_id id, size_t n);
ssize_t put_from(azc_id id, char *data, size_t n, bool asks_room);
ssize_t put_fds(azc_id id, size_t n);
ssize_t get(azc_id id, size_t n);
int send_bound(azc_id id, size_t n);
/* Frees it; whatever is told of that has been heard. */
void drop(azc_id id);
void free_all(void);
/* The fd that the pump waits for is ready. */
void report(azc_id id);

/* The next event, if there is one. */
bool is_told(azc_event *event);
bool nothing_is_told(void);
bool tells(uint64_t of, int status, uint64_t bytes);
bool tells_as(uint64_t of, int status, uint64_t bytes, int outcome);
/* Was the i-th call of all about so many bytes of this channel? */
bool called(int i, azc_id id, size_t bytes);

typedef struct situation {
    const char *name;
    void (*play)(void);
} situation;

/* One after the other; or only that of this name, unless it is NULL. */
int situations_play(const situation *all, int count, const char *only);

#endif
