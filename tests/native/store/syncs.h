/* What was synced, by any thread, and what is open; syncs can be held, and made to fail, once for a file. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

extern atomic_bool syncs_held; /* those that begin do not end */
extern atomic_bool sync_fails; /* the next one of a file */
extern atomic_int syncs_begun;

/* Put itself into the table of system calls, which no other thread may use just now; forget what was synced. */
void watch_syncs(void);
void forget_syncs(void);

/* Whether a file, or the names in a directory, were synced since. */
bool is_synced(const char *path);

/* Open descriptors of this process. */
int count_descriptors(void);
