/* Squared distances of the atoms of many structures from fixed positions, added up without error. */
#include "molecules/molecules.h"
#include "molecules/quad.h"

#include <stdlib.h>

#define SCALE 0x1p20
#define LIMIT 0x1p30   /* units: squares have less than 62 bits, three together */
#define MAGIC 0x1.8p52 /* what is added to it is rounded to an integer, in its last bits */

/* In units, rounded to nearest; 0 where they are too many, or no number, which `*far` gets as bits. */
INLINE whole in_units(const quad *length, whole *far) {
    const quad none = {MAGIC, MAGIC, MAGIC, MAGIC};
    quad scaled = *length * SCALE;
    const whole near = (scaled < LIMIT) & (scaled > -LIMIT);
    whole bits, zero;
    memcpy(&bits, &scaled, sizeof bits);
    bits &= near;
    memcpy(&scaled, &bits, sizeof bits);
    scaled += MAGIC;
    memcpy(&bits, &scaled, sizeof bits);
    memcpy(&zero, &none, sizeof zero);
    *far |= ~near;
    return bits - zero;
}

INLINE void add(int64_t *sums, size_t count, const whole *values) {
    whole before = {0};
    memcpy(&before, sums, count * sizeof *sums);
    before += *values;
    memcpy(sums, &before, count * sizeof *sums);
}

INLINE void add_four(const struct fluctuation *query, const float *positions, const double r[9], const double shift[3],
                     size_t i, size_t count, int64_t *sums, whole *far) {
    const double origin[3] = {0};
    const size_t n = query->n;
    const struct atoms a = take(positions, NULL, i, n, origin);
    double fixed[3 * QUAD] = {0};
    memcpy(fixed, &query->fixed[3 * i], 3 * count * sizeof *fixed);
    const quad u = {fixed[0], fixed[3], fixed[6], fixed[9]}, v = {fixed[1], fixed[4], fixed[7], fixed[10]};
    const quad w = {fixed[2], fixed[5], fixed[8], fixed[11]};
    const quad x = r[0] * a.x + r[1] * a.y + r[2] * a.z + shift[0] - u;
    const quad y = r[3] * a.x + r[4] * a.y + r[5] * a.z + shift[1] - v;
    const quad z = r[6] * a.x + r[7] * a.y + r[8] * a.z + shift[2] - w;
    whole beyond = {0};
    const whole p = in_units(&x, &beyond), q = in_units(&y, &beyond), s = in_units(&z, &beyond);
    const whole squares = p * p + q * q + s * s, upper = squares >> 32, lower = squares & 0xffffffff;
    add(&sums[i], count, &p);
    add(&sums[n + i], count, &q);
    add(&sums[2 * n + i], count, &s);
    add(&sums[3 * n + i], count, &upper);
    add(&sums[4 * n + i], count, &lower);
    for (size_t k = count; k < QUAD; k++) {
        beyond[k] = 0; /* no atoms */
    }
    *far |= beyond;
}

/* Add one structure; returns whether an atom is too far off. */
CLONES static int add_one(const struct fluctuation *query, const float *positions, const double rotation[9],
                          const double shift[3], int64_t *sums) {
    const size_t n = query->n, full = n - n % QUAD;
    whole far = {0};
    for (size_t i = 0; i < full; i += QUAD) {
        add_four(query, positions, rotation, shift, i, QUAD, sums, &far);
    }
    if (full < n) {
        add_four(query, positions, rotation, shift, full, n - full, sums, &far);
    }
    return (far[0] | far[1] | far[2] | far[3]) != 0;
}

int fluctuation_add(const struct fluctuation *query, const float *structures, size_t count, int64_t *sums, size_t *at) {
    float *subset = NULL;
    if (query->reference != NULL && query->fitted != NULL) {
        subset = malloc(3 * query->n_fitted * sizeof *subset);
        if (subset == NULL) {
            return 1;
        }
    }
    int failed = 0;
    for (size_t k = 0; k < count && !failed; k++) {
        const float *positions = &structures[3 * query->n * k], *fitted = positions;
        double rotation[9] = {1, 0, 0, 0, 1, 0, 0, 0, 1}, shift[3] = {0};
        if (subset != NULL) {
            for (size_t i = 0; i < query->n_fitted; i++) {
                memcpy(&subset[3 * i], &positions[3 * (size_t)query->fitted[i]], 3 * sizeof *subset);
            }
            fitted = subset;
        }
        if (query->reference != NULL) {
            fit_rotation(fitted, query->reference, query->weights, query->n_fitted, rotation, shift);
        }
        if (add_one(query, positions, rotation, shift, sums)) {
            *at = k;
            failed = 2;
        }
    }
    free(subset);
    return failed;
}
