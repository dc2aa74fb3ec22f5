/* port.h - reports to one event loop the operations that end later.
 *
 * A note holds the event of one token.  It is made with its operation, so that posting
 * it needs no memory:
 *
 *   its operation's --(azc__note_post)--> the port's --(acknowledged)--> freed
 *        |                                    |
 *        +---------(azc__note_free)-----------+-- a note of AZC_ROOM or AZC_COPIED stays
 *                  there is no report             its operation's, and is posted again
 *
 * A port cannot be closed while it has any notes.
 */
#ifndef AZC_PORT_H
#define AZC_PORT_H
#include <stdbool.h>

#include "azc.h"
#include "sys.h"

typedef struct azc_note azc_note;

/* 0 or -errno; a note for port 0 is NULL. */
int azc__note_new(azc_id port, uint64_t token, azc_note **note);
/* azc__note_new in two steps, of which the second needs no memory. */
azc_note *azc__note_blank(void);
int azc__note_address(azc_note *note, azc_id port, uint64_t token);
uint64_t azc__note_token(const azc_note *note);
/* Both do nothing with NULL. */
void azc__note_free(azc_note *note);
void azc__note_post(azc_note *note, uint64_t sent, int status, int outcome);

/* Wakes the port's loop, whose azc_port_take then calls retry, if it is not NULL; and
 * again later, as long as that returns true. */
void azc__port_retry(azc_id port, bool (*retry)(void));
/* There are events, or the loop has not taken events since it was woken. */
bool azc__port_is_signalled(azc_id port);

/* -EBUSY: the port has notes, and stays open. */
int azc__port_close(azc_id port);
void azc__port_fork_child(void *port);

#endif
