/* Targets sorted into rows of cells, with images around the box: what is near a place lies in a few runs of memory. */
#pragma once

#include "box/grid.h"
#include "search/scratch.h"

struct cell_list {
    const struct grid *grid;
    int n[3];               /* cells of the box */
    int pad[3];             /* cells of images on either side */
    int total[3];           /* n + 2 pad */
    const uint32_t *starts; /* the slot at which each cell begins, and the end of the last one */
    size_t slots;
    const float *x, *y,
        *z; /* positions of slots relative to the origin, Å; eight more that are near nothing lie behind */
    const uint32_t *atoms; /* whose image it is */
};

/* Sort targets into cells that are a `parts`-th of the cutoff wide. Returns -1 if there is no memory. */
int cell_list_set(struct cell_list *cells, struct scratch *scratch, const struct grid *grid, struct group targets,
                  int parts);

/* What lies within reach of a place: ranges of rows, and in each of them of cells. */
struct window {
    int x_first, x_last, y_first, y_last, z_first, z_last;
};

INLINE struct window cell_list_window(const struct cell_list *cells, const float fraction[3]) {
    int first[3], last[3];
    for (int i = 0; i < 3; i++) {
        const float n = (float)cells->n[i], reach = cells->grid->reach / cells->grid->width[i] + 1e-6F;
        const float low = (fraction[i] - reach) * n + (float)cells->pad[i];
        const float high = (fraction[i] + reach) * n + (float)cells->pad[i];
        const float end = (float)(cells->total[i] - 1);
        first[i] = low > 0 ? low < end ? (int)low : (int)end : 0;
        last[i] = high > 0 ? high < end ? (int)high : (int)end : 0;
    }
    return (struct window){first[0], last[0], first[1], last[1], first[2], last[2]};
}

struct run {
    uint32_t start, end; /* slots */
};

INLINE struct run cell_list_run(const struct cell_list *cells, const struct window *window, int y, int z) {
    const uint32_t *row = &cells->starts[((size_t)z * (size_t)cells->total[1] + (size_t)y) * (size_t)cells->total[0]];
    return (struct run){row[window->x_first], row[window->x_last + 1]};
}

/* What lies in the box of one row; y and z count from the first row of images. */
INLINE struct run cell_list_core(const struct cell_list *cells, int y, int z) {
    const uint32_t *row = &cells->starts[((size_t)z * (size_t)cells->total[1] + (size_t)y) * (size_t)cells->total[0]];
    return (struct run){row[cells->pad[0]], row[cells->pad[0] + cells->n[0]]};
}

/* Squared distances in single precision between a place and eight slots. */
INLINE floats cell_list_squares(const struct cell_list *cells, uint32_t slot, const float position[3]) {
    const floats x = load(&cells->x[slot]) - position[0], y = load(&cells->y[slot]) - position[1],
                 z = load(&cells->z[slot]) - position[2];
    return x * x + y * y + z * z;
}
