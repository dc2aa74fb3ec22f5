/* zerocopy.h - what a simulated socket tells of the pages that it was lent.
 *
 * Each call that lends has the next number.  Its pages are looked at when the
 * peer reads, or some time later (a copy of a packet may still be on its way).
 * Then it is over, and told: alone or merged with its neighbours, in any order.  Now and then there is no room for a loan, or
 * it is said that the pages were copied after all; nothing may be lent then.
 */
#ifndef SIM_ZEROCOPY_H
#define SIM_ZEROCOPY_H
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct sim_flow;
struct sys_range;

typedef struct sim_call {
    uint64_t end; /* in the flow's log */
    bool late, told;
} sim_call;

typedef struct sim_calls {
    sim_call *all;
    int count, room;
    int told; /* all before this one are */
    bool copied;
} sim_calls;

int zerocopy_begin(int fd);
ssize_t zerocopy_send(int fd, const struct iovec *vec, int count);
int zerocopy_tell(int fd, struct sys_range *range);
int zerocopy_is_broken(int fd);

bool zerocopy_is_late(const struct sim_flow *flow, int call);
bool zerocopy_has_news(struct sim_flow *flow);
void zerocopy_peer_acts(struct sim_flow *flow);

#endif
