#include "angles/dihedrals.h"

#include "clones.h"

#include <math.h>

enum { BLOCK = 64, BONDS = 3 };

/* Vectors along the bonds of some dihedrals, one array an axis of a bond. */
struct bonds {
    double vector[BONDS][3][BLOCK];
};

#define DEGREES        (180 / M_PI)
#define TAN_22_DEGREES 0.41421356237309503 /* of 22.5 */

/* The arc tangent of u, up to this tangent, is u + u³ times a polynomial of u²: the best one of its degree (Chebyshev),
 * which is off by 1.5e-16. The C library's has other last bits on other processors. */
#define COEFFICIENTS 10
static const double COEFFICIENT[COEFFICIENTS] = {
    0x1.74be9ea57def2p-6,  -0x1.6f4656da14d12p-5, 0x1.d5eb9aa01dd64p-5,  -0x1.105e40d46ca9bp-4, 0x1.3b068efbf3910p-4,
    -0x1.745c7f841cab0p-4, 0x1.c71c6dd1c9feep-4,  -0x1.2492491dd4b23p-3, 0x1.9999999990a9fp-3,  -0x1.5555555555546p-2,
};

static void take(struct bonds *bonds, const float *positions, const int64_t *places, size_t n) {
    for (size_t i = 0; i < n; i++, places += BONDS + 1) {
        for (int bond = 0; bond < BONDS; bond++) {
            const float *from = &positions[3 * places[bond]], *to = &positions[3 * places[bond + 1]];
            for (int axis = 0; axis < 3; axis++) {
                bonds->vector[bond][axis][i] = (double)to[axis] - from[axis];
            }
        }
    }
}

static void shorten(struct bonds *bonds, const struct lattice *lattice, size_t n) {
    for (int bond = 0; bond < BONDS; bond++) {
        double(*x)[BLOCK] = bonds->vector[bond];
        lattice_reduce_all(lattice, x[0], x[1], x[2], n);
        for (size_t i = 0; lattice->kind == LATTICE_TILTED && i < n; i++) {
            double v[3] = {x[0][i], x[1][i], x[2][i]};
            lattice_shorten(lattice, v);
            for (int axis = 0; axis < 3; axis++) {
                x[axis][i] = v[axis];
            }
        }
    }
}

/* The angle in degrees, from 0 to 180, whose cosine is to its sine as x to y. No branches, for vectors. */
INLINE double angle(double x, double y) {
    const double along = fabs(x), across = fabs(y);
    const double large = along > across ? along : across, small = along > across ? across : along;
    const int far = small > TAN_22_DEGREES * large;
    const double u = (far ? small - large : small) / (far ? small + large : large), square = u * u;
    double sum = COEFFICIENT[0];
    for (int k = 1; k < COEFFICIENTS; k++) {
        sum = sum * square + COEFFICIENT[k];
    }
    double degrees = (u + u * square * sum) * DEGREES + (far ? 45 : 0);
    degrees = across > along ? 90 - degrees : degrees;
    return x < 0 ? 180 - degrees : degrees;
}

CLONES static void measure(const struct bonds *bonds, double *degrees) {
    const double(*a)[BLOCK] = bonds->vector[0], (*b)[BLOCK] = bonds->vector[1], (*c)[BLOCK] = bonds->vector[2];
    for (int i = 0; i < BLOCK; i++) {
        const double ab[3] = {a[1][i] * b[2][i] - a[2][i] * b[1][i], a[2][i] * b[0][i] - a[0][i] * b[2][i],
                              a[0][i] * b[1][i] - a[1][i] * b[0][i]};
        const double bc[3] = {b[1][i] * c[2][i] - b[2][i] * c[1][i], b[2][i] * c[0][i] - b[0][i] * c[2][i],
                              b[0][i] * c[1][i] - b[1][i] * c[0][i]};
        const double length = sqrt(b[0][i] * b[0][i] + b[1][i] * b[1][i] + b[2][i] * b[2][i]);
        const double x = ab[0] * bc[0] + ab[1] * bc[1] + ab[2] * bc[2];
        const double y = length * (a[0][i] * bc[0] + a[1][i] * bc[1] + a[2][i] * bc[2]);
        const double size = angle(x, y);
        degrees[i] = y < 0 && size < 180 ? -size : size;
    }
}

void dihedrals_degrees(const struct lattice *lattice, const float *positions, const int64_t *places, size_t n,
                       double *degrees) {
    struct bonds bonds = {0};
    double angles[BLOCK];
    for (size_t first = 0; first < n; first += BLOCK) {
        const size_t count = n - first < BLOCK ? n - first : BLOCK;
        take(&bonds, positions, &places[(BONDS + 1) * first], count);
        if (lattice->kind != LATTICE_NONE) {
            shorten(&bonds, lattice, count);
        }
        measure(&bonds, angles);
        memcpy(&degrees[first], angles, count * sizeof *degrees);
    }
}
