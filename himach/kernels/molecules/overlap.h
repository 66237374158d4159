/* The greatest overlap that a rotation gives, of four pairs of structures side by side: the largest eigenvalue of a
 * traceless symmetric 4 by 4 matrix of their inner products (fit.c). */
#pragma once

#include "molecules/molecules.h"
#include "molecules/quad.h"

/* Newton's method ends after so many steps, or when a step is that small, relatively. It is left where the polynomial's
 * slope, relative to that of the cube, is less than it is at a root that is alone. */
#define OVERLAP_ITERATIONS 50
#define OVERLAP_PRECISION  1e-14
#define OVERLAP_ALONE      1e-2

/* The matrix of inner products (3, 3), position times reference. */
INLINE void overlap_key(const quad s[9], quad key[4][4]) {
    const quad all[4][4] = {
        {s[0] + s[4] + s[8], s[5] - s[7], s[6] - s[2], s[1] - s[3]},
        {s[5] - s[7], s[0] - s[4] - s[8], s[1] + s[3], s[6] + s[2]},
        {s[6] - s[2], s[1] + s[3], s[4] - s[0] - s[8], s[5] + s[7]},
        {s[1] - s[3], s[6] + s[2], s[5] + s[7], s[8] - s[0] - s[4]},
    };
    memcpy(key, all, sizeof all);
}

/* The coefficients of the characteristic polynomial x^4 + c2 x^2 + c1 x + c0. */
struct polynomial {
    quad c2, c1, c0;
};

/* The determinant of the matrix is from the minors of its upper and lower two rows. */
INLINE void make_polynomial(const quad s[9], struct polynomial *p) {
    quad squares = s[0] * s[0];
    for (int i = 1; i < 9; i++) {
        squares += s[i] * s[i];
    }
    const quad determinant =
        s[0] * (s[4] * s[8] - s[5] * s[7]) - s[1] * (s[3] * s[8] - s[5] * s[6]) + s[2] * (s[3] * s[7] - s[4] * s[6]);
    quad key[4][4], upper[4][4], lower[4][4];
    overlap_key(s, key);
    for (int i = 0; i < 4; i++) {
        for (int j = i + 1; j < 4; j++) {
            upper[i][j] = key[0][i] * key[1][j] - key[0][j] * key[1][i];
            lower[i][j] = key[2][i] * key[3][j] - key[2][j] * key[3][i];
        }
    }
    p->c2 = -2.0 * squares;
    p->c1 = -8.0 * determinant;
    p->c0 = upper[0][1] * lower[2][3] - upper[0][2] * lower[1][3] + upper[0][3] * lower[1][2] +
            upper[1][2] * lower[0][3] - upper[1][3] * lower[0][2] + upper[2][3] * lower[0][1];
}

/* The largest eigenvalues by Newton's method from above, each lane for itself; `guess`: half the sum of both's squares.
 * Returns a bit for each lane that needs more than that: its root is close to another, as of atoms on a line. */
INLINE unsigned overlap_newton(const quad s[9], const quad *guess, quad *root) {
    struct polynomial p;
    make_polynomial(s, &p);
    quad x = *guess;
    whole going = {-1, -1, -1, -1}, hard = {0};
    for (int i = 0; i < OVERLAP_ITERATIONS; i++) {
        const quad b = (x * x + p.c2) * x, a = b + p.c1;
        const quad slope = 2.0 * x * x * x + b + a;
        const whole steep = slope > OVERLAP_ALONE * x * x * x;
        hard |= going & ~steep;
        going &= steep;
        const quad change = (a * x + p.c0) / slope, next = x - change;
        const quad size = (quad)((whole)change & INT64_MAX); /* the sign's bit is cleared */
        x = (quad)((going & (whole)next) | (~going & (whole)x));
        going &= size >= OVERLAP_PRECISION * x;
        if (!(going[0] | going[1] | going[2] | going[3])) {
            break;
        }
    }
    *root = x;
    hard |= going;
    return (hard[0] ? 1U : 0) | (hard[1] ? 2U : 0) | (hard[2] ? 4U : 0) | (hard[3] ? 8U : 0);
}
