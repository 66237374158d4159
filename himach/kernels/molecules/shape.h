/* The shape of a group of atoms. */
#ifndef HIMACH_KERNELS_SHAPE_H
#define HIMACH_KERNELS_SHAPE_H

#include <stddef.h>

/* The tensor (3, 3) of gyration of positions (n, 3), n > 0: the mean product of two coordinates about the centre.
 * Weights (n,) have a positive sum; NULL stands for equal ones. */
void shape_gyration(const float *positions, const double *weights, size_t n, double tensor[9]);

#endif
