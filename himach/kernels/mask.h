/* A coarse answer to where targets are near: cells of half a cutoff, marked if a target may be within reach of them. */
#ifndef HIMACH_KERNELS_MASK_H
#define HIMACH_KERNELS_MASK_H

#include "grid.h"
#include "scratch.h"

struct mask {
    int n[3];
    const uint8_t *near; /* (n[2], n[1], n[0]) */
};

/* Mark the cells around targets. Returns -1 if there is no memory. */
int mask_set(struct mask *mask, struct scratch *scratch, const struct grid *grid, struct group targets);

/* The cell of each position (n, 3). */
void mask_cells(const struct mask *mask, const struct grid *grid, struct group group, int32_t *cells);

/* Find which of n cells are marked: `candidates`, with room for n + 1. Returns how many. */
size_t mask_choose(const struct mask *mask, const int32_t *cells, size_t n, int32_t *candidates);

#endif
