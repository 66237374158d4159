/* Solvent-accessible area by points on spheres (Shrake and Rupley): `sasa` of himach.kernels. */
#pragma once

#include "search/search.h"
#include "surface/caps.h"

#include <stdint.h>

/* The box is narrower than two spheres reach, or coordinates are far out. */
enum { SASA_NO_CELLS = -3 };

/* The points of a sphere, and the table of its caps. */
struct sphere {
    struct spiral spiral;
    struct caps caps;
};

/* Return a sphere of n points, or NULL if there is no memory. */
struct sphere *sphere_new(size_t n);
void sphere_free(struct sphere *sphere);

/* Count the points of each atom's sphere that lie in no other sphere: `counts` (n,). `radii` (n,) are those of spheres,
 * the probe's included, Å. Atoms whose `counted` (n,) is 0 bury others, and have no count; NULL: all are wanted.
 * Spheres are repeated by the lattice. A point is decided in double precision where single precision cannot. Returns
 * SASA_NO_CELLS or a status of a search. */
int sasa_count(struct scratch *scratch, const struct lattice *lattice, struct group atoms, const double *radii,
               const uint8_t *counted, const struct sphere *sphere, int64_t *counts);
