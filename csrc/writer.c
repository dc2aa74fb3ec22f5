/* writer.c - who writes a pipe's big message: the caller's thread or the pump. */
#include "writer.h"

#include "sys.h"

enum {
    FEW_CORES = 2,
    KEEPS_UP_AFTER =
        2 << 20,          /* so many bytes without a full pipe: a fast reader */
    CALLER_MAX = 8 << 20, /* bytes: mostly two milliseconds for the caller */
    CALLER_MAX_NS = 3000000, /* then the pump writes the rest */
};

void azc__writer_init(azc_writer *writer) {
    *writer = (azc_writer){.few_cores = azc_sys.cores() <= FEW_CORES};
}

bool azc__writer_may_be_caller(const azc_writer *writer, size_t n) {
    return writer->few_cores && n <= CALLER_MAX &&
           writer->since_full >= KEEPS_UP_AFTER;
}

void azc__writer_start_clock(azc_writer *writer) {
    writer->deadline = azc_sys.now_ns() + CALLER_MAX_NS;
}

bool azc__writer_is_past_deadline(const azc_writer *writer) {
    return writer->deadline && azc_sys.now_ns() > writer->deadline;
}

void azc__writer_stop_clock(azc_writer *writer) { writer->deadline = 0; }

void azc__writer_moved(azc_writer *writer, uint64_t n, bool was_full) {
    writer->since_full = was_full ? 0 : writer->since_full + n;
}
