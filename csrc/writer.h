/* writer.h - who writes a pipe's big message: the caller's thread or the pump.
 *
 * One policy, for machines with one or two cores (or a quota of so much): there the
 * pump, the caller and the reader share them, and the caller has nothing to do but
 * to wait.  So while the reader keeps up, the caller writes.  Measured (bench pipes,
 * two cores): 0.94 of a C loop's rate instead of 0.87.
 *
 * With more cores, or once the pipe was full, the pump does: it needs neither the
 * loop nor the GIL, and one thread that never pauses is read faster.
 */
#ifndef AZC_WRITER_H
#define AZC_WRITER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct azc_writer {
    bool few_cores;
    uint64_t moved;      /* bytes since the pipe was full */
    uint64_t give_up_at; /* when the caller's time is over; 0: never */
} azc_writer;

void azc__writer_begin(azc_writer *writer);
/* May the caller's thread write so many bytes, which are too many for a short cut? */
bool azc__writer_is_caller(const azc_writer *writer, size_t n);
/* Around such a write. */
void azc__writer_start(azc_writer *writer);
bool azc__writer_is_late(const azc_writer *writer);
void azc__writer_stop(azc_writer *writer);
/* What came of any write. */
void azc__writer_moved(azc_writer *writer, uint64_t n, bool was_full);

#endif
