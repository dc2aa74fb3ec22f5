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

/* How a message is sent by the bound port: as azc_send_bound does, or with ask_room; or,
 * for a transport, as azc_send_bound, but if it is empty not at all. */
enum { AZC_SEND, AZC_PUT, AZC_WRITE };

/* Its arguments are a channel, a list, a message and how to send it.  It sends bytes, or a
 * copy of a short bytearray or of a short memoryview of steady memory, which is the first
 * item of the list until C needs it no more.  It returns 0 if all is out, or else what C
 * has returned and the size of the message; None, and has done nothing, if it is
 * another message. */
void *azc_send_at_once(void *steady);

/* Its arguments are a channel, a bytearray or a memoryview of bytes, how many of them are
 * needed (0: all), and the address of a uint64_t.  What has come is stored in the memory,
 * and there how much it was: see azc_recv_now.  It returns that number if it suffices; or
 * None, also for other memory. */
void *azc_receive_at_once(void *steady);

#endif
