/* caller.c - who writes a pipe's big message: the caller's thread or the pump. */
#include "caller.h"

#include "sys.h"

enum {
    FEW_CORES = 2,
    KEEPS_UP_AFTER =
        2 << 20,          /* so many bytes without a full pipe: a fast reader */
    CALLER_MAX = 8 << 20, /* bytes: mostly two milliseconds for the caller */
    CALLER_MAX_NS = 3000000, /* then the pump writes the rest */
};

void azc__caller_init(azc_caller *caller) {
    *caller = (azc_caller){.few_cores = azc_sys.cores() <= FEW_CORES};
}

bool azc__caller_may_write(const azc_caller *caller, size_t n) {
    return caller->few_cores && n <= CALLER_MAX &&
           caller->since_full >= KEEPS_UP_AFTER;
}

void azc__caller_start_clock(azc_caller *caller) {
    caller->deadline = azc_sys.now_ns() + CALLER_MAX_NS;
}

bool azc__caller_is_past_deadline(const azc_caller *caller) {
    return caller->deadline && azc_sys.now_ns() > caller->deadline;
}

void azc__caller_stop_clock(azc_caller *caller) { caller->deadline = 0; }

void azc__caller_sent(azc_caller *caller, uint64_t n, bool was_full) {
    caller->since_full = was_full ? 0 : caller->since_full + n;
}
