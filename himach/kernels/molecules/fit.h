/* Root-mean-square deviations. */
#ifndef HIMACH_KERNELS_FIT_H
#define HIMACH_KERNELS_FIT_H

#include <stddef.h>

/* The deviation of positions (n, 3) from a reference (n, 3), n > 0, about their centres; after the rotation that makes
 * it least if `superpose`. Weights (n,) have a positive sum; NULL stands for equal ones. */
double fit_rmsd(const float *positions, const float *reference, const double *weights, size_t n, int superpose);

#endif
