/* Chains of a protein that the sides of the box cut, made whole. */
#pragma once

#include "box/lattice.h"
#include "proteins/bonds.h"

/* Whether no bond of a chain is longer than bonds are. */
int are_whole(const struct backbone *backbone);

/* Memory that make_whole needs for n residues. */
size_t whole_scratch(size_t n);

/* Write the positions of the backbone to `positions` (n, 4, 3), with each chain whole, where its first atom is.
 * `scratch` is of whole_scratch(n) bytes. */
void make_whole(const struct backbone *backbone, const struct lattice *lattice, void *scratch, float *positions);
