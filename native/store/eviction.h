/* What lies in a store, by its files alone, and deleting whole segments of it. */
#ifndef BODHI_EVICTION_H
#define BODHI_EVICTION_H

#include <stddef.h>

#include "bodhi.h"

/* As bodhi_survey(), of the store whose directory is open as `store`. */
int survey_store(int store, bodhi_usage *usage, bodhi_stored_segment **segments, size_t *n);

#endif
