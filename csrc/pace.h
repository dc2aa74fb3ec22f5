/* pace.h - how much to give a pipe at a time, found out by measuring. */
#ifndef AZC_PACE_H
#define AZC_PACE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PACES = 2, SHORTEST_PIECE = 8 << 10 };

typedef enum { RESTING, SETTLING, MEASURED } azc_pace_part;

typedef struct azc_pace {
    int now, favourite;
    int wins; /* laps that the rival has won in a row */
    azc_pace_part part;
    unsigned lost;  /* laps that it has lost against this favourite */
    double to_beat; /* nanoseconds a byte */
    uint64_t since; /* when the clock was started; 0: it is stopped */
    uint64_t spent; /* nanoseconds in this part, */
    uint64_t bytes; /* and the bytes moved in it */
} azc_pace;

size_t azc__pace_piece(const azc_pace *pace);
void azc__pace_start(azc_pace *pace);
void azc__pace_stop(azc_pace *pace);
void azc__pace_sent(azc_pace *pace, uint64_t bytes);

#endif
