/* Root-mean-square deviations of many structures from many. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Structures (count, n, 3) of n > 0 atoms. */
struct structures {
    const float *positions;
    size_t count;
};

/* What is asked of two structures. */
struct deviation {
    size_t n;              /* atoms */
    const double *weights; /* (n,), with a positive sum; NULL stands for equal ones */
    int superpose;         /* whether they are laid over one another first */
    double cutoff;         /* for `within` */
};

/* The deviation of each of `a` from each of `b`, which is `a` where it has no positions. -1: there is no memory. */
int deviations_all(struct structures a, struct structures b, const struct deviation *query, double *to);

/* Whether these deviations are within the cutoff: `to` is (a.count, (b.count + 7) / 8), a bit each, lowest first. */
int deviations_within(struct structures a, struct structures b, const struct deviation *query, uint8_t *to);
