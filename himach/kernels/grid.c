#include "grid.h"

/* Rounding errors that a single-precision distance collects, in units of the largest coordinate: of folding three axes,
 * of an image, of the difference, and of the metric's own folding. */
#define ROUNDINGS     32.0
#define EPSILON       0x1p-24
#define LARGEST_SLACK 0.05
#define LEAST_REACH   1.0F
#define LARGEST_REACH 1e9
#define MOST_CELLS    1024

static void set_box(struct grid *grid, const struct lattice *lattice) {
    const float(*v)[3] = lattice->vector;
    grid->period = 1;
    grid->to_cell[0] = 1 / v[0][0];
    grid->to_cell[1] = -v[1][0] / (v[0][0] * v[1][1]);
    grid->to_cell[2] = (v[1][0] * v[2][1] / v[1][1] - v[2][0]) / (v[0][0] * v[2][2]);
    grid->to_cell[3] = 1 / v[1][1];
    grid->to_cell[4] = -v[2][1] / (v[1][1] * v[2][2]);
    grid->to_cell[5] = 1 / v[2][2];
    memcpy(grid->vector, lattice->vector, sizeof grid->vector);
    for (int i = 0; i < 3; i++) {
        grid->width[i] = (float)lattice->width[i];
    }
}

/* Wider than the targets by the reach, so that what lies outside is near none of them. */
static void set_extent(struct grid *grid, const struct extent *targets) {
    const int diagonal[3] = {0, 3, 5};
    grid->period = 0;
    for (int i = 0; i < 3; i++) {
        grid->origin[i] = targets->low[i] - 2 * grid->reach;
        grid->width[i] = targets->high[i] - targets->low[i] + 4 * grid->reach;
        grid->to_cell[diagonal[i]] = 1 / grid->width[i];
    }
}

int grid_set(struct grid *grid, const struct metric *metric, const struct extent *targets, float size, double most) {
    memset(grid, 0, sizeof *grid);
    const struct lattice *lattice = metric->lattice;
    double largest = 2.0 * size + 4 * metric->cutoff;
    for (int i = 0; i < 9; i++) {
        largest += 2.0 * fabsf(lattice->vector[i / 3][i % 3]);
    }
    const double slack = ROUNDINGS * EPSILON * largest;
    const double reach = metric->cutoff + slack;
    if (slack > LARGEST_SLACK * fmax(metric->cutoff, LEAST_REACH) || reach > LARGEST_REACH) {
        return 0;
    }
    for (int i = 0; lattice->kind != LATTICE_NONE && i < 3; i++) {
        if (reach > most * lattice->width[i]) {
            return 0;
        }
    }
    const double doubt = 2 * slack * reach + slack * slack + 8 * EPSILON * reach * reach;
    grid->reach = fmaxf((float)reach * (1 + 8 * (float)EPSILON), LEAST_REACH);
    grid->inside = nextafterf((float)(metric->limit - doubt), -INFINITY);
    grid->limit = nextafterf((float)(metric->limit + doubt), INFINITY);
    if (lattice->kind == LATTICE_NONE) {
        set_extent(grid, targets);
    } else {
        set_box(grid, lattice);
    }
    return 1;
}

void grid_count(const struct grid *grid, float edge, double most, int n[3]) {
    double wide = edge;
    for (;;) {
        double all = 1;
        for (int i = 0; i < 3; i++) {
            const double cells = floor(grid->width[i] / wide);
            n[i] = cells < 1 ? 1 : cells < MOST_CELLS ? (int)cells : MOST_CELLS;
            all *= n[i];
        }
        if (all <= most) {
            return;
        }
        wide *= 1.25;
    }
}
