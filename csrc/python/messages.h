/* messages.h - Python's buffers, looked at in few instructions.
 *
 * What looks at Python's objects is here, and the rest of the helper knows none.  It runs
 * with the GIL, so what it sees does not change meanwhile; and it asks objects of built-in
 * types only, which runs no code of the program's.  Of CPython it uses the limited API
 * alone, as one build serves many versions.
 */
#ifndef AZC_MESSAGES_H
#define AZC_MESSAGES_H

/* Each makes a function for Python, to be called by ctypes (cffi would release the GIL).
 * `steady` is a tuple of those types whose memory may be read in user space.  NULL: an
 * exception was raised. */

/* Its argument is a list or tuple of messages.  It returns the sum of their lengths if the
 * memory of each belongs to an object of a steady type; or -1. */
void *azc_steady_total(void *steady);

/* How messages are sent: as azc_send_bound does, or with ask_room; or, for a transport, as
 * azc_send_bound, but if they are empty not at all. */
enum { AZC_SEND, AZC_PUT, AZC_WRITE };

/* Its arguments are a channel, the token that is bound there, that operation's list of
 * views, bytes or a bytearray or a memoryview of bytes, how to send it, and how many messages
 * it is.  It returns 0 if all is out, or else what C has returned and the size.  As long as
 * C needs the memory, the only view keeps it: a copy, if it is small and steady.
 * None, and nothing was done: it is of another kind, the only view was not None, as another
 * message has the operation, or another token is bound. */
void *azc_send_at_once(void *steady);

/* Its arguments are a channel, a bytearray or a memoryview of bytes, how many of them are
 * needed (0: all), and the address of a uint64_t.  What has come is stored in the memory,
 * and there how much it was: see azc_recv_now.  It returns that number if it suffices; a
 * memoryview, which keeps the memory as it is, if more has to come; or None if nothing has,
 * or the memory is of another kind. */
void *azc_receive_at_once(void *steady);

#endif
