/* Four atoms at a time, in double precision: four partial sums of everything, whatever the width of vectors. */
#pragma once

#include "clones.h"

#include <stddef.h>

enum { QUAD = 4 };

typedef double quad __attribute__((vector_size(8 * QUAD)));
typedef int64_t whole __attribute__((vector_size(8 * QUAD)));

/* Four atoms: their coordinates by axis, and their weights. */
struct atoms {
    quad x, y, z, weight;
};

/* Atoms i to i + 3 of n, about a centre; those beyond the last have no weight. */
INLINE struct atoms take(const float *positions, const double *weights, size_t i, size_t n, const double centre[3]) {
    const float *p = &positions[3 * i];
    float padded[3 * QUAD] = {0};
    struct atoms a = {.weight = {1, 1, 1, 1}};
    if (n - i < QUAD) {
        memcpy(padded, p, 3 * (n - i) * sizeof *p);
        p = padded;
        a.weight = (quad){1, n - i > 1, n - i > 2, 0};
        if (weights != NULL) {
            memcpy(&a.weight, &weights[i], (n - i) * sizeof *weights);
        }
    } else if (weights != NULL) {
        memcpy(&a.weight, &weights[i], sizeof a.weight);
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
