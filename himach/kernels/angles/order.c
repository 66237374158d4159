#include "angles/order.h"

#include "clones.h"

#include <math.h>

enum { BLOCK = 256, LOST = INT32_MIN };

struct vectors {
    double x[BLOCK], y[BLOCK], z[BLOCK];
};

/* The order of each vector, in 2^-30; LOST where it has no direction. */
CLONES static void find_order(const struct vectors *v, size_t n, const double normal[3], int32_t *order) {
    const double nx = normal[0], ny = normal[1], nz = normal[2];
    const double square_of_normal = nx * nx + ny * ny + nz * nz;
    for (size_t i = 0; i < n; i++) {
        const double x = v->x[i], y = v->y[i], z = v->z[i];
        const double along = x * nx + y * ny + z * nz;
        const double squares = (x * x + y * y + z * z) * square_of_normal;
        const int points = squares > 0 && squares < INFINITY;
        const double square_of_cosine = points ? along * along / squares : 0.0;
        const int32_t units = (int32_t)(1.5 * square_of_cosine * ORDER_ONE + 0.5) - (int32_t)(ORDER_ONE / 2);
        order[i] = points ? units : LOST;
    }
}

size_t order_sums(const struct lattice *lattice, const float *positions, const int64_t *pairs, size_t n_pairs,
                  const int64_t *kinds, const double normal[3], int64_t *sums) {
    struct vectors v;
    int32_t order[BLOCK];
    for (size_t first = 0; first < n_pairs; first += BLOCK) {
        const size_t n = n_pairs - first < BLOCK ? n_pairs - first : BLOCK;
        for (size_t i = 0; i < n; i++) {
            const float *from = &positions[3 * (size_t)pairs[2 * (first + i)]];
            const float *to = &positions[3 * (size_t)pairs[2 * (first + i) + 1]];
            v.x[i] = (double)to[0] - from[0];
            v.y[i] = (double)to[1] - from[1];
            v.z[i] = (double)to[2] - from[2];
        }
        if (lattice->kind != LATTICE_NONE) {
            lattice_reduce_all(lattice, v.x, v.y, v.z, n);
        }
        find_order(&v, n, normal, order);
        for (size_t i = 0; i < n; i++) {
            if (order[i] == LOST) {
                return first + i;
            }
            sums[kinds == NULL ? 0 : (size_t)kinds[first + i]] += order[i];
        }
    }
    return n_pairs;
}
