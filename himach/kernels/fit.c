/* Superposition by the characteristic polynomial of quaternions: D. L. Theobald, Acta Cryst. A 61, 478 (2005).
 *
 * The least deviation after a rotation follows from the largest eigenvalue of a traceless symmetric 4 by 4 matrix of
 * the structures' inner products. Newton's method finds it from above, where it is alone. */
#include "fit.h"

#include "clones.h"

#include <math.h>

#define ITERATIONS 50
#define PRECISION  1e-14
#define ALONE      1e-2 /* least slope of the polynomial at its root, relative to that of the cube */
#define SWEEPS     8

enum { PARTS = 4 }; /* partial sums, so that sums do not depend on the width of vectors */

CLONES static void find_centre(const float *positions, const double *weights, size_t n, double centre[3]) {
    double sums[3][PARTS] = {{0}}, all[PARTS] = {0};
    for (size_t i = 0; i < n; i += PARTS) {
        const size_t some = n - i < PARTS ? n - i : PARTS;
        for (size_t k = 0; k < some; k++) {
            const double weight = weights == NULL ? 1.0 : weights[i + k];
            all[k] += weight;
            for (size_t axis = 0; axis < 3; axis++) {
                sums[axis][k] += weight * positions[3 * (i + k) + axis];
            }
        }
    }
    const double total = (all[0] + all[1]) + (all[2] + all[3]);
    for (int axis = 0; axis < 3; axis++) {
        const double *s = sums[axis];
        centre[axis] = ((s[0] + s[1]) + (s[2] + s[3])) / total;
    }
}

struct products {
    double inner[3][3]; /* sum of weight times position times reference */
    double squares;     /* sum of weight times the squares of both */
    double weight;
};

enum { SUMS = 11 };

CLONES static struct products multiply(const float *positions, const float *reference, const double *weights, size_t n,
                                       const double centre[3], const double reference_centre[3]) {
    double sums[SUMS][PARTS] = {{0}};
    for (size_t i = 0; i < n; i += PARTS) {
        const size_t some = n - i < PARTS ? n - i : PARTS;
        for (size_t k = 0; k < some; k++) {
            const float *p = &positions[3 * (i + k)], *q = &reference[3 * (i + k)];
            const double x = p[0] - centre[0], y = p[1] - centre[1], z = p[2] - centre[2];
            const double u = q[0] - reference_centre[0], v = q[1] - reference_centre[1], w = q[2] - reference_centre[2];
            const double weight = weights == NULL ? 1.0 : weights[i + k];
            const double wx = weight * x, wy = weight * y, wz = weight * z;
            sums[0][k] += wx * u;
            sums[1][k] += wx * v;
            sums[2][k] += wx * w;
            sums[3][k] += wy * u;
            sums[4][k] += wy * v;
            sums[5][k] += wy * w;
            sums[6][k] += wz * u;
            sums[7][k] += wz * v;
            sums[8][k] += wz * w;
            sums[9][k] += wx * x + wy * y + wz * z + weight * (u * u + v * v + w * w);
            sums[10][k] += weight;
        }
    }
    double total[SUMS];
    for (int i = 0; i < SUMS; i++) {
        total[i] = (sums[i][0] + sums[i][1]) + (sums[i][2] + sums[i][3]);
    }
    struct products products = {.squares = total[9], .weight = total[10]};
    memcpy(products.inner, total, sizeof products.inner);
    return products;
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
