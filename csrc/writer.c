/* writer.c - who writes a pipe's big message: the caller's thread or the pump. */
#include "writer.h"

#include "sys.h"

enum {
    FEW = 2,            /* cores */
    KEEPS_UP = 2 << 20, /* bytes since the pipe was full: its reader is fast */
    LONGEST = 8 << 20,  /* bytes that mostly take two milliseconds, */
    PATIENCE_NS = 3000000, /* and after three are the pump's all the same */
};

void azc__writer_begin(azc_writer *writer) {
    *writer = (azc_writer){.few_cores = azc_sys.cores() <= FEW};
}

bool azc__writer_is_caller(const azc_writer *writer, size_t n) {
    return writer->few_cores && n <= LONGEST && writer->moved >= KEEPS_UP;
}

void azc__writer_start(azc_writer *writer) {
    writer->give_up_at = azc_sys.now_ns() + PATIENCE_NS;
}

bool azc__writer_is_late(const azc_writer *writer) {
    return writer->give_up_at && azc_sys.now_ns() > writer->give_up_at;
}

void azc__writer_stop(azc_writer *writer) { writer->give_up_at = 0; }

void azc__writer_moved(azc_writer *writer, uint64_t n, bool was_full) {
    writer->moved = was_full ? 0 : writer->moved + n;
}
