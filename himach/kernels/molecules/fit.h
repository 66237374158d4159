/* Superposition of structures, root-mean-square deviations, and the shape of a group of atoms. */
#pragma once

#include <stddef.h>

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
