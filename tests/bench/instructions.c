/* instructions.c - tells callgrind what to count: a file for each stretch between two
 * calls of `mark`.  Before the first call nothing is counted, so Python starts fast. */
#include <valgrind/callgrind.h>

void mark(void);

void mark(void) {
    CALLGRIND_START_INSTRUMENTATION;
    CALLGRIND_DUMP_STATS;
}
