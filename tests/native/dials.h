/* What a pusher that was abandoned leaves behind. */
#ifndef BODHI_TESTS_DIALS_H
#define BODHI_TESTS_DIALS_H

#include <unistd.h>

#include "net/connect_async.h"

/* Wait until nobody dials any more; those who still do end soon. */
static inline void await_dials(void) {
    while (dial_running() > 0) {
        (void)usleep(1000);
    }
}

#endif
