/* messages.h - many of Python's buffers, looked at in one call.
 *
 * What looks at Python's objects is here, and the rest of the helper knows none.  It runs
 * with the GIL, so what it sees does not change meanwhile; and it asks objects of built-in
 * types only, which runs no code of the program's.  Of CPython it uses the limited API
 * alone, as one build serves many versions.
 */
#ifndef AZC_MESSAGES_H
#define AZC_MESSAGES_H

/* Makes a function for Python, to be called by ctypes (cffi would release the GIL).  Its
 * argument is a list or tuple of messages.  It returns the sum of their lengths if the
 * memory of each belongs to an object of one of the types in the set `steady`; or -1.
 * NULL: an exception was raised. */
void *azc_steady_total(void *steady);

#endif
