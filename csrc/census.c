/* census.c - what there is in this process, for those who count it. */
#include "handle.h"

int azc_census(azc_entry *entries, int most) {
    return azc__handle_list(&azc__channels, entries, most);
}

int azc_shm_census(azc_entry *entries, int most) {
    return azc__handle_list(&azc__rings, entries, most);
}

uint64_t azc_now(void) { return azc_sys.now_ns(); }
