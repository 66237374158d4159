/* Squared distances of pairs, to the last bit as MDAnalysis.lib.distances computes them.
 *
 * capped_distance() has two ways, which differ in how they round: all pairs, and a grid, which folds or shifts
 * positions first. Which one it takes depends on the numbers of atoms, the cutoff and the box. A metric is that choice.
 */
#pragma once

#include "box/lattice.h"

#include <stddef.h>

struct group {
    const float *positions; /* (n, 3), Å */
    size_t n;
};

struct extent {
    float low[3], high[3];
    float size; /* largest magnitude of a coordinate; NaN or infinite if one is */
};

struct metric {
    const struct lattice *lattice;
    int grid;       /* whether by the rounding of the grid */
    float shift[3]; /* without a box: what the grid takes off positions */
    double cutoff;
    double limit; /* pairs whose squared distance is no more than this are within the cutoff */
};

/* The extent of a group; `extent` holds that of others, or extent_none(). */
void extent_add(struct extent *extent, struct group group);
struct extent extent_none(void);

/* The metric of two groups, or of the pairs in one group if `b` is NULL. */
struct metric metric_choose(const struct lattice *lattice, struct group a, const struct group *b,
                            const struct extent *extent, double cutoff);

/* The position that the metric's distances are taken from. */
void metric_place(const struct metric *metric, float position[3]);
void metric_place_all(const struct metric *metric, struct group group, float *to);

/* Squared distance of two places, by the minimum image. */
double metric_square(const struct metric *metric, const float a[3], const float b[3]);

/* The same where it is known that the distance is less than half of each of the box's widths. */
double metric_square_near(const struct metric *metric, const float a[3], const float b[3]);

/* Whether two positions, not yet placed, are within the cutoff. */
int metric_within(const struct metric *metric, const float a[3], const float b[3]);

/* The least square whose root is at least `distance`. */
double least_square(double distance);
