/* Searches by distance: `within`, `neighbors` and `histogram` of himach.kernels.
 *
 * All decide as MDAnalysis's capped_distance() does, to the last bit: single precision finds what is surely within the
 * cutoff and what is surely beyond, and a metric decides about the few pairs between. */
#ifndef HIMACH_KERNELS_SEARCH_H
#define HIMACH_KERNELS_SEARCH_H

#include "metric.h"
#include "scratch.h"

#include <stdint.h>

enum {
    SEARCH_OK = 0,
    SEARCH_NO_MEMORY = -1,
    SEARCH_NOT_FINITE = -2, /* a coordinate is NaN or infinite */
};

/* Find which atoms of `group` are within the cutoff of any of `others`: `*found`, ascending, in the scratch. */
int search_within(struct scratch *scratch, const struct lattice *lattice, struct group group, struct group others,
                  double cutoff, const int64_t **found, size_t *n_found);

#endif
