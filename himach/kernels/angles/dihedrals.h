/* Dihedral angles. */
#pragma once

#include "box/lattice.h"

#include <stdint.h>

/* The dihedral angles (n,) in degrees, above -180 and up to 180, of places (n, 4) among positions, by the nearest
 * images of neighbours. The sign is that of IUPAC. It is NaN where three of the four are on a line. */
void dihedrals_degrees(const struct lattice *lattice, const float *positions, const int64_t *places, size_t n,
                       double *degrees);
