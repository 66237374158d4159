/* A coarse answer to where targets are near, which tells most of a large group's atoms away at little cost. */
#pragma once

#include "box/grid.h"
#include "search/scratch.h"

/* Find which atoms of a group may be within reach of any target: `*candidates`, ascending. -1: there is no memory. */
int mask_candidates(struct scratch *scratch, const struct grid *grid, struct group group, struct group targets,
                    const int32_t **candidates, size_t *n);
