/* Searches by distance: `within`, `neighbors` and `histogram` of himach.kernels. They return a status.
 *
 * All decide as MDAnalysis's capped_distance() does, to the last bit: single precision finds what is surely within the
 * cutoff and what is surely beyond, and a metric decides about the few pairs between. */
#ifndef HIMACH_KERNELS_SEARCH_H
#define HIMACH_KERNELS_SEARCH_H

#include "box/metric.h"
#include "search/scratch.h"
#include "search/status.h"

#include <stdint.h>

/* Find which atoms of `group` are within the cutoff of any of `others`: `*found`, ascending, in the scratch. */
int search_within(struct scratch *scratch, const struct lattice *lattice, struct group group, struct group others,
                  double cutoff, const int64_t **found, size_t *n_found);

struct found_pair {
    uint32_t i, j;
    double square; /* Å² */
};

/* Find the pairs of two groups within the cutoff, or those in `a` if `b` is NULL, each once and i < j: `*found`, in the
 * order of i and j, in the scratch. */
int search_neighbors(struct scratch *scratch, const struct lattice *lattice, struct group a, const struct group *b,
                     double cutoff, const struct found_pair **found, size_t *n_found);

/* Write them into arrays: indices (n, 2), and distances (n,) in Å unless NULL. */
void search_write(const struct found_pair *found, size_t n, int64_t *indices, double *distances);

/* Add to `counts` (bins) how many pairs within edges[bins] have distances in [edges[i], edges[i + 1]), the last one
 * included. Edges are from 0, evenly apart. Each pair in one group counts once. */
int search_histogram(struct scratch *scratch, const struct lattice *lattice, struct group a, const struct group *b,
                     const double *edges, size_t bins, int64_t *counts);

#endif
