/* caller.h - who writes a pipe's big message: the caller's thread or the pump.
 *
 * Normally the pump does: it needs neither the loop nor the GIL, and a pipe is read
 * faster if one thread writes without a pause.
 *
 * With one or two cores (or a CPU quota of that) the caller, the pump and the reader
 * compete for them, and the caller would only wait for the pump.  So there the caller
 * writes, as long as the reader keeps up: until the pipe is full, or a deadline has
 * passed.  Measured on two cores: 0.94 of the rate of a loop in C instead of 0.87.
 */
#ifndef AZC_CALLER_H
#define AZC_CALLER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct azc_caller {
    bool few_cores;
    uint64_t since_full; /* bytes since the pipe was full */
    uint64_t deadline;   /* of the caller's write; 0: none is going on */
} azc_caller;

void azc__caller_init(azc_caller *caller);
/* May the caller's thread write n bytes, more than it usually may? */
bool azc__caller_may_write(const azc_caller *caller, size_t n);
/* Around such a write, which ends early at its deadline. */
void azc__caller_start_clock(azc_caller *caller);
bool azc__caller_is_past_deadline(const azc_caller *caller);
void azc__caller_stop_clock(azc_caller *caller);
/* Notes the result of any write. */
void azc__caller_sent(azc_caller *caller, uint64_t n, bool was_full);

#endif
