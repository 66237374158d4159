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
    static const struct {
        int status;
        const char *name;
    } names[] = {
        {BODHI_OK, "ok"},
        {BODHI_END, "end"},
        {BODHI_MISS, "miss"},
        {BODHI_EXISTS, "exists"},
        {BODHI_ERROR_ARGUMENT, "argument"},
        {BODHI_ERROR_MEMORY, "memory"},
        {BODHI_ERROR_SYSTEM, "system"},
        {BODHI_ERROR_FULL, "full"},
        {BODHI_ERROR_POISONED, "poisoned"},
        {BODHI_ERROR_VERSION, "version"},
        {BODHI_ERROR_NOT_FOUND, "not found"},
        {BODHI_ERROR_BUSY, "busy"},
        {BODHI_ERROR_NETWORK, "network"},
        {BODHI_ERROR_UNSAFE, "unsafe"},
        {BODHI_ERROR_CONFLICT, "conflict"},
        {BODHI_ERROR_UNREACHABLE, "unreachable"},
        {BODHI_ERROR_PROTOCOL, "protocol"},
        {BODHI_ERROR_INTERRUPTED, "interrupted"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (names[i].status == status) {
            return names[i].name;
        }
    }
    return "unknown status";
}
