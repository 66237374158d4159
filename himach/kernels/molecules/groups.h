/* Centres of groups of atoms; atoms and groups moved by whole periods of the box. */
#pragma once

#include "box/lattice.h"

#include <stdint.h>

/* The centres (n_groups, 3) of positions (n, 3), whose groups (n,) are less than n_groups; NULL: all are one. Weights
 * (n,), or NULL for equal ones. `totals` (n_groups,) gets the sum of each group's weights. A group without any has NaN.
 */
void groups_centers(const float *positions, size_t n, const int64_t *groups, const double *weights, size_t n_groups,
                    double *centers, double *totals);

/* Move positions so that each group's centre is in the box; centres become shifts. `to` may be `positions`. */
void groups_wrap(const struct lattice *lattice, const float *positions, size_t n, const int64_t *groups,
                 double *centers, size_t n_groups, float *to);

/* Move positions in place: the second atom of each bond (n_bonds, 2), one after another, next to the first. */
void groups_unwrap(const struct lattice *lattice, float *positions, const int64_t *bonds, size_t n_bonds);
