/* What every test includes: the headers of C and POSIX that most need, and CHECK. */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bodhi.h"

/* Where the test is, for messages. */
extern char doing[256];
#define DOING(...) (void)snprintf(doing, sizeof doing, __VA_ARGS__)

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            (void)fprintf(stderr, "%s:%d: %s is false (%s)\n%s\n", __FILE__, __LINE__, #condition, bodhi_message(),    \
                          doing);                                                                                      \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

#define LENGTH(array) (sizeof(array) / sizeof *(array))
