#include "molecules/groups.h"

#include <math.h>
#include <string.h>

void groups_centers(const float *positions, size_t n, const int64_t *groups, const double *weights, size_t n_groups,
                    double *centers, double *totals) {
    memset(centers, 0, 3 * n_groups * sizeof *centers);
    memset(totals, 0, n_groups * sizeof *totals);
    for (size_t i = 0; i < n; i++) {
        const size_t group = groups == NULL ? 0 : (size_t)groups[i];
        const double weight = weights == NULL ? 1.0 : weights[i];
        totals[group] += weight;
        for (size_t axis = 0; axis < 3; axis++) {
            centers[3 * group + axis] += weight * positions[3 * i + axis];
        }
    }
    for (size_t k = 0; k < 3 * n_groups; k++) {
        centers[k] /= totals[k / 3];
    }
}

void groups_wrap(const struct lattice *lattice, float *positions, size_t n, const int64_t *groups,
                 const double *centers) {
    for (size_t i = 0; i < n; i++) {
        const double *center = &centers[3 * (size_t)groups[i]];
        float target[3] = {(float)center[0], (float)center[1], (float)center[2]};
        lattice_fold(lattice, target);
        for (size_t axis = 0; axis < 3; axis++) {
            positions[3 * i + axis] = (float)(positions[3 * i + axis] + (target[axis] - center[axis]));
        }
    }
}

/* Take off the whole periods of a vector, axis by axis. What is left is the shortest image, if that is shorter than
 * half the box's least width. */
static void reduce(const struct lattice *lattice, double v[3]) {
    for (int axis = 2; axis >= 0; axis--) {
        const double periods = rint(v[axis] / lattice->vector[axis][axis]);
        for (int i = 0; i <= axis; i++) {
            v[i] -= periods * lattice->vector[axis][i];
        }
    }
}

void groups_unwrap(const struct lattice *lattice, float *positions, const int64_t *bonds, size_t n_bonds) {
    for (size_t bond = 0; bond < n_bonds; bond++) {
        const float *from = &positions[3 * (size_t)bonds[2 * bond]];
        float *to = &positions[3 * (size_t)bonds[2 * bond + 1]];
        double v[3] = {(double)to[0] - from[0], (double)to[1] - from[1], (double)to[2] - from[2]};
        reduce(lattice, v);
        for (int axis = 0; axis < 3; axis++) {
            to[axis] = (float)(from[axis] + v[axis]);
        }
    }
}
