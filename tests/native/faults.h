/* Calls of the library to the system of which the Nth fails, for a fault that can hit it. */
#pragma once

#include <stdbool.h>

enum fault { NO_FAULT, BROKEN, INTERRUPTED, CUT_SHORT, NO_DESCRIPTORS, NO_SPACE, QUOTA, BAD_DISK, N_FAULTS };

extern const char *const fault_names[];

/* Put themselves into the table of system calls, or the system's own back. */
void install_faults(void);
void remove_faults(void);

/* From now on call `at` fails, from 1, of those that this fault can hit; `stays`: and all after it. */
void begin_fault(enum fault kind, long at, bool stays);

/* No call fails any more; returns how many of the last fault's calls there were. */
long end_fault(void);

enum fault present_fault(void);
