/* Solvent-accessible area by points on spheres (Shrake and Rupley): `sasa` of himach.kernels. */
#pragma once

#include "box/metric.h"
#include "search/scratch.h"
#include "surface/caps.h"
#include "surface/spiral.h"

#include <stdint.h>

enum {
    SASA_OK = 0,
    SASA_NO_MEMORY = -1,
    SASA_NOT_FINITE = -2, /* a coordinate is NaN or infinite */
    SASA_NO_CELLS = -3,   /* the box is narrower than two spheres reach, or coordinates are far out */
};

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
 * SASA_OK or another status. */
int sasa_count(struct scratch *scratch, const struct lattice *lattice, struct group atoms, const double *radii,
               const uint8_t *counted, const struct sphere *sphere, int64_t *counts);
