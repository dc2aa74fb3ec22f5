/* pace.h - the piece that a pipe's reader gets on with best. */
#ifndef AZC_PACE_H
#define AZC_PACE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PACES = 2, SHORTEST_PIECE = 8 << 10 };

typedef enum { RESTING, SETTLING, MEASURED } azc_pace_part;

typedef struct azc_pace {
    int now, favourite;
    int wins; /* of the favourite's rival, in a row */
    azc_pace_part part;
    unsigned lost;  /* by its rival, since it is the favourite */
    double to_beat; /* nanoseconds a byte */
    uint64_t since; /* the clock's start; 0: it stands still */
    uint64_t spent; /* nanoseconds, in this part, */
    uint64_t bytes; /* and what they were spent on */
} azc_pace;

size_t azc__pace_piece(const azc_pace *pace);
void azc__pace_start(azc_pace *pace);
void azc__pace_stop(azc_pace *pace);
void azc__pace_moved(azc_pace *pace, uint64_t bytes);

#endif
