#include "search/mask.h"

#define CELLS_PER_ATOM 8.0
#define CELLS_AT_LEAST 32768.0

/* Cells of half a cutoff, a bit each: set if a target may be within reach of it. Rows along the first axis are whole
 * words, longer by the reach on both sides. */
struct mask {
    int n[3];
    int reach[3];   /* cells */
    size_t words;   /* of a row */
    uint64_t *rows; /* (n[2], n[1], words), and a word behind */
};

/* The number of a cell's bit less the reach; a run of 2 reach + 1 bits begins there. */
INLINE int32_t bit_of(const struct grid *grid, const int n[3], int32_t row_bits, const float *position) {
    const struct place place = grid_place(grid, position);
    const int x = grid_cell(place.fraction[0], n[0]), y = grid_cell(place.fraction[1], n[1]),
              z = grid_cell(place.fraction[2], n[2]);
    return x + row_bits * (y + n[1] * z);
}

CLONES static void find_bits(const struct mask *mask, const struct grid *grid, const float *restrict positions,
                             size_t n, int32_t *restrict bits) {
    const struct grid same = *grid; /* a copy, which no store can change, for the compiler */
    const int cells[3] = {mask->n[0], mask->n[1], mask->n[2]};
    const int32_t row_bits = (int32_t)(64 * mask->words);
    for (size_t i = 0; i < n; i++) {
        bits[i] = bit_of(&same, cells, row_bits, &positions[3 * i]);
    }
}

/* Mark what lies within reach of targets along the first axis. */
static void mark_along(const struct mask *mask, const int32_t *bits, size_t n) {
    const uint64_t run = (UINT64_C(1) << (2 * mask->reach[0] + 1)) - 1;
    for (size_t i = 0; i < n; i++) {
        uint64_t *word = &mask->rows[bits[i] >> 6];
        const unsigned at = bits[i] & 63;
        word[0] |= run << at;
        word[1] |= run >> 1 >> (63 - at); /* no bits behind the end of a row */
    }
}

/* Add what is marked beyond the ends of rows to the cells of which it is an image. */
static void fold(const struct mask *mask) {
    const int n = mask->n[0], reach = mask->reach[0];
    const size_t rows = (size_t)mask->n[1] * (size_t)mask->n[2];
    int image[64], cell[64]; /* as bits of a row */
    for (int k = 0; k < 2 * reach; k++) {
        image[k] = k < reach ? k : n + k;
        cell[k] = reach + ((image[k] - reach) % n + n) % n;
    }
    for (size_t r = 0; r < rows; r++) {
        uint64_t *row = &mask->rows[r * mask->words];
        for (int k = 0; k < 2 * reach; k++) {
            row[cell[k] >> 6] |= (row[image[k] >> 6] >> (image[k] & 63) & 1) << (cell[k] & 63);
        }
    }
}

CLONES static void merge(uint64_t *restrict to, const uint64_t *restrict from, size_t n) {
    for (size_t i = 0; i < n; i++) {
        to[i] |= from[i];
    }
}

/* Spread marks by `reach` lines to both sides along the middle axis of (outer, n, inner). */
static void spread(uint64_t *marks, uint64_t *copy, size_t outer, int n, size_t inner, int reach, int periodic) {
    const size_t block = (size_t)n * inner;
    for (size_t i = 0; i < outer; i++, marks += block) {
        memcpy(copy, marks, block * sizeof *copy);
        for (int k = 1; k <= reach; k++) {
            const size_t shift = (size_t)(k % n) * inner;
            if (k >= n && !periodic) {
                break;
            }
            merge(marks, copy + shift, block - shift);
            merge(marks + shift, copy, block - shift);
            if (periodic) {
                merge(marks + block - shift, copy, shift);
                merge(marks, copy + block - shift, shift);
            }
        }
    }
}

/* Find which of n positions are in marked cells: `candidates`, with room for n + 1. Returns how many. */
static size_t choose(const struct mask *mask, const int32_t *bits, size_t n, int32_t *candidates) {
    size_t chosen = 0;
    for (size_t i = 0; i < n; i++) {
        const int32_t bit = bits[i] + mask->reach[0];
        candidates[chosen] = (int32_t)i;
        chosen += mask->rows[bit >> 6] >> (bit & 63) & 1;
    }
    return chosen;
}

/* Mark the cells around targets. Returns -1 if there is no memory. */
static int mark(struct mask *mask, struct scratch *scratch, const struct grid *grid, struct group targets) {
    grid_count(grid, grid->reach / 2, CELLS_AT_LEAST + CELLS_PER_ATOM * (double)targets.n, mask->n);
    for (int i = 0; i < 3; i++) {
        mask->reach[i] = grid_cells_in_reach(grid, i, mask->n[i]);
    }
    mask->words = ((size_t)mask->n[0] + 2 * (size_t)mask->reach[0] + 63) / 64;
    const size_t plane = (size_t)mask->n[1] * mask->words, all = (size_t)mask->n[2] * plane + 1;
    mask->rows = scratch_take(scratch, SCRATCH_MASK, all * sizeof *mask->rows);
    uint64_t *copy = scratch_take(scratch, SCRATCH_MASK_LINES, all * sizeof *copy);
    int32_t *bits = scratch_take(scratch, SCRATCH_CELLS, targets.n * sizeof *bits);
    if (mask->rows == NULL || copy == NULL || bits == NULL) {
        return -1;
    }
    memset(mask->rows, 0, all * sizeof *mask->rows);
    find_bits(mask, grid, targets.positions, targets.n, bits);
    mark_along(mask, bits, targets.n);
    const int periodic = grid->period != 0;
    if (periodic) {
        fold(mask);
    }
    spread(mask->rows, copy, (size_t)mask->n[2], mask->n[1], mask->words, mask->reach[1], periodic);
    spread(mask->rows, copy, 1, mask->n[2], plane, mask->reach[2], periodic);
    return 0;
}

int mask_candidates(struct scratch *scratch, const struct grid *grid, struct group group, struct group targets,
                    const int32_t **candidates, size_t *n) {
    struct mask mask;
    if (mark(&mask, scratch, grid, targets) != 0) {
        return -1;
    }
    int32_t *bits = scratch_take(scratch, SCRATCH_CELLS, group.n * sizeof *bits);
    int32_t *chosen = scratch_take(scratch, SCRATCH_CANDIDATES, (group.n + 1) * sizeof *chosen);
    if (bits == NULL || chosen == NULL) {
        return -1;
    }
    find_bits(&mask, grid, group.positions, group.n, bits);
    *n = choose(&mask, bits, group.n, chosen);
    *candidates = chosen;
    return 0;
}
