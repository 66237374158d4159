#include "surface/spiral.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Cosine and sine of the golden angle, of which points are products: a library's functions round as they like. */
#define COSINE (-0.73736887807831985597)
#define SINE   0.67549029426152362720

/* Points that follow one another are sorted into parts of this size. */
#define LEAST ((size_t)8)

struct point {
    double at[3];
    double key;
    size_t number;
};

static void place(struct point *points, size_t n) {
    double cosine = 1, sine = 0;
    for (size_t i = 0; i < n; i++) {
        const double y = (2 * (double)i + 1) / (double)n - 1, radius = sqrt(1 - y * y);
        points[i] = (struct point){.at = {cosine * radius, y, sine * radius}, .number = i};
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

/* The axis on which points spread most. */
static int widest_axis(const struct point *points, size_t n) {
    int axis = 0;
    double widest = -1;
    for (int i = 0; i < 3; i++) {
        double low = INFINITY, high = -INFINITY;
        for (size_t k = 0; k < n; k++) {
            low = fmin(low, points[k].at[i]);
            high = fmax(high, points[k].at[i]);
        }
        if (high - low > widest) {
            widest = high - low;
            axis = i;
        }
    }
    return axis;
}

/* Halve the points, each half by itself, down to the least parts. */
static void sort(struct point *points, size_t n) {
    if (n <= LEAST) {
        return;
    }
    const int axis = widest_axis(points, n);
    for (size_t k = 0; k < n; k++) {
        points[k].key = points[k].at[axis];
    }
    qsort(points, n, sizeof *points, compare);
    const size_t half = (n / LEAST + 1) / 2 * LEAST;
    sort(points, half);
    sort(points + half, n - half);
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
    sort(points, n);
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
