/* Superposition, deviations and shapes of structures; centres of groups of atoms, and periods of the box. */
#pragma once

#include "box/lattice.h"

#include <stddef.h>
#include <stdint.h>

/* --- fit.c: superposition of structures, root-mean-square deviations, and the shape of a group -------------------- */

/* The deviation of n > 0 positions from a reference about their centres, the least of any rotation if `superpose`. */
double fit_rmsd(const float *positions, const float *reference, const double *weights, size_t n, int superpose);

/* The greatest overlap that a rotation gives, by the inner products (3, 3) and half the sum of both's squares. */
double fit_overlap(const double inner[9], double guess);

/* The rotation (3, 3) and the shift by which positions lie over the reference: rotation times position plus shift. */
void fit_rotation(const float *positions, const float *reference, const double *weights, size_t n, double rotation[9],
                  double shift[3]);

/* Positions (n, 3) turned by a rotation (3, 3), NULL for none, and moved; `to` may be `positions`. */
void fit_move(const float *positions, size_t n, const double *rotation, const double shift[3], float *to);

/* The gyration tensor (3, 3) of n > 0 positions; weights (n,) have a positive sum, NULL: equal ones. */
void shape_gyration(const float *positions, const double *weights, size_t n, double tensor[9]);

/* --- deviations.c: root-mean-square deviations of many structures from many --------------------------------------- */

/* Structures (count, n, 3) of n > 0 atoms. */
struct structures {
    const float *positions;
    size_t count;
};

/* What is asked of two structures. */
struct deviation {
    size_t n;              /* atoms */
    const double *weights; /* (n,), with a positive sum; NULL stands for equal ones */
    int superpose;         /* whether they are laid over one another first */
    double cutoff;         /* for bits */
};

/* The deviation of each of `a` from each of `b`, which is `a` where it has no positions; or, unless `bits` is NULL,
 * whether it is within the cutoff: bits (a.count, (b.count + 7) / 8), lowest first, that are 0 before. -1: there is no
 * memory. */
int deviations_find(struct structures a, struct structures b, const struct deviation *query, double *deviations,
                    uint8_t *bits);

/* --- fluctuation.c: how far the atoms of many structures are from fixed positions, added up without error --------- */

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

/* --- groups.c: centres of groups of atoms; atoms and groups moved by whole periods of the box --------------------- */

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
