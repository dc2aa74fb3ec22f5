/* registry.h - every channel, pump and port there is: for exit and for fork. */
#ifndef AZC_REGISTRY_H
#define AZC_REGISTRY_H
#include <stdbool.h>

enum { REGISTERED_CHANNEL, REGISTERED_PUMP, REGISTERED_PORT, REGISTERED_KINDS };

typedef struct azc_registered {
    void *object;
    struct azc_registered *next, **previous;
    bool dead; /* inherited through a fork: must not be touched */
} azc_registered;

void azc__register(int kind, azc_registered *entry, void *object);
void azc__unregister(azc_registered *entry);
bool azc__is_dead(const azc_registered *entry);

#endif
