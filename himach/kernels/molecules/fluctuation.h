/* How far the atoms of many structures are from fixed positions, added up without error. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* What is compared: structures of n atoms with fixed positions (n, 3). Each is first laid over a reference (n_fitted,
 * 3), unless that is NULL, by the atoms at some places (n_fitted,), NULL for all, with weights (n_fitted,) or NULL. */
struct fluctuation {
    size_t n;
    const double *fixed;
    const float *reference;
    const int64_t *fitted;
    const double *weights;
    size_t n_fitted;
};

/* Add to sums (5, n) the deviations of structures (count, n, 3) along three axes, in 2^-20 of the unit of length, and
 * the upper and lower 32 bits of their squares. Returns 0; 1 if memory is short; 2 if an atom of structure `*at`
 * deviates by 1,024 units of length or more along an axis, or its position is no number. */
int fluctuation_add(const struct fluctuation *query, const float *structures, size_t count, int64_t *sums, size_t *at);
