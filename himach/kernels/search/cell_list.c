#include "search/cell_list.h"

#define CELLS_PER_ATOM     4.0
#define CELLS_AT_LEAST     512.0
#define CELLS_PER_ROW_CELL 4 /* along a row, cells are finer than across */
#define FAR                1e18F

struct point {
    float position[3];
    int cell[3];
};

CLONES static void place_points(const struct cell_list *cells, struct group targets, struct point *points) {
    for (size_t i = 0; i < targets.n; i++) {
        const struct place place = grid_place(cells->grid, &targets.positions[3 * i]);
        memcpy(points[i].position, place.position, sizeof place.position);
        for (int j = 0; j < 3; j++) {
            points[i].cell[j] = grid_cell(place.fraction[j], cells->n[j]);
        }
    }
}

/* The periods by which a cell of the box is repeated among the cells of images. */
static void repeats(const struct cell_list *cells, const struct point *point, int low[3], int high[3]) {
    for (int j = 0; j < 3; j++) {
        const int periodic = cells->grid->period != 0;
        low[j] = periodic && point->cell[j] >= cells->n[j] - cells->pad[j] ? -1 : 0;
        high[j] = periodic && point->cell[j] < cells->pad[j] ? 1 : 0;
    }
}

static size_t cell_of(const struct cell_list *cells, const struct point *point, int i, int j, int k) {
    const int x = point->cell[0] + i * cells->n[0] + cells->pad[0];
    const int y = point->cell[1] + j * cells->n[1] + cells->pad[1];
    const int z = point->cell[2] + k * cells->n[2] + cells->pad[2];
    return ((size_t)z * (size_t)cells->total[1] + (size_t)y) * (size_t)cells->total[0] + (size_t)x;
}

/* Count what each cell holds; turn the counts into the slots at which cells begin. Returns the number of slots. */
static size_t count_slots(const struct cell_list *cells, const struct point *points, size_t n, uint32_t *starts,
                          size_t n_cells) {
    memset(starts, 0, (n_cells + 2) * sizeof *starts);
    size_t slots = 0;
    for (size_t p = 0; p < n; p++) {
        int low[3], high[3];
        repeats(cells, &points[p], low, high);
        for (int k = low[2]; k <= high[2]; k++) {
            for (int j = low[1]; j <= high[1]; j++) {
                for (int i = low[0]; i <= high[0]; i++) {
                    starts[cell_of(cells, &points[p], i, j, k) + 2]++;
                    slots++;
                }
            }
        }
    }
    for (size_t cell = 2; cell < n_cells + 2; cell++) {
        starts[cell] += starts[cell - 1];
    }
    return slots;
}

static void fill_slots(const struct cell_list *cells, const struct point *points, size_t n, uint32_t *next, float *x,
                       float *y, float *z, uint32_t *atoms) {
    const float(*v)[3] = cells->grid->vector;
    for (size_t p = 0; p < n; p++) {
        const float *at = points[p].position;
        int low[3], high[3];
        repeats(cells, &points[p], low, high);
        for (int k = low[2]; k <= high[2]; k++) {
            for (int j = low[1]; j <= high[1]; j++) {
                for (int i = low[0]; i <= high[0]; i++) {
                    const uint32_t slot = next[cell_of(cells, &points[p], i, j, k) + 1]++;
                    x[slot] = at[0] + (float)i * v[0][0] + (float)j * v[1][0] + (float)k * v[2][0];
                    y[slot] = at[1] + (float)j * v[1][1] + (float)k * v[2][1];
                    z[slot] = at[2] + (float)k * v[2][2];
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
    struct point *points = scratch_take(scratch, SCRATCH_POINTS, targets.n * sizeof *points);
    uint32_t *starts = scratch_take(scratch, SCRATCH_STARTS, (n_cells + 2) * sizeof *starts);
    if (points == NULL || starts == NULL) {
        return -1;
    }
    place_points(cells, targets, points);
    /* Filling moves each cell's start on by one cell: it begins one place ahead. */
    const size_t slots = count_slots(cells, points, targets.n, starts, n_cells);
    float *x = scratch_take(scratch, SCRATCH_X, (slots + LANES) * sizeof *x);
    float *y = scratch_take(scratch, SCRATCH_Y, (slots + LANES) * sizeof *y);
    float *z = scratch_take(scratch, SCRATCH_Z, (slots + LANES) * sizeof *z);
    uint32_t *atoms = scratch_take(scratch, SCRATCH_ATOMS, (slots + LANES) * sizeof *atoms);
    if (x == NULL || y == NULL || z == NULL || atoms == NULL) {
        return -1;
    }
    fill_slots(cells, points, targets.n, starts, x, y, z, atoms);
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
