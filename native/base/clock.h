/* The clock of all deadlines. */
#ifndef BODHI_CLOCK_H
#define BODHI_CLOCK_H

#include <stdint.h>

/* Milliseconds of a clock that never goes back. */
int64_t now_ms(void);

#endif
