/* seeds.h - what programs of seeds have in common: the command line, and the callers
 * and the peer, who take steps together.
 */
#ifndef SIM_SEEDS_H
#define SIM_SEEDS_H
#include <stdbool.h>
#include <stdint.h>

enum { CALLERS = 3 }; /* at most */

typedef struct sim_cast {
    int steps;                /* of all callers, at most */
    void (*step)(int caller); /* from 0 on */
    void (*peer_step)(void);
    void (*unstall)(void); /* lets go of a caller that the peer holds in a call */
} sim_cast;

extern int sim_callers;    /* in this seed */
extern uint64_t sim_steps; /* all seeds together */

/* Draws how many callers and steps there are, and plays them. */
void seeds_play(const sim_cast *cast);

/* Arguments: [--seeds N] [--from S] [--verbose] [--sabotage FAULT].  Returns how many
 * seeds were run. */
uint64_t seeds_run(int argc, char **argv, void (*run)(uint64_t seed, bool verbose));

#endif
