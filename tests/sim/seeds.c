/* seeds.c - the common part of programs that run seeds; see seeds.h. */
#include "seeds.h"

#include <stdlib.h>
#include <string.h>

#include "kernel.h"
#include "sabotage.h"
#include "threads.h"

int sim_callers;
uint64_t sim_steps;
static const sim_cast *playing;
static int busy_callers, first_caller, steps_left;

/* ---- callers and the peer -------------------------------------------- */

static bool is_caller(int thread) {
    return thread >= first_caller && thread < first_caller + sim_callers;
}

static void *play_caller(void *number) {
    while (steps_left > 0) {
        steps_left--;
        sim_steps++;
        playing->step((int)(intptr_t)number);
        if (sim_chance(512)) sim_pause();
    }
    busy_callers--;
    return NULL;
}

static bool callers_are_done(void *ignored) {
    (void)ignored;
    return busy_callers == 0;
}

static void *play_peer(void *ignored) {
    while (steps_left > 0) {
        playing->peer_step();
        sim_pause();
    }
    if (!sim_wait(callers_are_done, NULL, 100)) playing->unstall();
    return ignored;
}

void seeds_play(const sim_cast *cast) {
    int threads[CALLERS + 1];
    playing = cast;
    kernel_is_caller = is_caller;
    steps_left = cast->steps / 4 + (int)sim_below((uint64_t)cast->steps * 3 / 4 + 1);
    sim_callers = busy_callers = 1 + (int)sim_below(CALLERS);
    for (int i = 0; i < sim_callers; i++)
        threads[i] = sim_spawn(play_caller, (void *)(intptr_t)i);
    first_caller = threads[0];
    threads[sim_callers] = sim_spawn(play_peer, NULL);
    for (int i = 0; i <= sim_callers; i++) sim_join(threads[i]);
}

/* ---- the command line ------------------------------------------------ */

static void sabotage(const char *fault) {
#ifdef AZC_SABOTAGE
    static const struct {
        const char *name;
        int bit;
    } faults[] = {
        {"order", SABOTAGE_ORDER},     {"tail", SABOTAGE_TAIL},
        {"rescue", SABOTAGE_RESCUE},   {"identity", SABOTAGE_IDENTITY},
        {"loan", SABOTAGE_LOAN},       {"detach", SABOTAGE_DETACH},
        {"event", SABOTAGE_EVENT},     {"handle", SABOTAGE_HANDLE},
        {"gate", SABOTAGE_GATE},       {"copy", SABOTAGE_COPY},
        {"between", SABOTAGE_BETWEEN}, {"late", SABOTAGE_LATE},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        if (strcmp(fault, faults[i].name) == 0) azc_sabotage = faults[i].bit;
#endif
    (void)fault;
}

uint64_t seeds_run(int argc, char **argv, void (*run)(uint64_t seed, bool verbose)) {
    uint64_t seeds = 1000, from = 1;
    bool verbose = false;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--verbose") == 0) {
            verbose = true;
            continue;
        }
        if (strcmp(argv[i], "--seeds") == 0) seeds = strtoull(value, NULL, 10);
        if (strcmp(argv[i], "--from") == 0) from = strtoull(value, NULL, 10);
        if (strcmp(argv[i], "--sabotage") == 0) sabotage(value);
        i++;
    }
    for (uint64_t i = 0; i < seeds; i++) run(from + i, verbose);
    return seeds;
}
