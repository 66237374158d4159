#include "angles/order.h"

#include "clones.h"

#include <math.h>

enum { BLOCK = 256 };

struct vectors {
    double x[BLOCK], y[BLOCK], z[BLOCK];
};

/* The nearest integer, also where the processor has no instruction for it: beyond 2^52 doubles have no fractions. */
#define TO_INTEGER 6755399441055744.0 /* 3 * 2^51 */

INLINE double nearest(double number) {
    return (number + TO_INTEGER) - TO_INTEGER;
}

/* Take off the whole periods, axis by axis: the shortest image of a bond, shorter than half the box's least width. */
CLONES static void take_off_periods(const struct lattice *lattice, struct vectors *v, size_t n) {
    const float(*box)[3] = lattice->vector;
    const double ax = box[0][0], bx = box[1][0], by = box[1][1], cx = box[2][0], cy = box[2][1], cz = box[2][2];
    const double a = 1.0 / ax, b = 1.0 / by, c = 1.0 / cz;
    for (size_t i = 0; i < n; i++) {
        double x = v->x[i], y = v->y[i], z = v->z[i];
        const double along_c = nearest(z * c);
        x -= along_c * cx;
        y -= along_c * cy;
        z -= along_c * cz;
        const double along_b = nearest(y * b);
        x -= along_b * bx;
        y -= along_b * by;
        x -= nearest(x * a) * ax;
        v->x[i] = x;
        v->y[i] = y;
        v->z[i] = z;
    }
}

/* The order of each vector, in 2^-30; returns whether all have a direction. */
CLONES static int find_order(const struct vectors *v, size_t n, const double normal[3], int32_t *order) {
    const double nx = normal[0], ny = normal[1], nz = normal[2];
    const double square_of_normal = nx * nx + ny * ny + nz * nz;
    int32_t lost = 0;
    for (size_t i = 0; i < n; i++) {
        const double x = v->x[i], y = v->y[i], z = v->z[i];
        const double along = x * nx + y * ny + z * nz;
        const double squares = (x * x + y * y + z * z) * square_of_normal;
        const int points = squares > 0 && squares < INFINITY;
        const double square_of_cosine = points ? along * along / squares : 0.0;
        lost |= !points;
        order[i] = (int32_t)(1.5 * square_of_cosine * ORDER_ONE + 0.5) - (int32_t)(ORDER_ONE / 2);
    }
    return !lost;
}

static size_t first_lost(const struct vectors *v, size_t n) {
    size_t i = 0;
    for (; i < n; i++) {
        const double squares = v->x[i] * v->x[i] + v->y[i] * v->y[i] + v->z[i] * v->z[i];
        if (!(squares > 0 && squares < INFINITY)) {
            break;
        }
    }
    return i;
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
            take_off_periods(lattice, &v, n);
        }
        if (!find_order(&v, n, normal, order)) {
            return first + first_lost(&v, n);
        }
        for (size_t i = 0; i < n; i++) {
            sums[kinds == NULL ? 0 : (size_t)kinds[first + i]] += order[i];
        }
    }
    return n_pairs;
}
