/* How a function of the library reports an error: `return bodhi_fail(BODHI_ERROR_..., "what was wrong")`. */
#pragma once

#include "bodhi.h"

/* Note the message (cut at 1023 bytes) for this thread and return `status`. */
__attribute__((format(printf, 2, 3))) int bodhi_fail(int status, const char *format, ...);

/* The same for a system call: ENOSPC, EDQUOT and EFBIG become FULL, ENOMEM MEMORY, the rest SYSTEM. */
int bodhi_fail_system(int error, const char *call, const char *path);

int bodhi_fail_memory(void);
