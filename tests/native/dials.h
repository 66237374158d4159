/* What a pusher that was abandoned leaves behind. */
#pragma once

#include <unistd.h>

int servers_running(void); /* of net/pusher.h, whose other names are also those of tests */

/* Wait until no thread pushes any more; those that still do end soon. */
static inline void await_dials(void) {
    while (servers_running() > 0) {
        (void)usleep(1000);
    }
}
