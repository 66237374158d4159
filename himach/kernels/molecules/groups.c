/* Centres of groups of atoms; groups moved into the box as wholes, and made whole by their bonds. */
#include "molecules/molecules.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 256 };

void groups_centers(const float *positions, size_t n, const int64_t *groups, const double *weights, size_t n_groups,
                    double *centers, double *totals) {
    memset(centers, 0, 3 * n_groups * sizeof *centers);
    memset(totals, 0, n_groups * sizeof *totals);
    for (size_t i = 0; i < n;) {
        const size_t group = groups == NULL ? 0 : (size_t)groups[i];
        double *center = &centers[3 * group], sums[3] = {center[0], center[1], center[2]}, sum = totals[group];
        do { /* atoms of a group mostly follow one another */
            const double weight = weights == NULL ? 1.0 : weights[i];
            sum += weight;
            for (size_t axis = 0; axis < 3; axis++) {
                sums[axis] += weight * positions[3 * i + axis];
            }
            i++;
        } while (i < n && (groups == NULL || (size_t)groups[i] == group));
        memcpy(center, sums, sizeof sums);
        totals[group] = sum;
    }
    for (size_t k = 0; k < 3 * n_groups; k++) {
        centers[k] /= totals[k / 3];
    }
}

/* Make of centres the shifts that bring them into the box. */
static void to_shifts(const struct lattice *lattice, double *centers, size_t n_groups) {
    float places[3 * BLOCK], folded[3 * BLOCK];
    for (size_t first = 0; first < n_groups; first += BLOCK) {
        const size_t count = n_groups - first < BLOCK ? n_groups - first : BLOCK;
        double *here = &centers[3 * first];
        for (size_t k = 0; k < 3 * count; k++) {
            places[k] = (float)here[k];
        }
        lattice_fold_all(lattice, places, count, folded);
        for (size_t k = 0; k < 3 * count; k++) {
            here[k] = (double)folded[k] - places[k];
        }
    }
}

void groups_wrap(const struct lattice *lattice, const float *positions, size_t n, const int64_t *groups,
                 double *centers, size_t n_groups, float *to) {
    to_shifts(lattice, centers, n_groups);
    for (size_t i = 0; i < n; i++) {
        const double *shift = &centers[3 * (size_t)groups[i]];
        for (size_t axis = 0; axis < 3; axis++) {
            to[3 * i + axis] = (float)(positions[3 * i + axis] + shift[axis]);
        }
    }
}

/* Most atoms are near the ones that they are bonded to, which takes no division to tell. */
void groups_unwrap(const struct lattice *lattice, float *positions, const int64_t *bonds, size_t n_bonds) {
    const float(*v)[3] = lattice->vector;
    const double half[3] = {(double)v[0][0] / 2, (double)v[1][1] / 2, (double)v[2][2] / 2};
    const int tilted = lattice->kind == LATTICE_TILTED;
    for (size_t bond = 0; bond < n_bonds; bond++) {
        const float *from = &positions[3 * (size_t)bonds[2 * bond]];
        float *to = &positions[3 * (size_t)bonds[2 * bond + 1]];
        double apart[3] = {(double)to[0] - from[0], (double)to[1] - from[1], (double)to[2] - from[2]};
        if (tilted) {
            lattice_shorten(lattice, apart);
        } else if ((fabs(apart[0]) <= half[0]) & (fabs(apart[1]) <= half[1]) & (fabs(apart[2]) <= half[2])) {
            continue;
        } else {
            lattice_reduce(lattice, apart);
        }
        for (int axis = 0; axis < 3; axis++) {
            to[axis] = (float)(from[axis] + apart[axis]);
        }
    }
}
