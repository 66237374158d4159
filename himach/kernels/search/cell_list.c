#include "search/cell_list.h"

#define CELLS_PER_ATOM     4.0
#define CELLS_AT_LEAST     512.0
#define CELLS_PER_ROW_CELL 4 /* along a row, cells are finer than across */
#define FAR                1e18F

/* Targets as they are placed, one array a fact. */
struct placed {
    float *x, *y, *z;
    uint32_t *cell;    /* in the box */
    uint32_t *borders; /* a bit for each end of an axis that it is near, where images are */
};

CLONES static void place_all(const struct cell_list *cells, const float *restrict positions, size_t n_targets,
                             float *restrict x, float *restrict y, float *restrict z, uint32_t *restrict cell,
                             uint32_t *restrict borders) {
    /* Copies, which no store can change, for the compiler. */
    const struct grid grid = *cells->grid;
    const int n[3] = {cells->n[0], cells->n[1], cells->n[2]};
    const int pad[3] = {cells->pad[0], cells->pad[1], cells->pad[2]};
    const int total[2] = {cells->total[0], cells->total[1]};
    for (size_t i = 0; i < n_targets; i++) {
        const struct place place = grid_place(&grid, &positions[3 * i]);
        const int a = grid_cell(place.fraction[0], n[0]), b = grid_cell(place.fraction[1], n[1]),
                  c = grid_cell(place.fraction[2], n[2]);
        x[i] = place.position[0];
        y[i] = place.position[1];
        z[i] = place.position[2];
        cell[i] = ((uint32_t)(c + pad[2]) * (uint32_t)total[1] + (uint32_t)(b + pad[1])) * (uint32_t)total[0] +
                  (uint32_t)(a + pad[0]);
        borders[i] = (uint32_t)((a < pad[0]) | (a >= n[0] - pad[0]) << 1 | (b < pad[1]) << 2 |
                                (b >= n[1] - pad[1]) << 3 | (c < pad[2]) << 4 | (c >= n[2] - pad[2]) << 5);
    }
}

/* The periods by which a cell of the box is repeated among the cells of images, from `low` to `high`. */
INLINE void repeats(uint32_t borders, int low[3], int high[3]) {
    for (int j = 0; j < 3; j++) {
        high[j] = (int)(borders >> 2 * j & 1);
        low[j] = -(int)(borders >> (2 * j + 1) & 1);
    }
}

/* How many cells further an image lies. */
INLINE size_t moved(const struct cell_list *cells, uint32_t cell, int i, int j, int k) {
    const ptrdiff_t row = cells->total[0], plane = row * cells->total[1];
    const ptrdiff_t x = (ptrdiff_t)i * cells->n[0], y = j * row * cells->n[1], z = k * plane * cells->n[2];
    return (size_t)((ptrdiff_t)cell + x + y + z);
}

/* Count what each cell holds; turn the counts into the slots at which cells begin. Returns the number of slots. */
static size_t count_slots(const struct cell_list *cells, const struct placed *placed, size_t n, uint32_t *starts,
                          size_t n_cells) {
    memset(starts, 0, (n_cells + 2) * sizeof *starts);
    size_t slots = n;
    for (size_t p = 0; p < n; p++) {
        const uint32_t cell = placed->cell[p];
        starts[cell + 2]++;
        if (placed->borders[p] == 0) {
            continue;
        }
        int low[3], high[3];
        repeats(placed->borders[p], low, high);
        for (int k = low[2]; k <= high[2]; k++) {
            for (int j = low[1]; j <= high[1]; j++) {
                for (int i = low[0]; i <= high[0]; i++) {
                    starts[moved(cells, cell, i, j, k) + 2]++;
                    slots++;
                }
            }
        }
        starts[cell + 2]--; /* it was counted among its images, too */
        slots--;
    }
    for (size_t cell = 2; cell < n_cells + 2; cell++) {
        starts[cell] += starts[cell - 1];
    }
    return slots;
}

static void fill_slots(const struct cell_list *cells, const struct placed *placed, size_t n, uint32_t *next, float *x,
                       float *y, float *z, uint32_t *atoms) {
    const float(*v)[3] = cells->grid->vector;
    for (size_t p = 0; p < n; p++) {
        const uint32_t cell = placed->cell[p];
        int low[3], high[3];
        if (placed->borders[p] == 0) {
            const uint32_t slot = next[cell + 1]++;
            x[slot] = placed->x[p];
            y[slot] = placed->y[p];
            z[slot] = placed->z[p];
            atoms[slot] = (uint32_t)p;
            continue;
        }
        repeats(placed->borders[p], low, high);
        for (int k = low[2]; k <= high[2]; k++) {
            for (int j = low[1]; j <= high[1]; j++) {
                for (int i = low[0]; i <= high[0]; i++) {
                    const uint32_t slot = next[moved(cells, cell, i, j, k) + 1]++;
                    x[slot] = placed->x[p] + (float)i * v[0][0] + (float)j * v[1][0] + (float)k * v[2][0];
                    y[slot] = placed->y[p] + (float)j * v[1][1] + (float)k * v[2][1];
                    z[slot] = placed->z[p] + (float)k * v[2][2];
                    atoms[slot] = (uint32_t)p;
                }
            }
        }
    }
}

int cell_list_set(struct cell_list *cells, struct scratch *scratch, const struct grid *grid, struct group targets,
                  int parts) {
    cells->grid = grid;
    grid_count(grid, grid->reach / (float)parts, CELLS_AT_LEAST + CELLS_PER_ATOM * (double)targets.n, cells->n);
    cells->n[0] *= CELLS_PER_ROW_CELL;
    size_t n_cells = 1;
    for (int i = 0; i < 3; i++) {
        cells->pad[i] = grid->period != 0 ? grid_cells_in_reach(grid, i, cells->n[i]) : 0;
        cells->pad[i] = cells->pad[i] < cells->n[i] ? cells->pad[i] : cells->n[i];
        cells->total[i] = cells->n[i] + 2 * cells->pad[i];
        n_cells *= (size_t)cells->total[i];
    }
    float *at = scratch_take(scratch, SCRATCH_POINTS, 5 * targets.n * sizeof *at);
    uint32_t *starts = scratch_take(scratch, SCRATCH_STARTS, (n_cells + 2) * sizeof *starts);
    if (at == NULL || starts == NULL) {
        return -1;
    }
    uint32_t *numbers = (uint32_t *)(void *)(at + 3 * targets.n);
    const struct placed placed = {at, at + targets.n, at + 2 * targets.n, numbers, numbers + targets.n};
    place_all(cells, targets.positions, targets.n, placed.x, placed.y, placed.z, placed.cell, placed.borders);
    /* Filling moves each cell's start on by one cell: it begins one place ahead. */
    const size_t slots = count_slots(cells, &placed, targets.n, starts, n_cells);
    float *x = scratch_take(scratch, SCRATCH_X, (slots + LANES) * sizeof *x);
    float *y = scratch_take(scratch, SCRATCH_Y, (slots + LANES) * sizeof *y);
    float *z = scratch_take(scratch, SCRATCH_Z, (slots + LANES) * sizeof *z);
    uint32_t *atoms = scratch_take(scratch, SCRATCH_ATOMS, (slots + LANES) * sizeof *atoms);
    if (x == NULL || y == NULL || z == NULL || atoms == NULL) {
        return -1;
    }
    fill_slots(cells, &placed, targets.n, starts, x, y, z, atoms);
    for (size_t slot = slots; slot < slots + LANES; slot++) {
        x[slot] = y[slot] = z[slot] = FAR;
        atoms[slot] = 0;
    }
    cells->slots = slots;
    cells->starts = starts;
    cells->x = x;
    cells->y = y;
    cells->z = z;
    cells->atoms = atoms;
    return 0;
}
