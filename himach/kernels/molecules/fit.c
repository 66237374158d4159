/* Superposition by the characteristic polynomial of quaternions: D. L. Theobald, Acta Cryst. A 61, 478 (2005).
 *
 * The least deviation after a rotation follows from the largest eigenvalue of a traceless symmetric 4 by 4 matrix of
 * the structures' inner products. Newton's method finds it from above, where it is alone. */
#include "molecules/fit.h"

#include "clones.h"

#include <math.h>

#define ITERATIONS 50
#define PRECISION  1e-14
#define ALONE      1e-2 /* least slope of the polynomial at its root, relative to that of the cube */
#define SWEEPS     8

enum { QUAD = 4 }; /* atoms at a time: four partial sums of everything, whatever the width of vectors */

typedef double quad __attribute__((vector_size(8 * QUAD)));

/* Four atoms: their coordinates by axis, and their weights. */
struct atoms {
    quad x, y, z, weight;
};

/* Atoms i to i + 3 of n, about a centre; those beyond the last have no weight. */
INLINE struct atoms take(const float *positions, const double *weights, size_t i, size_t n, const double centre[3]) {
    const float *p = &positions[3 * i];
    float some[3 * QUAD] = {0};
    struct atoms a = {.weight = {1, 1, 1, 1}};
    if (n - i < QUAD) {
        memcpy(some, p, 3 * (n - i) * sizeof *p);
        p = some;
        a.weight = (quad){1, n - i > 1, n - i > 2, 0};
    }
    if (weights != NULL) {
        memcpy(&a.weight, &weights[i], (n - i < QUAD ? n - i : QUAD) * sizeof *weights);
    }
    a.x = (quad){p[0], p[3], p[6], p[9]} - centre[0];
    a.y = (quad){p[1], p[4], p[7], p[10]} - centre[1];
    a.z = (quad){p[2], p[5], p[8], p[11]} - centre[2];
    return a;
}

/* By its address, because clang refuses vectors as arguments where caller and callee may have other registers. */
INLINE double total(const quad *sums) {
    return ((*sums)[0] + (*sums)[1]) + ((*sums)[2] + (*sums)[3]);
}

CLONES static void find_centre(const float *positions, const double *weights, size_t n, double centre[3]) {
    const double origin[3] = {0};
    quad x = {0}, y = {0}, z = {0}, weight = {0};
    for (size_t i = 0; i < n; i += QUAD) {
        const struct atoms a = take(positions, weights, i, n, origin);
        x += a.weight * a.x;
        y += a.weight * a.y;
        z += a.weight * a.z;
        weight += a.weight;
    }
    centre[0] = total(&x) / total(&weight);
    centre[1] = total(&y) / total(&weight);
    centre[2] = total(&z) / total(&weight);
}

struct products {
    double inner[3][3]; /* sum of weight times position times reference */
    double squares;     /* sum of weight times the squares of both */
    double weight;
};

CLONES static struct products multiply(const float *positions, const float *reference, const double *weights, size_t n,
                                       const double centre[3], const double reference_centre[3]) {
    quad xu = {0}, xv = {0}, xw = {0}, yu = {0}, yv = {0}, yw = {0}, zu = {0}, zv = {0}, zw = {0};
    quad squares = {0}, weight = {0};
    for (size_t i = 0; i < n; i += QUAD) {
        const struct atoms a = take(positions, weights, i, n, centre);
        const struct atoms b = take(reference, weights, i, n, reference_centre);
        const quad x = a.weight * a.x, y = a.weight * a.y, z = a.weight * a.z;
        xu += x * b.x;
        xv += x * b.y;
        xw += x * b.z;
        yu += y * b.x;
        yv += y * b.y;
        yw += y * b.z;
        zu += z * b.x;
        zv += z * b.y;
        zw += z * b.z;
        squares += x * a.x + y * a.y + z * a.z + a.weight * (b.x * b.x + b.y * b.y + b.z * b.z);
        weight += a.weight;
    }
    return (struct products){
        .inner = {{total(&xu), total(&xv), total(&xw)},
                  {total(&yu), total(&yv), total(&yw)},
                  {total(&zu), total(&zv), total(&zw)}},
        .squares = total(&squares),
        .weight = total(&weight),
    };
}

static double determinant3(const double m[3][3]) {
    return m[0][0] * (m[1][1] * m[2][2] - m[1][2] * m[2][1]) - m[0][1] * (m[1][0] * m[2][2] - m[1][2] * m[2][0]) +
           m[0][2] * (m[1][0] * m[2][1] - m[1][1] * m[2][0]);
}

/* The determinant of a symmetric matrix from the minors of its upper and lower two rows. */
static double determinant4(const double m[4][4]) {
    double upper[4][4], lower[4][4];
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 4; j++) {
            upper[i][j] = m[0][i] * m[1][j] - m[0][j] * m[1][i];
            lower[i][j] = m[2][i] * m[3][j] - m[2][j] * m[3][i];
        }
    }
    return upper[0][1] * lower[2][3] - upper[0][2] * lower[1][3] + upper[0][3] * lower[1][2] +
           upper[1][2] * lower[0][3] - upper[1][3] * lower[0][2] + upper[2][3] * lower[0][1];
}

/* Rotate the plane (i, j) so that m[i][j] vanishes. */
static void rotate(double m[4][4], int i, int j) {
    if (m[i][j] == 0) {
        return;
    }
    const double half = (m[j][j] - m[i][i]) / (2 * m[i][j]);
    const double tangent = copysign(1, half) / (fabs(half) + sqrt(half * half + 1));
    const double cosine = 1 / sqrt(tangent * tangent + 1), sine = tangent * cosine;
    for (int k = 0; k < 4; k++) {
        const double p = m[i][k], q = m[j][k];
        m[i][k] = cosine * p - sine * q;
        m[j][k] = sine * p + cosine * q;
    }
    for (int k = 0; k < 4; k++) {
        const double p = m[k][i], q = m[k][j];
        m[k][i] = cosine * p - sine * q;
        m[k][j] = sine * p + cosine * q;
    }
}

/* Jacobi's method, for eigenvalues that are not alone. */
static double largest_by_rotations(double m[4][4]) {
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        for (int i = 0; i < 3; i++) {
            for (int j = i + 1; j < 4; j++) {
                rotate(m, i, j);
            }
        }
    }
    return fmax(fmax(m[0][0], m[1][1]), fmax(m[2][2], m[3][3]));
}

static double largest_eigenvalue(const double s[3][3], double guess) {
    double key[4][4] = {
        {s[0][0] + s[1][1] + s[2][2], s[1][2] - s[2][1], s[2][0] - s[0][2], s[0][1] - s[1][0]},
        {s[1][2] - s[2][1], s[0][0] - s[1][1] - s[2][2], s[0][1] + s[1][0], s[2][0] + s[0][2]},
        {s[2][0] - s[0][2], s[0][1] + s[1][0], s[1][1] - s[0][0] - s[2][2], s[1][2] + s[2][1]},
        {s[0][1] - s[1][0], s[2][0] + s[0][2], s[1][2] + s[2][1], s[2][2] - s[0][0] - s[1][1]},
    };
    double squares = 0;
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < 3; j++) {
            squares += s[i][j] * s[i][j];
        }
    }
    const double c2 = -2 * squares, c1 = -8 * determinant3(s), c0 = determinant4(key);
    double x = guess;
    for (int i = 0; i < ITERATIONS; i++) {
        const double b = (x * x + c2) * x, a = b + c1;
        const double slope = 2 * x * x * x + b + a;
        if (!(slope > ALONE * x * x * x)) {
            break; /* close to another eigenvalue, as of atoms on a line */
        }
        const double change = (a * x + c0) / slope;
        x -= change;
        if (fabs(change) < PRECISION * x) {
            return x;
        }
    }
    return largest_by_rotations(key);
}

double fit_rmsd(const float *positions, const float *reference, const double *weights, size_t n, int superpose) {
    double centre[3], reference_centre[3];
    find_centre(positions, weights, n, centre);
    find_centre(reference, weights, n, reference_centre);
    const struct products products = multiply(positions, reference, weights, n, centre, reference_centre);
    const double overlap = superpose ? largest_eigenvalue(products.inner, products.squares / 2)
                                     : products.inner[0][0] + products.inner[1][1] + products.inner[2][2];
    return sqrt(fabs(products.squares - 2 * overlap) / products.weight);
}
