/* cores.c - prints how many cores the helper believes to have. */
#include <stdio.h>

#include "sys.h"

int main(void) {
    printf("%d\n", azc_sys.cores());
    return 0;
}
