/* zerocopy.c - simulated loans to sockets; see zerocopy.h. */
#include "zerocopy.h"

#include <errno.h>
#include <stdlib.h>

#include "kernel.h"
#include "locks.h"
#include "sys.h"
#include "threads.h"

static sim_flow *flow_of(int fd) {
    SIM_CHECK(kernel_file(fd)->kind == SOCKET, "not a socket: %d", fd);
    return &kernel_file(fd)->flow[1];
}

int zerocopy_begin(int fd) {
    sim_flow *flow = flow_of(fd);
    SIM_CHECK(!flow->counts, "fd %d is asked for zero copies again", fd);
    if (kernel_strikes(kernel_rates.refused, FAULT_REFUSED)) {
        flow->refused = true;
        return -EOPNOTSUPP;
    }
    flow->counts = true;
    return 0;
}

/* ---- lending --------------------------------------------------------- */

static void add_call(sim_calls *calls, uint64_t end) {
    if (calls->count == calls->room) {
        calls->room = 2 * calls->room + 16;
        calls->all =
            realloc(calls->all, (size_t)calls->room * sizeof *calls->all);
        if (!calls->all) abort();
    }
    calls->all[calls->count++] =
        (sim_call){.end = end, .late = sim_chance(300)};
}

static size_t total_of(const struct iovec *vec, int count) {
    size_t total = 0;
    for (int i = 0; i < count; i++) total += vec[i].iov_len;
    return total;
}

static ssize_t lend(sim_file *file, const struct iovec *vec, int count) {
    static const int refusals[] = {-EOPNOTSUPP, -EINVAL, -EFAULT};
    sim_flow *flow = &file->flow[1];
    if (kernel_strikes(kernel_rates.refused, FAULT_REFUSED)) {
        flow->refused = true;
        return refusals[sim_below(3)];
    }
    if (kernel_strikes(kernel_rates.no_room, FAULT_NO_ROOM)) return -ENOBUFS;
    int error = kernel_meets_fault(file, true);
    if (error == -EIO || error == -ECONNRESET)
        return kernel_breaks(flow, -EPIPE);
    if (error) return error;
    if (flow->ended) return kernel_breaks(flow, -EPIPE);
    if (flow->level >= flow->capacity) return -EAGAIN;
    size_t n = total_of(vec, count), room = flow->capacity - flow->level;
    n = kernel_cut(n < room ? n : room);
    kernel_lends(flow, vec, n);
    add_call(&flow->calls_lent, flow->moved);
    return (ssize_t)n;
}

ssize_t zerocopy_send(int fd, const struct iovec *vec, int count) {
    sim_file *file = kernel_file(fd);
    sim_flow *flow = flow_of(fd);
    SIM_CHECK(flow->counts && !flow->refused, "pages are lent to fd %d", fd);
    SIM_CHECK(!flow->calls_lent.copied,
              "pages are lent though they are copied");
    for (int i = 0; i < count; i++)
        SIM_CHECK(lending_is_mapped(vec[i].iov_base, vec[i].iov_len),
                  "what is lent belongs to no pool");
    kernel_begins_call(file, true, count);
    ssize_t r = file->stolen ? -EBADF : lend(file, vec, count);
    if (file->stolen && !flow->fatal) flow->fatal = -EBADF;
    kernel_ends_call(file, true, r);
    sim_trace("lend fd %ld, %ld bytes: %ld", fd, (int64_t)total_of(vec, count),
              r);
    return r;
}

/* ---- telling --------------------------------------------------------- */

bool zerocopy_is_late(const sim_flow *flow, int i) {
    return flow->counts && !flow->reads_on && flow->calls_lent.all[i].late;
}

static bool is_news(const sim_flow *flow, int i) {
    const sim_call *it = &flow->calls_lent.all[i];
    return !it->told && flow->read >= it->end && !zerocopy_is_late(flow, i);
}

bool zerocopy_has_news(sim_flow *flow) {
    const sim_calls *calls = &flow->calls_lent;
    if (flow->reads_on && calls->told < calls->count) peer_read_remains(flow);
    for (int i = calls->told; i < calls->count; i++)
        if (is_news(flow, i)) return true;
    return false;
}

/* What was late may come now. */
void zerocopy_peer_acts(sim_flow *flow) {
    sim_calls *calls = &flow->calls_lent;
    for (int i = calls->told; i < calls->count; i++)
        calls->all[i].late = calls->all[i].late && sim_chance(700);
}

/* Any of the news, not only the oldest. */
static int draw_news(const sim_flow *flow) {
    const sim_calls *calls = &flow->calls_lent;
    int first = -1, before = 0;
    for (int i = calls->told; i < calls->count; i++) {
        if (!is_news(flow, i)) continue;
        if (first >= 0 && !sim_chance(250)) continue;
        before += first >= 0;
        first = i;
    }
    sim_faults[FAULT_UNORDERED] += before > 0;
    return first;
}

static int extend(const sim_flow *flow, int last) {
    while (last + 1 < flow->calls_lent.count && is_news(flow, last + 1) &&
           sim_chance(600)) {
        sim_faults[FAULT_MERGED]++;
        last++;
    }
    return last;
}

int zerocopy_tell(int fd, sys_range *range) {
    sim_file *file = kernel_file(fd);
    sim_flow *flow = flow_of(fd);
    sim_calls *calls = &flow->calls_lent;
    SIM_CHECK(!sim_holds_locks(), "a question with a lock held");
    SIM_CHECK(!flow->busy, "two calls at once on fd %d", fd);
    SIM_CHECK(!kernel_is_caller(sim_self()), "a caller asks what is settled");
    SIM_CHECK(!file->stolen, "a stranger's fd %d is asked", fd);
    flow->busy = true;
    sim_yield();
    int first = zerocopy_has_news(flow) ? draw_news(flow) : -1, last = first;
    if (first >= 0) {
        last = extend(flow, first);
        for (int i = first; i <= last; i++) calls->all[i].told = true;
        while (calls->told < calls->count && calls->all[calls->told].told)
            calls->told++;
        *range = (sys_range){AZC_FIRST_LOAN + (uint32_t)first,
                             AZC_FIRST_LOAN + (uint32_t)last, false};
        range->copied = kernel_strikes(kernel_rates.copied, FAULT_COPIED);
        calls->copied |= range->copied;
        kernel_progress++;
    }
    sim_yield();
    flow->busy = false;
    sim_trace("fd %ld tells of loans %ld to %ld", fd, first, last);
    return first >= 0;
}

int zerocopy_is_broken(int fd) {
    sim_flow *flow = flow_of(fd);
    SIM_CHECK(!sim_holds_locks(), "a question with a lock held");
    sim_yield();
    if (!flow->ended) return 0;
    return kernel_breaks(flow, -EPIPE);
}
