/* Statuses, their names and the message of a thread's last error. */
#include "base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char message[1024];

const char *bodhi_message(void) {
    return message;
}

int bodhi_fail(int status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    // NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): it is initialised in the line above
    (void)vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return status;
}

int bodhi_fail_system(int error, const char *call, const char *path) {
    int status = BODHI_ERROR_SYSTEM;
    if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
        status = BODHI_ERROR_FULL;
    } else if (error == ENOMEM) {
        status = BODHI_ERROR_MEMORY;
    }
    char reason[128] = "";
    const char *text = strerror_r(error, reason, sizeof reason); /* GNU's: may return a text of its own */
    return bodhi_fail(status, "%s: %s failed: %s", path, call, text);
}

int bodhi_fail_memory(void) {
    return bodhi_fail(BODHI_ERROR_MEMORY, "out of memory");
}

const char *bodhi_status_name(int status) {
    enum { LOWEST = BODHI_ERROR_INTERRUPTED };
    static const char *const names[] = {
        [BODHI_OK - LOWEST] = "ok",
        [BODHI_END - LOWEST] = "end",
        [BODHI_MISS - LOWEST] = "miss",
        [BODHI_EXISTS - LOWEST] = "exists",
        [BODHI_ERROR_ARGUMENT - LOWEST] = "argument",
        [BODHI_ERROR_MEMORY - LOWEST] = "memory",
        [BODHI_ERROR_SYSTEM - LOWEST] = "system",
        [BODHI_ERROR_FULL - LOWEST] = "full",
        [BODHI_ERROR_POISONED - LOWEST] = "poisoned",
        [BODHI_ERROR_VERSION - LOWEST] = "version",
        [BODHI_ERROR_NOT_FOUND - LOWEST] = "not found",
        [BODHI_ERROR_BUSY - LOWEST] = "busy",
        [BODHI_ERROR_NETWORK - LOWEST] = "network",
        [BODHI_ERROR_UNSAFE - LOWEST] = "unsafe",
        [BODHI_ERROR_CONFLICT - LOWEST] = "conflict",
        [BODHI_ERROR_UNREACHABLE - LOWEST] = "unreachable",
        [BODHI_ERROR_PROTOCOL - LOWEST] = "protocol",
        [BODHI_ERROR_INTERRUPTED - LOWEST] = "interrupted",
    };
    unsigned i = (unsigned)status - (unsigned)LOWEST;
    return i < sizeof names / sizeof *names && names[i] != NULL ? names[i] : "unknown status";
}
