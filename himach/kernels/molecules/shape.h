/* The shape of a group of atoms. */
#ifndef HIMACH_KERNELS_SHAPE_H
#define HIMACH_KERNELS_SHAPE_H

#include <stddef.h>

/* The gyration tensor (3, 3) of n > 0 positions; weights (n,) have a positive sum, NULL: equal ones. */
void shape_gyration(const float *positions, const double *weights, size_t n, double tensor[9]);

#endif
