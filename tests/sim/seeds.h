/* seeds.h - the common part of programs that run seeds: the command line, and the steps
 * of the callers and the peer.
 */
#ifndef SIM_SEEDS_H
#define SIM_SEEDS_H
#include <stdbool.h>
#include <stdint.h>

enum { CALLERS = 3 }; /* at most */

typedef struct sim_cast {
    int steps;                /* of all callers together, at most */
    void (*step)(int caller); /* callers count from 0 */
    void (*peer_step)(void);
    void (*unstall)(void); /* releases a caller that the peer holds in a call */
} sim_cast;

extern int sim_callers;    /* in this seed */
extern uint64_t sim_steps; /* in all seeds together */

/* Draws the numbers of callers and steps, and plays the steps. */
void seeds_play(const sim_cast *cast);

/* Arguments: [--seeds N] [--from S] [--verbose] [--sabotage FAULT].  Returns the number
 * of seeds that were run. */
uint64_t seeds_run(int argc, char **argv, void (*run)(uint64_t seed, bool verbose));

#endif
