#include "surface/caps.h"

#include <math.h>
#include <stdlib.h>

/* --- The points of a sphere --------------------------------------------------------------------------------------- */

/* Cosine and sine of the golden angle, of which points are products: a library's functions round as they like. */
#define COSINE (-0.73736887807831985597)
#define SINE   0.67549029426152362720

/* Points are sorted by the cells of a lattice of this width: those that follow one another are near each other. */
#define CELL 0.5

struct point {
    double at[3];
    int key;
    size_t number;
};

/* The bits of three numbers of cells in turn: cells that follow one another have a side in common, most of them. */
static int key_of(double x, double y, double z) {
    const int cells[3] = {(int)((x + 1) / CELL), (int)((y + 1) / CELL), (int)((z + 1) / CELL)};
    int key = 0;
    for (int bit = 0; bit < 9; bit++) {
        key |= (cells[bit % 3] >> bit / 3 & 1) << bit;
    }
    return key;
}

static void place(struct point *points, size_t n) {
    double cosine = 1, sine = 0;
    for (size_t i = 0; i < n; i++) {
        const double y = (2 * (double)i + 1) / (double)n - 1, radius = sqrt(1 - y * y);
        const double x = cosine * radius, z = sine * radius;
        points[i] = (struct point){{x, y, z}, key_of(x, y, z), i};
        const double next = cosine * COSINE - sine * SINE;
        sine = sine * COSINE + cosine * SINE;
        cosine = next;
    }
}

static int compare(const void *first, const void *second) {
    const struct point *a = first, *b = second;
    if (a->key != b->key) {
        return a->key < b->key ? -1 : 1;
    }
    return a->number < b->number ? -1 : 1;
}

int spiral_set(struct spiral *spiral, size_t n) {
    struct point *points = malloc(n * sizeof *points);
    spiral->n = n;
    spiral->exact = malloc(n * sizeof *spiral->exact);
    spiral->x = malloc(3 * n * sizeof *spiral->x);
    if (points == NULL || spiral->exact == NULL || spiral->x == NULL) {
        free(points);
        spiral_free(spiral);
        return -1;
    }
    spiral->y = spiral->x + n;
    spiral->z = spiral->y + n;
    place(points, n);
    qsort(points, n, sizeof *points, compare);
    for (size_t k = 0; k < n; k++) {
        memcpy(spiral->exact[k], points[k].at, sizeof spiral->exact[k]);
        spiral->x[k] = (float)points[k].at[0];
        spiral->y[k] = (float)points[k].at[1];
        spiral->z[k] = (float)points[k].at[2];
    }
    free(points);
    return 0;
}

void spiral_free(struct spiral *spiral) {
    free(spiral->exact);
    free(spiral->x);
    memset(spiral, 0, sizeof *spiral);
}

/* --- Caps --------------------------------------------------------------------------------------------------------- */

enum { FACES = 6, MOST_CELLS = 10, ROW_BITS = CAP_GROUP * 32 * LANES, BISECTIONS = 50 };
#define MOST_BYTES (4.0 * 1024 * 1024)
/* Radians by which caps are taken for smaller, for what single precision says of their directions and sizes. */
#define SLACK 1e-4

/* The borders of cells along an edge: where CAP_WARP is a multiple of a cell's width. */
static void set_borders(double *borders, int side) {
    for (int i = 0; i <= side; i++) {
        double low = -1, high = 1;
        for (int step = 0; step < BISECTIONS; step++) {
            const double middle = (low + high) / 2;
            if (CAP_WARP(middle) < 2.0 * i / side - 1) {
                low = middle;
            } else {
                high = middle;
            }
        }
        borders[i] = (low + high) / 2;
    }
}

static void set_direction(double direction[3], int face, double u, double w) {
    const double length = sqrt(1 + u * u + w * w), major = (face % 2 ? -1 : 1) / length;
    const double x = face / 2 == 0 ? major : u / length, y = face / 2 == 1   ? major
                                                             : face / 2 == 0 ? u / length
                                                                             : w / length;
    direction[0] = x;
    direction[1] = y;
    direction[2] = face / 2 == 2 ? major : w / length;
}

static double dot(const double a[3], const double b[3]) {
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
}

/* The widest angle between a cell's middle and a direction in it: at a corner, as its edges are great circles. */
static double cell_radius(const double middle[3], int face, const double u[2], const double w[2]) {
    double least = 1;
    for (int corner = 0; corner < 4; corner++) {
        double direction[3];
        set_direction(direction, face, u[corner / 2], w[corner % 2]);
        least = fmin(least, dot(middle, direction));
    }
    return acos(least);
}

/* Fill the rows of one direction. */
static void set_rows(const struct caps *caps, const struct spiral *spiral, const double middle[3], double radius,
                     ints *rows) {
    const size_t n_words = caps->width * LANES;
    double limits[CAP_SIZES]; /* a point is in the cap if its cosine to the middle is at least this */
    for (int size = 0; size < CAP_SIZES; size++) {
        const double angle = acos((double)CAP_LARGEST + size * (double)CAP_STEP) - radius - SLACK;
        limits[size] = size == CAP_SIZES - 1 || !(angle >= 0) ? INFINITY : cos(angle);
    }
    uint32_t *words = (uint32_t *)(void *)rows;
    memset(words, 0, CAP_SIZES * n_words * sizeof *words);
    for (size_t k = 0; k < spiral->n; k++) {
        const double cosine = dot(middle, spiral->exact[k]);
        for (int size = 0; size < CAP_SIZES && cosine >= limits[size]; size++) {
            words[(size_t)size * n_words + k / 32] |= 1U << k % 32;
        }
    }
    for (size_t v = 0; v < CAP_SIZES * caps->width; v++) {
        rows[v] = caps->all[v % caps->width] & ~rows[v];
    }
}

int caps_set(struct caps *caps, const struct spiral *spiral) {
    caps->width = (spiral->n + ROW_BITS - 1) / ROW_BITS * CAP_GROUP;
    const size_t row = caps->width * sizeof(ints);
    const double affordable = sqrt(MOST_BYTES / (FACES * CAP_SIZES * (double)row));
    caps->side = affordable < 1 ? 1 : affordable < MOST_CELLS ? (int)affordable : MOST_CELLS;
    const size_t n_cells = FACES * (size_t)caps->side * (size_t)caps->side;
    caps->outside = aligned_alloc(64, n_cells * CAP_SIZES * row);
    caps->all = aligned_alloc(64, row);
    if (caps->outside == NULL || caps->all == NULL) {
        caps_free(caps);
        return -1;
    }
    memset(caps->all, 0, row);
    for (size_t k = 0; k < spiral->n; k++) {
        ((uint32_t *)(void *)caps->all)[k / 32] |= 1U << k % 32;
    }
    double borders[MOST_CELLS + 1];
    set_borders(borders, caps->side);
    ints *rows = caps->outside;
    for (int face = 0; face < FACES; face++) {
        for (int i = 0; i < caps->side; i++) {
            for (int j = 0; j < caps->side; j++, rows += CAP_SIZES * caps->width) {
                double middle[3];
                set_direction(middle, face, (borders[i] + borders[i + 1]) / 2, (borders[j] + borders[j + 1]) / 2);
                set_rows(caps, spiral, middle, cell_radius(middle, face, &borders[i], &borders[j]), rows);
            }
        }
    }
    return 0;
}

void caps_free(struct caps *caps) {
    free(caps->outside);
    free(caps->all);
    memset(caps, 0, sizeof *caps);
}
