/* split.h - one pipe to many readers: tee(2) into a pipe for each, then splice away.
 *
 * Read by cffi too, under the rules of azc.h.
 *
 * Who owns what
 *   The split owns duplicates of the fds that it is given, the source's read end and
 *   the file, and each reader's write end.  Its thread uses and closes them, and owns
 *   all that is not atomic but what is under the lock of the split's number: whether it
 *   is over, and the readers that have yet to begin.  With the lock nothing is done to a pipe that
 *   somebody else has an end of, so whoever joins never waits for that.
 *   A reader's record has two owners, the split and who joined it, whose is the read
 *   end of its pipe, too; the split's memory has two, its thread and the program.  The
 *   last one to let go frees it.
 *
 * The states of a reader
 *   joining   in the list; it begins where the bytes taken are a multiple of the unit
 *   reading   it has `ahead` bytes of those that are still in the source.  tee copies
 *             from the source's beginning only, so it gets more once these are taken,
 *             and they are taken once every reader has them.
 *   over      its write end is closed: it has a piece of the source without a gap.
 *
 * A reader whose pipe is full holds up the others, for `patience` in all.  The count
 * begins again when it has read all that it has.
 *
 * Where there is no tee, or the source's pages are lent (lender.h), the thread reads a
 * piece of the source and writes it to each: `ahead` then counts what is written of it.
 *
 * In a forked child there is no split; the child's copies of its fds are closed.
 */
#ifndef AZC_SPLIT_H
#define AZC_SPLIT_H
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "azc.h"

/* What became of a reader. */
enum {
    AZC_READING = 0,
    AZC_HAS_ALL = 1,  /* up to the source's end */
    AZC_TOO_SLOW = 2, /* it held up the others for too long */
    AZC_LEFT = 3,     /* it closed its end */
    AZC_STOPPED = 4, /* azc_split_stop was called first, or the source failed */
};

typedef struct azc_split_reader azc_split_reader;

typedef struct azc_split_request {
    int source; /* the read end of a pipe, */
    int file;   /* a file or -1, */
    int null;   /* and /dev/null: it has duplicates of them */
    uint64_t patience_us;
    size_t unit;
    azc_id port; /* whose event of this token tells the end */
    uint64_t token;
} azc_split_request;

typedef struct azc_split_state {
    uint64_t taken; /* bytes taken from the source: every reader has had them */
    uint64_t filed; /* of these, in the file */
    uint64_t readers;  /* that read now */
    uint64_t dropped;  /* that were too slow */
    int file_error;    /* -errno; after it the file gets no more */
    int copies;        /* 1: no tee here */
    size_t rest;       /* once it is over: bytes read from the source ... */
    const char *bytes; /* ... that were not taken */
} azc_split_state;

/* Splits until the source ends (the event's status is 0), azc_split_stop (-ECANCELED),
 * or the source's error.  The readers are over then, and so is each that joins later. */
int azc_split_open(const azc_split_request *wanted, azc_id *split);

/* Makes a pipe, and a reader.  Its read end is the reader's until it was asked for. */
int azc_split_join(azc_id split, int pipe_size, azc_split_reader **reader);
int azc_split_read_end(azc_split_reader *reader);
int azc_split_stop(azc_id split);

int azc_split_get(azc_id split, azc_split_state *state);
int azc_split_outcome(azc_split_reader *reader);

/* Stops it too; what its state points at is gone. */
int azc_split_free(azc_id split);
/* *reader may be NULL, and is NULL then. */
void azc_split_let_go(azc_split_reader **reader);

/* (for fork.c) */
void azc__split_fork_child(void *split);

#endif
