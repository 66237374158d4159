#include "box/metric.h"

#include "clones.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* How capped_distance() chooses its way. */
#define FEW          ((size_t)10)
#define FEW_OF_ONE   ((size_t)100)
#define MANY_PAIRS   1e8
#define LARGE_CUTOFF 0.3F
#define SHIFT        0.1

struct extent extent_none(void) {
    const float most = INFINITY;
    return (struct extent){{most, most, most}, {-most, -most, -most}, 0};
}

CLONES void extent_add(struct extent *extent, struct group group) {
    enum { TURN = 3 * LANES };
    float low[TURN], high[TURN];
    uint32_t size[TURN] = {0};
    for (int k = 0; k < TURN; k++) {
        low[k] = extent->low[k % 3];
        high[k] = extent->high[k % 3];
    }
    const size_t n = 3 * group.n;
    const float *const x = group.positions;
    for (size_t i = 0; i < n; i += TURN) {
        const int some = n - i < TURN ? (int)(n - i) : TURN;
        for (int k = 0; k < some; k++) {
            uint32_t bits;
            memcpy(&bits, &x[i + (size_t)k], sizeof bits);
            bits &= 0x7FFFFFFFU; /* magnitudes as integers are in order, NaN and infinity above all */
            size[k] = bits > size[k] ? bits : size[k];
            low[k] = x[i + (size_t)k] < low[k] ? x[i + (size_t)k] : low[k];
            high[k] = x[i + (size_t)k] > high[k] ? x[i + (size_t)k] : high[k];
        }
    }
    uint32_t most;
    memcpy(&most, &extent->size, sizeof most);
    for (int k = 0; k < TURN; k++) {
        most = size[k] > most ? size[k] : most;
        extent->low[k % 3] = low[k] < extent->low[k % 3] ? low[k] : extent->low[k % 3];
        extent->high[k % 3] = high[k] > extent->high[k % 3] ? high[k] : extent->high[k % 3];
    }
    memcpy(&extent->size, &most, sizeof most);
}

static void set_sizes(const struct lattice *lattice, const struct extent *extent, float sizes[3]) {
    for (int i = 0; i < 3; i++) {
        if (lattice->kind == LATTICE_NONE) {
            sizes[i] = extent->high[i] - extent->low[i];
            continue;
        }
        float low = lattice->vector[0][i], high = low;
        for (int j = 1; j < 3; j++) {
            low = fminf(low, lattice->vector[j][i]);
            high = fmaxf(high, lattice->vector[j][i]);
        }
        sizes[i] = lattice->kind == LATTICE_RIGHT ? lattice->vector[i][i] : high - low;
    }
}

static int is_by_grid(const struct lattice *lattice, struct group a, const struct group *b, const struct extent *extent,
                      double cutoff) {
    if (lattice->kind != LATTICE_NONE && cutoff > lattice->grid_cutoff) {
        return 0; /* where MDAnalysis's grid raises an error */
    }
    if (b == NULL) {
        return a.n >= FEW_OF_ONE;
    }
    if (a.n < FEW || b->n < FEW) {
        return 0;
    }
    if ((double)a.n * (double)b->n >= MANY_PAIRS) {
        return 1;
    }
    float sizes[3];
    set_sizes(lattice, extent, sizes);
    for (int i = 0; i < 3; i++) {
        if ((float)cutoff > LARGE_CUTOFF * sizes[i]) {
            return 0;
        }
    }
    return 1;
}

double least_square(double distance) {
    double square = distance * distance;
    while (sqrt(square) >= distance && square > 0) {
        square = nextafter(square, 0);
    }
    while (sqrt(square) < distance) {
        square = nextafter(square, INFINITY);
    }
    return square;
}

struct metric metric_choose(const struct lattice *lattice, struct group a, const struct group *b,
                            const struct extent *extent, double cutoff) {
    struct metric metric = {.lattice = lattice, .cutoff = cutoff};
    metric.grid = is_by_grid(lattice, a, b, extent, cutoff);
    if (metric.grid) {
        metric.limit = cutoff * cutoff;
    } else {
        /* All pairs compare the root: the greatest square whose root is no more than the cutoff. */
        metric.limit = nextafter(least_square(nextafter(cutoff, INFINITY)), 0);
    }
    if (metric.grid && lattice->kind == LATTICE_NONE) {
        const float margin = b == NULL ? 0 : (float)(SHIFT * cutoff);
        float size = 0;
        for (int i = 0; i < 3; i++) {
            size = fmaxf(size, extent->high[i] - extent->low[i]);
        }
        for (int i = 0; i < 3; i++) {
            metric.shift[i] = extent->low[i] - (b == NULL ? (float)SHIFT * size : margin);
        }
    }
    return metric;
}

void metric_place(const struct metric *metric, float position[3]) {
    switch (metric->lattice->kind) {
    case LATTICE_NONE:
        for (int i = 0; i < 3; i++) {
            position[i] -= metric->shift[i];
        }
        break;
    case LATTICE_RIGHT:
        if (metric->grid) {
            lattice_fold(metric->lattice, position);
        }
        break;
    case LATTICE_TILTED:
        lattice_fold(metric->lattice, position);
        break;
    }
}

void metric_place_all(const struct metric *metric, struct group group, float *to) {
    const enum lattice_kind kind = metric->lattice->kind;
    if (kind == LATTICE_TILTED || (kind == LATTICE_RIGHT && metric->grid)) {
        lattice_fold_all(metric->lattice, group.positions, group.n, to);
        return;
    }
    for (size_t i = 0; i < 3 * group.n; i++) {
        to[i] = group.positions[i] - metric->shift[i % 3];
    }
}

/* Differences of places are single-precision, all that follows is double. */

static double square_of_right(const struct metric *metric, const double difference[3]) {
    double square = 0;
    for (int i = 0; i < 3; i++) {
        const float edge = metric->lattice->vector[i][i];
        double x = difference[i];
        if (metric->grid) {
            const float half = 0.5F * edge;
            x = x > half ? x - edge : x <= -half ? x + edge : x;
        } else {
            const float inverse = (float)(1.0 / edge);
            const double periods = inverse * x;
            x = edge * (periods - round(periods));
        }
        square += x * x;
    }
    return square;
}

static double square_of_image(const float vector[3][3], const double d[3], int i, int j, int k) {
    const double x = d[0] + (double)(vector[0][0] * (float)i) + (double)(vector[1][0] * (float)j) +
                     (double)(vector[2][0] * (float)k);
    const double y = d[1] + (double)(vector[1][1] * (float)j) + (double)(vector[2][1] * (float)k);
    const double z = d[2] + (double)(vector[2][2] * (float)k);
    return x * x + y * y + z * z;
}

static double square_of_tilted(const struct metric *metric, const double d[3]) {
    double least = INFINITY;
    for (int i = -1; i <= 1; i++) {
        for (int j = -1; j <= 1; j++) {
            for (int k = -1; k <= 1; k++) {
                const double square = square_of_image(metric->lattice->vector, d, i, j, k);
                least = square < least ? square : least;
            }
        }
    }
    return least;
}

static void subtract(const float a[3], const float b[3], double difference[3]) {
    for (int i = 0; i < 3; i++) {
        const float single = b[i] - a[i];
        difference[i] = single;
    }
}

double metric_square(const struct metric *metric, const float a[3], const float b[3]) {
    double d[3];
    subtract(a, b, d);
    switch (metric->lattice->kind) {
    case LATTICE_RIGHT:
        return square_of_right(metric, d);
    case LATTICE_TILTED:
        return square_of_tilted(metric, d);
    default:
        return d[0] * d[0] + d[1] * d[1] + d[2] * d[2];
    }
}

double metric_square_near(const struct metric *metric, const float a[3], const float b[3]) {
    if (metric->lattice->kind != LATTICE_TILTED) {
        return metric_square(metric, a, b);
    }
    double d[3];
    subtract(a, b, d);
    const float(*v)[3] = metric->lattice->vector;
    const double k = -rint(d[2] / v[2][2]);
    const double j = -rint((d[1] + k * v[2][1]) / v[1][1]);
    const double i = -rint((d[0] + k * v[2][0] + j * v[1][0]) / v[0][0]);
    return square_of_image(v, d, (int)i, (int)j, (int)k);
}

int metric_within(const struct metric *metric, const float a[3], const float b[3]) {
    float x[3], y[3];
    memcpy(x, a, sizeof x);
    memcpy(y, b, sizeof y);
    metric_place(metric, x);
    metric_place(metric, y);
    return metric_square(metric, x, y) <= metric->limit;
}
