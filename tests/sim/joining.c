/* joining.c - a reader that joins a split at the worst moment has all that comes then.
 *
 * It joins inside of the split's look at the source, and what comes next is there before
 * that look is over: so another thread's join and send happen at exactly that moment.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "split.h"
#include "sys.h"

static int source[2];
static azc_id split;
static azc_split_reader *readers[2];
static ssize_t (*real_unread)(int fd, bool socket);
static int has_joined;

static void send_word(const char *word) {
    CHECK(write(source[1], word, strlen(word)) == (ssize_t)strlen(word));
}

/* In the look after the first two bytes were taken. */
static ssize_t unread(int fd, bool socket) {
    azc_split_state state = {0};
    azc_split_get(split, &state);
    if (state.taken == 2 && !has_joined) {
        has_joined = 1;
        CHECK(azc_split_join(split, 4096, &readers[1]) == 0);
        send_word("cdEFGHIJKL");
        close(source[1]);
    }
    return real_unread(fd, socket);
}

static void check_content(azc_split_reader *reader, const char *wanted) {
    char bytes[100];
    int fd = azc_split_read_end(reader);
    CHECK(fcntl(fd, F_SETFL, 0) == 0); /* its end may follow */
    ssize_t n = read(fd, bytes, sizeof bytes);
    CHECK(n == (ssize_t)strlen(wanted) && memcmp(bytes, wanted, (size_t)n) == 0);
    CHECK(read(fd, bytes, sizeof bytes) == 0);
    close(fd);
}

/* `from` is where the second one's bytes begin. */
static void play(size_t unit, const char *which, const char *from) {
    what = which;
    has_joined = 0;
    CHECK(pipe(source) == 0);
    CHECK(fcntl(source[0], F_SETFL, O_NONBLOCK) == 0);
    azc_split_request wanted = {.source = source[0],
                                .file = -1,
                                .null = open("/dev/null", O_WRONLY),
                                .patience_us = UINT64_MAX,
                                .unit = unit};
    CHECK(azc_split_open(&wanted, &split) == 0);
    CHECK(azc_split_join(split, 4096, &readers[0]) == 0);
    send_word("ab");
    for (int i = 0; i < 2; i++) {
        while (azc_split_outcome(readers[i]) == AZC_READING) usleep(100);
        CHECK(azc_split_outcome(readers[i]) == AZC_HAS_ALL);
        check_content(readers[i], i ? from : "abcdEFGHIJKL");
        azc_split_let_go(&readers[i]);
    }
    azc_split_free(split);
    close(source[0]);
}

int main(void) {
    real_unread = azc_sys.unread;
    azc_sys.unread = unread;
    play(1, "units of 1", "cdEFGHIJKL");
    play(2, "units of 2", "cdEFGHIJKL");
    play(4, "units of 4", "EFGHIJKL"); /* a whole unit */
    return 0;
}
