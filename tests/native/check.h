/* What a test says when something is not as it must be. */
#ifndef BODHI_TESTS_CHECK_H
#define BODHI_TESTS_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#include "bodhi.h"

/* Where the test is, for messages. */
extern char doing[256];

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            (void)fprintf(stderr, "%s:%d: %s is false (%s)\n%s\n", __FILE__, __LINE__, #condition, bodhi_message(),    \
                          doing);                                                                                      \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

#endif
