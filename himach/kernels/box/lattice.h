/* The periodic lattice of a frame's box, and positions folded into the box.
 *
 * Every rounding is that of MDAnalysis.lib.distances (single-precision positions and box vectors), so that what is
 * decided by these numbers is decided as MDAnalysis decides it. */
#pragma once

#include <stddef.h>

enum lattice_kind {
    LATTICE_NONE,   /* no box */
    LATTICE_RIGHT,  /* all angles are right */
    LATTICE_TILTED, /* any other box */
};

struct lattice {
    enum lattice_kind kind;
    float vector[3][3]; /* rows a, b, c in Å, zero above the diagonal */
    double width[3];    /* distance in Å between the faces that a, b and c connect */
    float grid_cutoff;  /* the largest that MDAnalysis's grid takes, Å */
};

/* Set the lattice of a box (Å, degrees), or of none for NULL. -1: lengths are not positive, or angles do not fit. */
int lattice_set(struct lattice *lattice, const float *box);

/* Fold one position into the box, as apply_PBC() does; without a box it stays. */
void lattice_fold(const struct lattice *lattice, float position[3]);

/* The same for positions (n, 3); `to` may be `from`. */
void lattice_fold_all(const struct lattice *lattice, const float *from, size_t n, float *to);

/* Take off whole periods, axis by axis: the shortest image, if that is shorter than half the box's least width. */
void lattice_reduce(const struct lattice *lattice, double vector[3]);

/* The same for n vectors in a box, an array an axis. */
void lattice_reduce_all(const struct lattice *lattice, double *x, double *y, double *z, size_t n);

/* Make of a vector its shortest image, or the shortest of those next to what lattice_reduce() gives: in the boxes of
 * simulations they are one. */
void lattice_shorten(const struct lattice *lattice, double vector[3]);
