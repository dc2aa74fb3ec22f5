/* sabotage.h - deliberate faults, compiled in only for tests that must catch them. */
#ifndef AZC_SABOTAGE_H
#define AZC_SABOTAGE_H

#ifdef AZC_SABOTAGE
enum {
    SABOTAGE_ORDER = 1,
    SABOTAGE_TAIL = 2,
    SABOTAGE_RESCUE = 4,
    SABOTAGE_IDENTITY = 8,
    SABOTAGE_LOAN = 16,
    SABOTAGE_DETACH = 32,
    SABOTAGE_EVENT = 64,
    SABOTAGE_HANDLE = 128,
    SABOTAGE_GATE = 256,
    SABOTAGE_COPY = 512,
    SABOTAGE_BETWEEN = 1024,
    SABOTAGE_HOLD = 4096,
    SABOTAGE_FILES = 8192,
    SABOTAGE_INTERRUPT = 16384,
    SABOTAGE_PARTY = 32768,
    SABOTAGE_LATE = 65536,
};
extern int azc_sabotage;
#define SABOTAGED(what) (azc_sabotage & SABOTAGE_##what)
#else
#define SABOTAGED(what) 0
#endif

#endif
