/* check.h - CHECK, for programs that end at the first thing that does not hold. */
#ifndef SIM_CHECK_H
#define SIM_CHECK_H
#include <stdio.h>
#include <unistd.h>

static const char *what = ""; /* is tried now */

/* After the condition there may be a format, and what belongs to it. */
#define CHECK(condition, ...)                                                          \
    do {                                                                               \
        if (!(condition)) {                                                            \
            fprintf(stderr, "%s:%d: not %s. %s", __FILE__, __LINE__, #condition,       \
                    what);                                                             \
            fprintf(stderr, " " __VA_ARGS__);                                          \
            fputc('\n', stderr);                                                       \
            _exit(1);                                                                  \
        }                                                                              \
    } while (0)

#endif
