/* Superposition by the characteristic polynomial of quaternions: D. L. Theobald, Acta Cryst. A 61, 478 (2005).
 *
 * The least deviation after a rotation follows from the largest eigenvalue of a traceless symmetric 4 by 4 matrix of
 * the structures' inner products. Newton's method finds it from above, where it is alone. */
#include "molecules/molecules.h"

#include "molecules/overlap.h"

#include <math.h>

#define SWEEPS 8

typedef float single __attribute__((vector_size(4 * QUAD)));

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
    double inner[9]; /* sum of weight times position times reference */
    double squares;  /* sum of weight times the squares of both */
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
        .inner = {total(&xu), total(&xv), total(&xw), total(&yu), total(&yv), total(&yw), total(&zu), total(&zv),
                  total(&zw)},
        .squares = total(&squares),
        .weight = total(&weight),
    };
}

/* Rotate the plane (i, j) so that m[i][j] vanishes; the rows of `vectors` with it. */
static void rotate(double m[4][4], double vectors[4][4], int i, int j) {
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
        const double u = vectors[i][k], v = vectors[j][k];
        vectors[i][k] = cosine * u - sine * v;
        vectors[j][k] = sine * u + cosine * v;
    }
    for (int k = 0; k < 4; k++) {
        const double p = m[k][i], q = m[k][j];
        m[k][i] = cosine * p - sine * q;
        m[k][j] = sine * p + cosine * q;
    }
}

/* Jacobi's method: the largest eigenvalue, also where it is not alone, and its vector. */
static double largest_by_rotations(double m[4][4], double vector[4]) {
    double vectors[4][4] = {{1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 1}};
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        for (int i = 0; i < 3; i++) {
            for (int j = i + 1; j < 4; j++) {
                rotate(m, vectors, i, j);
            }
        }
    }
    int largest = 0;
    for (int i = 1; i < 4; i++) {
        largest = m[i][i] > m[largest][largest] ? i : largest;
    }
    memcpy(vector, vectors[largest], sizeof vectors[largest]);
    return m[largest][largest];
}

/* The same pair of structures in every lane. */
static void spread(const double s[9], quad inner[9]) {
    for (int i = 0; i < 9; i++) {
        inner[i] = (quad){s[i], s[i], s[i], s[i]};
    }
}

/* The matrix whose largest eigenvalue is the greatest overlap that a rotation gives, and its vector the quaternion. */
static void make_key(const quad inner[9], double key[4][4]) {
    quad keys[4][4];
    overlap_key(inner, keys);
    for (int i = 0; i < 16; i++) {
        key[i / 4][i % 4] = keys[i / 4][i % 4][0];
    }
}

CLONES double fit_overlap(const double s[9], double guess) {
    quad inner[9], root;
    spread(s, inner);
    const quad guesses = {guess, guess, guess, guess};
    if ((overlap_newton(inner, &guesses, &root) & 1) == 0) {
        return root[0];
    }
    double key[4][4], vector[4];
    make_key(inner, key);
    return largest_by_rotations(key, vector);
}

double fit_rmsd(const float *positions, const float *reference, const double *weights, size_t n, int superpose) {
    double centre[3], reference_centre[3];
    find_centre(positions, weights, n, centre);
    find_centre(reference, weights, n, reference_centre);
    const struct products products = multiply(positions, reference, weights, n, centre, reference_centre);
    const double overlap = superpose ? fit_overlap(products.inner, products.squares / 2)
                                     : products.inner[0] + products.inner[4] + products.inner[8];
    return sqrt(fabs(products.squares - 2 * overlap) / products.weight);
}

void fit_rotation(const float *positions, const float *reference, const double *weights, size_t n, double rotation[9],
                  double shift[3]) {
    double centre[3], reference_centre[3], key[4][4], q[4];
    find_centre(positions, weights, n, centre);
    find_centre(reference, weights, n, reference_centre);
    const struct products products = multiply(positions, reference, weights, n, centre, reference_centre);
    quad inner[9];
    spread(products.inner, inner);
    make_key(inner, key);
    largest_by_rotations(key, q);
    const double w = q[0], x = q[1], y = q[2], z = q[3];
    const double all[9] = {
        w * w + x * x - y * y - z * z, 2 * (x * y - w * z),           2 * (x * z + w * y),
        2 * (x * y + w * z),           w * w - x * x + y * y - z * z, 2 * (y * z - w * x),
        2 * (x * z - w * y),           2 * (y * z + w * x),           w * w - x * x - y * y + z * z,
    };
    memcpy(rotation, all, sizeof all);
    for (size_t i = 0; i < 3; i++) {
        const double *row = &rotation[3 * i];
        shift[i] = reference_centre[i] - (row[0] * centre[0] + row[1] * centre[1] + row[2] * centre[2]);
    }
}

/* All sums in one order, which a product of matrices leaves open. */
INLINE void turn_some(const float *positions, size_t i, size_t n, const double r[9], const double shift[3],
                      float turned[3 * QUAD]) {
    const double origin[3] = {0};
    const struct atoms a = take(positions, NULL, i, n, origin);
    const quad x = r[0] * a.x + r[1] * a.y + r[2] * a.z + shift[0];
    const quad y = r[3] * a.x + r[4] * a.y + r[5] * a.z + shift[1];
    const quad z = r[6] * a.x + r[7] * a.y + r[8] * a.z + shift[2];
    for (size_t lane = 0; lane < QUAD; lane++) {
        turned[3 * lane] = (float)x[lane];
        turned[3 * lane + 1] = (float)y[lane];
        turned[3 * lane + 2] = (float)z[lane];
    }
}

CLONES static void turn(const float *positions, size_t n, const double r[9], const double shift[3], float *to) {
    float turned[3 * QUAD];
    size_t i = 0;
    for (; i + QUAD <= n; i += QUAD) {
        turn_some(positions, i, n, r, shift, turned);
        memcpy(&to[3 * i], turned, sizeof turned);
    }
    if (i < n) {
        turn_some(positions, i, n, r, shift, turned);
        memcpy(&to[3 * i], turned, 3 * (n - i) * sizeof *to);
    }
}

CLONES static void move(const float *positions, size_t n, const double shift[3], float *to) {
    for (size_t i = 0; i < n; i++) {
        for (size_t axis = 0; axis < 3; axis++) {
            to[3 * i + axis] = (float)(positions[3 * i + axis] + shift[axis]);
        }
    }
}

void fit_move(const float *positions, size_t n, const double *rotation, const double shift[3], float *to) {
    if (rotation == NULL) {
        move(positions, n, shift, to);
    } else {
        turn(positions, n, rotation, shift, to);
    }
}

CLONES void shape_gyration(const float *positions, const double *weights, size_t n, double tensor[9]) {
    /* About the first atom, which is not far off; what the centre makes of it is taken off in the end. */
    const double first[3] = {positions[0], positions[1], positions[2]};
    quad x = {0}, y = {0}, z = {0}, xx = {0}, xy = {0}, xz = {0}, yy = {0}, yz = {0}, zz = {0}, weight = {0};
    for (size_t i = 0; i < n; i += QUAD) {
        const struct atoms a = take(positions, weights, i, n, first);
        const quad wx = a.weight * a.x, wy = a.weight * a.y, wz = a.weight * a.z;
        x += wx;
        y += wy;
        z += wz;
        xx += wx * a.x;
        xy += wx * a.y;
        xz += wx * a.z;
        yy += wy * a.y;
        yz += wy * a.z;
        zz += wz * a.z;
        weight += a.weight;
    }
    const double all = total(&weight), centre[3] = {total(&x) / all, total(&y) / all, total(&z) / all};
    const double products[9] = {total(&xx), total(&xy), total(&xz), total(&xy), total(&yy),
                                total(&yz), total(&xz), total(&yz), total(&zz)};
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < 3; j++) {
            tensor[3 * i + j] = products[3 * i + j] / all - centre[i] * centre[j];
        }
    }
}
