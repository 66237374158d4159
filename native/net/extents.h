/* Bytes of segments that lie on another machine, many extents at once. */
#ifndef BODHI_EXTENTS_H
#define BODHI_EXTENTS_H

#include "net/link.h"
#include "read/locator.h"

/* Fill the list over a link, which after an error is of no more use. Errors: as link_answer. */
BODHI_CHECKED int extents_fetch(wire_link *link, int64_t timeout_ms, const segment_key *segments, const uint8_t *kinds,
                                fetched *list, size_t n);

#endif
