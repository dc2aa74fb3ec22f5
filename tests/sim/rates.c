/* rates.c - how often each fault strikes in a seed. */
#include "kernel.h"
#include "threads.h"

static unsigned draw_rate(unsigned often) {
    const unsigned rates[] = {0, 8, 60, often};
    return rates[sim_below(4)];
}

sim_rates kernel_draw_rates(void) {
    sim_rates rates = {0};
    if (sim_chance(256)) return rates; /* a calm kernel */
    rates.cut = draw_rate(700);
    rates.again = draw_rate(300);
    rates.interrupted = draw_rate(200);
    rates.starved = draw_rate(200);
    rates.spurious = draw_rate(500);
    if (sim_chance(256)) rates.broken = draw_rate(100) / 4;
    if (sim_chance(200)) rates.no_memory = draw_rate(150);
    if (sim_chance(150)) rates.no_thread = draw_rate(400);
    if (sim_chance(150)) rates.no_fd = draw_rate(200);
    if (sim_chance(256)) rates.refused = draw_rate(200) / 2;
    if (sim_chance(256)) rates.no_pages = draw_rate(600);
    if (sim_chance(100)) rates.kept = draw_rate(600);
    return rates;
}
