/* What lies in a store, by its files alone, and deleting whole segments of it. */
#ifndef BODHI_EVICTION_H
#define BODHI_EVICTION_H

#include <stdbool.h>
#include <stddef.h>

#include "bodhi.h"

/* As bodhi_survey(), of the store whose directory is open as `store`. */
int survey_store(int store, bodhi_usage *usage, bodhi_stored_segment **segments, size_t *n);

/* Whether an open directory is that of the time-major form of a dataset, which goes first, and for which no frame goes.
 */
bool is_derived(int directory);

#endif
