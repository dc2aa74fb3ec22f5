/* messages.h - Python's buffers, handled in a few instructions.
 *
 * Only this part of the helper uses Python's objects.  It asks only objects of built-in
 * types, which runs no code of the program's (but unpin may run a __release_buffer__), and
 * uses only CPython's limited API, since one build serves many versions.  (A build for a
 * Python without the GIL serves one, and uses PickleBuffer, too.)
 */
#ifndef AZC_MESSAGES_H
#define AZC_MESSAGES_H

/* How to send a message: without ask_room, with ask_room, or, for a transport, without
 * ask_room and not at all if it is empty. */
enum { AZC_SEND, AZC_PUT, AZC_WRITE };

/* Returns a tuple of functions for Python; NULL: an exception was raised.  ctypes has to
 * call this (cffi would release the GIL).  `steady` is a tuple of the types whose memory
 * may be read in user space, and `release` is cffi's function.
 *   steady_total(messages)
 *     Returns the sum of the lengths in a list or tuple, if the memory of each belongs to
 *     an object of a steady type; or -1.
 *   send_at_once(channel, token, views, message, how, count)
 *     Sends `message`: bytes, a bytearray or a memoryview of bytes, in which `count`
 *     messages were joined.  Returns 0 if all is out, else the result of azc_send_bound and
 *     the size.  While C needs the memory, the only item of `views` keeps it: a copy, if it
 *     is small and steady.  Returns None, having done nothing, if the message is of another
 *     kind, the item is not None (so another message has the operation), or the token is
 *     not bound.
 *   receive_at_once(channel, memory, need, come)
 *     Stores bytes that have come in a bytearray or a memoryview of bytes, and their number
 *     at the address `come`.  Returns the number if it is at least need (0: all), or 0 if
 *     nothing has come; if more has to come, a memoryview, which keeps the memory where it
 *     is; or None if the memory is of another kind, or there is an error.
 *     (Without the GIL a PickleBuffer keeps the memory of a memoryview.)
 *   unpin(views)
 *     Takes all items out of a list, the last first, and releases pins and memoryviews that
 *     are not exported.  No signal handler runs meanwhile, unless an exporter has a
 *     __release_buffer__ in Python; of two threads each item goes to one. */
void *azc_messages(void *steady, void *release);

#endif
