/* The clock of all deadlines. */
#pragma once

#include <stdint.h>
#include <time.h>

/* Milliseconds of a clock that never goes back. */
static inline int64_t now_ms(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}
