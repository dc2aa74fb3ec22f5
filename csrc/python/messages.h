/* messages.h - Python's buffers, looked at in few instructions.
 *
 * What looks at Python's objects is here, and the rest of the helper knows none.  It runs
 * with the GIL, so what it sees does not change meanwhile; and it asks objects of built-in
 * types only, which runs no code of the program's.  Of CPython it uses the limited API
 * alone, as one build serves many versions.
 */
#ifndef AZC_MESSAGES_H
#define AZC_MESSAGES_H

/* Both make a function for Python, to be called by ctypes (cffi would release the GIL).
 * `steady` is a tuple of those types whose memory may be read in user space.  NULL: an
 * exception was raised. */

/* Its argument is a list or tuple of messages.  It returns the sum of their lengths if the
 * memory of each belongs to an object of a steady type; or -1. */
void *azc_steady_total(void *steady);

/* Its argument is any object.  It returns a copy, as bytes, of a short bytearray or of a
 * short memoryview of steady memory; or None. */
void *azc_small_copy(void *steady);

#endif
