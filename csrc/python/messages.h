/* messages.h - Python's buffers, looked at in few instructions.
 *
 * What looks at Python's objects is here, and the rest of the helper knows none.  It asks
 * objects of built-in types only, which runs no code of the program's, and uses CPython's
 * limited API alone, as one build serves many versions.
 */
#ifndef AZC_MESSAGES_H
#define AZC_MESSAGES_H

/* How messages are sent: as azc_send_bound does, or with ask_room; or, for a transport, as
 * azc_send_bound, but if they are empty not at all. */
enum { AZC_SEND, AZC_PUT, AZC_WRITE };

/* Makes functions for Python, to be called by ctypes (cffi would release the GIL), as a
 * tuple.  `steady` is a tuple of those types whose memory may be read in user space, and
 * `release` is cffi's function.
 *   steady_total(messages)
 *     The sum of the lengths in a list or tuple, if the memory of each belongs to an object
 *     of a steady type; or -1.
 *   send_at_once(channel, token, views, message, how, count)
 *     Sends `message`: bytes, a bytearray or a memoryview of bytes, in which `count`
 *     messages were joined.  Returns 0 if all is out, else what C has returned and the size.
 *     While C needs the memory, the only view keeps it: a copy, if it is small and steady.
 *     Returns None, having done nothing, if the message is of another kind, the only view is
 *     not None (so another message has the operation), or the token is not bound.
 *   receive_at_once(channel, memory, need, come)
 *     Stores what has come in a bytearray or a memoryview of bytes, and at the address
 *     `come` how much it was.  That number, if it is the need (0: all); a memoryview, which
 *     keeps the memory as it is, if more has to come; or None if nothing has, or the memory
 *     is of another kind.
 *     (Without the GIL, what keeps a memoryview's memory is a PickleBuffer.)
 *   unpin(views)
 *     Takes all out of a list, the last first, and releases pins and memoryviews, unless they
 *     are exported.  No signal's handler runs meanwhile; of two threads, one has each.
 * NULL: an exception was raised. */
void *azc_messages(void *steady, void *release);

#endif
