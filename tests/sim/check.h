/* check.h - CHECK, for programs that stop at the first failed check. */
#ifndef SIM_CHECK_H
#define SIM_CHECK_H
#include <stdio.h>
#include <unistd.h>

static const char *what = ""; /* the check that runs now */

/* A format and its arguments may follow the condition. */
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
