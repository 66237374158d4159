/* The clock of all deadlines; see clock.h. */
#include "base/clock.h"

#include <time.h>

int64_t now_ms(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}
