/* What lies in a store, by its files alone, and deleting whole segments of it. */
#ifndef BODHI_EVICTION_H
#define BODHI_EVICTION_H

#include "bodhi.h"
#include "store/segment.h"

/* As bodhi_survey(), of the store whose directory is open as `store`. */
int survey_store(int store, bodhi_usage *usage, bodhi_stored_segment **segments, size_t *n);

/* Delete the files of a segment in `directory`, of which key, kind and names count. A segment without a file leaves an
 * index that is nothing. Errors: NOT_FOUND, BUSY, VERSION, SYSTEM. */
int evict_segment(int directory, const segment *s);

#endif
