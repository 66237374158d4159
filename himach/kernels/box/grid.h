/* Cells for a search, by fractions of the box or of the atoms' extent, and what single precision can tell there. */
#pragma once

#include "box/metric.h"
#include "clones.h"

#include <math.h>

struct grid {
    float origin[3];
    float to_cell[6]; /* x = 0 1 2, y = 3 4, z = 5: position to fraction, upper triangle */
    float vector[3][3];
    float period;   /* 1, or 0 without a box: what is taken off per whole number of a fraction */
    float width[3]; /* Å between the faces */
    float reach;    /* Å: what is further away in single precision is beyond the cutoff */
    float inside;   /* pairs whose squared distance in single precision is no more than this are within the cutoff */
    float margin;   /* Å², how far off a squared distance in single precision may be */
    float limit;    /* those above this are not; the metric decides about the rest */
};

/* Set up the grid of a metric, for targets of this extent among coordinates of this size. `placed` says whether
 * distances will be of positions that the metric has placed. Returns 0 if a search by cells cannot answer: cutoffs
 * beyond `most` widths of the box, coordinates so far out that single precision tells nothing. */
int grid_set(struct grid *grid, const struct metric *metric, const struct extent *targets, float size, int placed,
             double most);

/* Number of cells along each axis, at least `edge` wide and no more than `most` in all. */
void grid_count(const struct grid *grid, float edge, double most, int n[3]);

/* How many cells lie within reach on either side. */
INLINE int grid_cells_in_reach(const struct grid *grid, int axis, int n) {
    return (int)ceilf(grid->reach * (float)n / grid->width[axis]);
}

struct place {
    float position[3]; /* relative to the origin, folded into the box, Å */
    float fraction[3]; /* in [0, 1] in a box; without a box, outside where no target is near */
};

/* Fractions of a position that is relative to the origin. */
INLINE void grid_fraction(const struct grid *grid, const float position[3], float fraction[3]) {
    const float *f = grid->to_cell;
    fraction[0] = position[0] * f[0] + position[1] * f[1] + position[2] * f[2];
    fraction[1] = position[1] * f[3] + position[2] * f[4];
    fraction[2] = position[2] * f[5];
}

INLINE struct place grid_place(const struct grid *grid, const float *position) {
    struct place place;
    for (int i = 0; i < 3; i++) {
        place.position[i] = position[i] - grid->origin[i];
    }
    grid_fraction(grid, place.position, place.fraction);
    /* Written out, as compilers take no loop in a loop to vectors. */
    float periods[3];
    for (int i = 0; i < 3; i++) {
        periods[i] = grid->period * floorf(place.fraction[i]);
        place.fraction[i] -= periods[i];
    }
    place.position[0] -= periods[0] * grid->vector[0][0];
    place.position[0] -= periods[1] * grid->vector[1][0];
    place.position[0] -= periods[2] * grid->vector[2][0];
    place.position[1] -= periods[1] * grid->vector[1][1];
    place.position[1] -= periods[2] * grid->vector[2][1];
    place.position[2] -= periods[2] * grid->vector[2][2];
    return place;
}

/* The cell of a fraction, of n along the axis; fractions outside go to the first and last. */
INLINE int grid_cell(float fraction, int n) {
    const float cell = fraction * (float)n;
    return cell > 0 ? cell < (float)n ? (int)cell : n - 1 : 0;
}
