/* Order of bonds along a direction: sums of (3 cos² - 1) / 2 of the angle between them. */
#pragma once

#include "box/lattice.h"

#include <stdint.h>

/* What sums are counted in: 1 is 2^30, so that they are exact and do not depend on who adds up what. */
#define ORDER_ONE 1073741824.0

/* Add the order of each pair (n_pairs, 2), from its first atom to the nearest image of its second, to the sum of its
 * kind (n_pairs,), or to the only one for NULL. The direction need have no length of 1. Returns the number of pairs, or
 * that of the first one that points nowhere: its atoms are at one place, or are not finite. */
size_t order_sums(const struct lattice *lattice, const float *positions, const int64_t *pairs, size_t n_pairs,
                  const int64_t *kinds, const double normal[3], int64_t *sums);
