#include "search/mask.h"

#define CELLS_PER_ATOM 8.0
#define CELLS_AT_LEAST 32768.0

/* Cells of half a cutoff, marked if a target may be within reach of them. */
struct mask {
    int n[3];
    const uint8_t *near; /* (n[2], n[1], n[0]) */
};

/* Spread marks by `reach` cells to both sides along the middle axis of (outer, n, inner). */
CLONES static void spread(uint8_t *marks, uint8_t *copy, size_t outer, int n, size_t inner, int reach, int periodic) {
    const size_t block = (size_t)n * inner;
    for (size_t i = 0; i < outer; i++, marks += block) {
        memcpy(copy, marks, block);
        for (int shift = -reach; shift <= reach; shift++) {
            if (shift == 0) {
                continue;
            }
            for (int line = 0; line < n; line++) {
                int from = line + shift;
                if (periodic) {
                    from = ((from % n) + n) % n;
                } else if (from < 0 || from >= n) {
                    continue;
                }
                uint8_t *restrict to = &marks[(size_t)line * inner];
                const uint8_t *restrict other = &copy[(size_t)from * inner];
                for (size_t k = 0; k < inner; k++) {
                    to[k] |= other[k];
                }
            }
        }
    }
}

/* The same along the innermost axis, where cells that follow one another are taken together. */
CLONES static void spread_along(uint8_t *marks, uint8_t *copy, size_t outer, int n, int reach, int periodic) {
    for (size_t i = 0; i < outer; i++, marks += n) {
        memcpy(&copy[reach], marks, (size_t)n);
        for (int k = 1; k <= reach; k++) {
            copy[reach - k] = periodic ? marks[(reach * n - k) % n] : 0;
            copy[reach + n - 1 + k] = periodic ? marks[(k - 1) % n] : 0;
        }
        for (int shift = 0; shift <= 2 * reach; shift++) {
            const uint8_t *restrict other = &copy[shift];
            uint8_t *restrict to = marks;
            for (int k = 0; k < n; k++) {
                to[k] |= other[k];
            }
        }
    }
}

/* The cell of each position (n, 3). */
CLONES static void find_cells(const struct mask *mask, const struct grid *grid, struct group group, int32_t *cells) {
    const int nx = mask->n[0], ny = mask->n[1], nz = mask->n[2];
    for (size_t i = 0; i < group.n; i++) {
        const struct place place = grid_place(grid, &group.positions[3 * i]);
        const int x = grid_cell(place.fraction[0], nx), y = grid_cell(place.fraction[1], ny),
                  z = grid_cell(place.fraction[2], nz);
        cells[i] = x + nx * (y + ny * z);
    }
}

/* Find which of n cells are marked: `candidates`, with room for n + 1. Returns how many. */
static size_t choose(const struct mask *mask, const int32_t *cells, size_t n, int32_t *candidates) {
    size_t chosen = 0;
    for (size_t i = 0; i < n; i++) {
        candidates[chosen] = (int32_t)i;
        chosen += mask->near[cells[i]];
    }
    return chosen;
}

/* Mark the cells around targets. Returns -1 if there is no memory. */
static int mark(struct mask *mask, struct scratch *scratch, const struct grid *grid, struct group targets) {
    grid_count(grid, grid->reach / 2, CELLS_AT_LEAST + CELLS_PER_ATOM * (double)targets.n, mask->n);
    const int *n = mask->n;
    const size_t all = (size_t)n[0] * (size_t)n[1] * (size_t)n[2];
    int reach[3];
    for (int i = 0; i < 3; i++) {
        reach[i] = grid_cells_in_reach(grid, i, n[i]);
    }
    uint8_t *marks = scratch_take(scratch, SCRATCH_MASK, all);
    uint8_t *copy = scratch_take(scratch, SCRATCH_MASK_LINES, all + 2 * (size_t)reach[0]);
    int32_t *cells = scratch_take(scratch, SCRATCH_CELLS, targets.n * sizeof *cells);
    if (marks == NULL || copy == NULL || cells == NULL) {
        return -1;
    }
    memset(marks, 0, all);
    find_cells(mask, grid, targets, cells);
    for (size_t i = 0; i < targets.n; i++) {
        marks[cells[i]] = 1;
    }
    const int periodic = grid->period != 0;
    const size_t nx = (size_t)n[0], ny = (size_t)n[1], nz = (size_t)n[2];
    spread_along(marks, copy, ny * nz, n[0], reach[0], periodic);
    spread(marks, copy, nz, n[1], nx, reach[1], periodic);
    spread(marks, copy, 1, n[2], nx * ny, reach[2], periodic);
    mask->near = marks;
    return 0;
}

int mask_candidates(struct scratch *scratch, const struct grid *grid, struct group group, struct group targets,
                    const int32_t **candidates, size_t *n) {
    struct mask mask;
    if (mark(&mask, scratch, grid, targets) != 0) {
        return -1;
    }
    int32_t *cells = scratch_take(scratch, SCRATCH_CELLS, group.n * sizeof *cells);
    int32_t *chosen = scratch_take(scratch, SCRATCH_CANDIDATES, (group.n + 1) * sizeof *chosen);
    if (cells == NULL || chosen == NULL) {
        return -1;
    }
    find_cells(&mask, grid, group, cells);
    *n = choose(&mask, cells, group.n, chosen);
    *candidates = chosen;
    return 0;
}
