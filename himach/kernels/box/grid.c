#include "box/grid.h"

/* Rounding errors that a single-precision distance of two atoms collects, in units of the largest coordinate: of
 * folding along three axes, of an image, and of the metric's difference. Positions that the metric has placed are in
 * the box, up to a rounding; others are folded twice, by the metric and here. */
#define ROUNDINGS          64.0
#define ROUNDINGS_OF_PLACE 12.0
#define EPSILON            0x1p-24
#define LARGEST_SLACK      0.05
#define LEAST_REACH        1.0F
#define LARGEST_REACH      1e9
#define MOST_CELLS         1024

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

/* No coordinate is larger, nor one of an image. */
static double largest_coordinate(const struct lattice *lattice, double size) {
    for (int i = 0; i < 3; i++) {
        double sum = 0;
        for (int j = 0; j < 3; j++) {
            sum += fabsf(lattice->vector[j][i]);
        }
        size = fmax(size, 2 * sum);
    }
    return size;
}

int grid_set(struct grid *grid, const struct metric *metric, const struct extent *targets, float size, int placed,
             double most) {
    memset(grid, 0, sizeof *grid);
    const struct lattice *lattice = metric->lattice;
    const double largest = largest_coordinate(lattice, 2.0 * size) + 4 * metric->cutoff;
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
    const double error = (placed ? ROUNDINGS_OF_PLACE : ROUNDINGS) * EPSILON * largest;
    const double margin = 2 * error * reach + error * error + 8 * EPSILON * reach * reach;
    grid->reach = fmaxf((float)reach * (1 + 8 * (float)EPSILON), LEAST_REACH);
    grid->margin = (float)margin;
    grid->inside = nextafterf((float)(metric->limit - margin), -INFINITY);
    grid->limit = nextafterf((float)(metric->limit + margin), INFINITY);
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
