/* Which points of a sphere surely lie in a cap, looked up by the cap's direction and size.
 *
 * Directions are those of cells on the faces of a cube. For each of them and for some sizes a table has the points that
 * lie in every cap that has at least this size and a direction in this cell, as bits. */
#pragma once

#include "clones.h"

#include <stddef.h>

/* Points of the unit sphere along a golden spiral, sorted so that points that follow one another lie close together. */
struct spiral {
    size_t n;
    double (*exact)[3];
    float *x, *y, *z; /* the same, rounded */
};

/* Set n points: the i-th at the height (2 i + 1) / n - 1 along y, turned by the golden angle. -1: no memory. */
int spiral_set(struct spiral *spiral, size_t n);
void spiral_free(struct spiral *spiral);

enum { CAP_SIZES = 28, CAP_GROUP = 4 };

/* The cosine of the largest cap in the table, and the step to the next smaller. The last one holds nothing. */
#define CAP_LARGEST (-0.4F)
#define CAP_STEP    0.05F

struct caps {
    int side;      /* cells along the edge of a face */
    size_t width;  /* vectors of bits in a row of the table, a multiple of CAP_GROUP */
    ints *outside; /* rows: the points that no cap surely holds */
    ints *all;     /* a row: every point */
};

/* Set the table of a spiral's points. Returns -1 if there is no memory. */
int caps_set(struct caps *caps, const struct spiral *spiral);
void caps_free(struct caps *caps);

INLINE floats spread(float value) {
    return (floats){0} + value;
}

INLINE floats choose(ints where, floats yes, floats no) {
    return (floats)(((ints)yes & where) | ((ints)no & ~where));
}

INLINE ints clamp(ints value, int most) {
    value &= value > 0;
    const ints below = value < most;
    return (value & below) | (most & ~below);
}

INLINE floats magnitude(floats value) {
    return (floats)((ints)value & 0x7fffffff);
}

/* A map of [-1, 1] onto itself that makes the cells of a face more alike. */
#define CAP_WARP(u) ((u) * (1.25F - 0.25F * (u) * (u)))

INLINE ints caps_cell(const struct caps *caps, floats u) {
    const float half = 0.5F * (float)caps->side;
    return clamp(__builtin_convertvector(CAP_WARP(u) * half + half, ints), caps->side - 1);
}

/* The rows of eight caps: their directions, which need no length, and the cosines of their angles. */
INLINE ints caps_rows(const struct caps *caps, floats x, floats y, floats z, floats cosine) {
    const floats tiny = spread(1e-30F);
    const floats a = magnitude(x), b = magnitude(y), c = magnitude(z);
    const ints by_x = (a >= b) & (a >= c), by_y = (b >= c) & ~by_x;
    const floats major = choose(by_x, x, choose(by_y, y, z)), length = magnitude(major);
    const floats scale = 1 / choose(length > tiny, length, tiny);
    const ints face = (2 & by_y) + (4 & ~(by_x | by_y)) + (1 & (major < 0));
    const ints u = caps_cell(caps, choose(by_x, y, x) * scale);
    const ints w = caps_cell(caps, choose(by_x | by_y, z, y) * scale);
    /* Far beyond the table cosines would not fit an integer. */
    const floats most = spread(2), least = -most;
    cosine = choose(cosine < most, cosine, most);
    cosine = choose(cosine > least, cosine, least);
    const ints size = clamp(__builtin_convertvector((cosine - CAP_LARGEST) * (1 / CAP_STEP) + 1, ints), CAP_SIZES - 1);
    return ((face * caps->side + u) * caps->side + w) * CAP_SIZES + size;
}
