/* Points of the unit sphere along a golden spiral, sorted so that points that follow one another lie close together. */
#pragma once

#include <stddef.h>

struct spiral {
    size_t n;
    double (*exact)[3];
    float *x, *y, *z; /* the same, rounded */
};

/* Set n points: the i-th at the height (2 i + 1) / n - 1 along y, turned by the golden angle. -1: no memory. */
int spiral_set(struct spiral *spiral, size_t n);
void spiral_free(struct spiral *spiral);
