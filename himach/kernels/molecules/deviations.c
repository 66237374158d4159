/* All pairs of many structures, four at a time: one of the first beside four of the second.
 *
 * The inner products of a pair are sums over its atoms in their order, in double precision, whatever stands beside it.
 * So a pair has the same bits in any part of any matrix. What is done to them is told in fit.c. */
#include "molecules/molecules.h"

#include "molecules/overlap.h"

#include <math.h>
#include <stdlib.h>

enum {
    ROWS = 32,   /* structures that are held beside the four */
    STRIDE = 256 /* atoms at a time, so that all of these stay in the cache */
};

#define DOUBT 1e-9 /* of what is compared, relative to the largest terms: rounding decides nothing */

/* Structures as they are multiplied: weighted, and about their centres if they are laid over one another. */
struct packed {
    double *positions; /* of each structure x, y, z of each atom; side by side, of each four of them */
    double *squares;   /* sum of the squares */
    size_t count;      /* of `squares`: a multiple of four where they are side by side */
};

/* The sums of one pair in each lane: the products of axes, and the squares of both. */
struct sums {
    quad inner[9];
    quad squares;
};

static void unpack(struct packed *packed) {
    free(packed->positions);
    free(packed->squares);
}

static double weight_of(const struct deviation *query, size_t atom) {
    return query->weights == NULL ? 1.0 : query->weights[atom];
}

static double total_weight(const struct deviation *query) {
    double total = 0;
    for (size_t i = 0; i < query->n; i++) {
        total += weight_of(query, i);
    }
    return total;
}

/* Pack one structure: its numbers lie `step` from one another. Returns the sum of their squares. */
static double pack_one(const float *positions, const struct deviation *query, double *to, size_t step) {
    double centre[3] = {0, 0, 0}, squares = 0;
    for (size_t i = 0; query->superpose && i < query->n; i++) {
        for (size_t axis = 0; axis < 3; axis++) {
            centre[axis] += weight_of(query, i) * positions[3 * i + axis];
        }
    }
    const double total = total_weight(query);
    for (size_t i = 0; i < query->n; i++) {
        const double root = query->weights == NULL ? 1.0 : sqrt(query->weights[i]);
        for (size_t axis = 0; axis < 3; axis++) {
            const double x = root * (positions[3 * i + axis] - centre[axis] / total);
            to[step * (3 * i + axis)] = x;
            squares += x * x;
        }
    }
    return squares;
}

/* Pack structures, `lanes` of them side by side; those that lack in the last are zero. */
static int pack(struct structures structures, const struct deviation *query, size_t lanes, struct packed *packed) {
    const size_t count = (structures.count + lanes - 1) / lanes * lanes, size = 3 * query->n;
    packed->count = count;
    packed->positions = calloc(count * size, sizeof *packed->positions);
    packed->squares = calloc(count, sizeof *packed->squares);
    if (packed->positions == NULL || packed->squares == NULL) {
        return -1;
    }
    for (size_t i = 0; i < structures.count; i++) {
        double *to = &packed->positions[i / lanes * lanes * size + i % lanes];
        packed->squares[i] = pack_one(&structures.positions[i * size], query, to, lanes);
    }
    return 0;
}

/* Add to the products of one structure with four, over n atoms. */
CLONES static void multiply(const double *left, const double *four, size_t n, quad inner[9]) {
    quad xu = inner[0], xv = inner[1], xw = inner[2], yu = inner[3], yv = inner[4], yw = inner[5], zu = inner[6],
         zv = inner[7], zw = inner[8];
    for (size_t i = 0; i < n; i++) {
        const double x = left[3 * i], y = left[3 * i + 1], z = left[3 * i + 2];
        quad u, v, w;
        memcpy(&u, &four[QUAD * (3 * i)], sizeof u);
        memcpy(&v, &four[QUAD * (3 * i + 1)], sizeof v);
        memcpy(&w, &four[QUAD * (3 * i + 2)], sizeof w);
        xu += x * u;
        xv += x * v;
        xw += x * w;
        yu += y * u;
        yv += y * v;
        yw += y * w;
        zu += z * u;
        zv += z * v;
        zw += z * w;
    }
    inner[0] = xu, inner[1] = xv, inner[2] = xw;
    inner[3] = yu, inner[4] = yv, inner[5] = yw;
    inner[6] = zu, inner[7] = zv, inner[8] = zw;
}

/* The same for structures that stay where they lie: all products of an axis with itself go to the first of the nine. */
CLONES static void multiply_in_place(const double *left, const double *four, size_t n, quad inner[9]) {
    quad sum = inner[0];
    for (size_t i = 0; i < 3 * n; i++) {
        quad u;
        memcpy(&u, &four[QUAD * i], sizeof u);
        sum += left[i] * u;
    }
    inner[0] = sum;
}

/* The overlap of one lane, if superposition finds it; the matrix's trace if nothing is laid over anything. */
static double overlap_of(const struct sums *sums, int lane, int superpose) {
    double s[9];
    for (int i = 0; i < 9; i++) {
        s[i] = sums->inner[i][lane];
    }
    return superpose ? fit_overlap(s, sums->squares[lane] / 2) : s[0] + s[4] + s[8];
}

static double deviation_of(const struct sums *sums, int lane, int superpose, double weight) {
    return sqrt(fabs(sums->squares[lane] - 2 * overlap_of(sums, lane, superpose)) / weight);
}

/* Deviations of four pairs. */
CLONES static void measure(const struct sums *sums, int superpose, double weight, double to[QUAD]) {
    quad overlap = sums->inner[0] + sums->inner[4] + sums->inner[8];
    const quad guess = sums->squares / 2.0;
    const unsigned hard = superpose ? overlap_newton(sums->inner, &guess, &overlap) : 0;
    for (int lane = 0; lane < QUAD; lane++) {
        to[lane] = hard >> lane & 1 ? deviation_of(sums, lane, superpose, weight)
                                    : sqrt(fabs(sums->squares[lane] - 2 * overlap[lane]) / weight);
    }
}

/* A bit for each lane whose largest eigenvalue is a threshold or more, and one for each lane that rounding leaves in
 * doubt.
 *
 * All four eigenvalues are real and their sum is zero. So the largest is below a positive threshold if and only if the
 * polynomial and its first two derivatives are positive there. */
INLINE unsigned at_least(const struct sums *sums, const quad *threshold, unsigned *doubt) {
    struct polynomial p;
    make_polynomial(sums->inner, &p);
    const quad t = *threshold, square = t * t, most = sums->squares / 2.0;
    const quad value = (square + p.c2) * square + p.c1 * t + p.c0;
    const quad slope = (4.0 * square + 2.0 * p.c2) * t + p.c1;
    const quad bend = 12.0 * square + 2.0 * p.c2;
    const quad margin = DOUBT * (most * most) * (most * most);
    const whole positive = (whole)(t > 0.0);
    const whole inside =
        ~positive | (whole)(value < -margin) | (whole)(slope * t < -margin) | (whole)(bend * square < -margin);
    const whole outside =
        positive & (whole)(value > margin) & (whole)(slope * t > margin) & (whole)(bend * square > margin);
    const whole neither = ~(inside | outside);
    unsigned bits = 0;
    for (int lane = 0; lane < QUAD; lane++) {
        bits |= (inside[lane] ? 1U : 0) << lane;
        *doubt |= (neither[lane] ? 1U : 0) << lane;
    }
    return bits;
}

/* A bit for each of four pairs that are within the cutoff. */
CLONES static unsigned compare(const struct sums *sums, const struct deviation *query, double weight) {
    const quad threshold = (sums->squares - weight * query->cutoff * query->cutoff) / 2.0;
    unsigned doubt = query->superpose ? 0 : 15, bits = 0;
    if (query->superpose) {
        bits = at_least(sums, &threshold, &doubt);
    }
    for (int lane = 0; lane < QUAD; lane++) {
        if (doubt >> lane & 1 && deviation_of(sums, lane, query->superpose, weight) <= query->cutoff) {
            bits |= 1U << lane;
        }
    }
    return bits;
}

/* Whether the sizes alone keep four pairs beyond the cutoff: two structures overlap no more than the roots of their
 * squares multiplied. */
static int far_apart(double square, const double squares[QUAD], const struct deviation *query, double weight) {
    const double reach = weight * query->cutoff * query->cutoff;
    for (int lane = 0; lane < QUAD; lane++) {
        const double gap = sqrt(square) - sqrt(squares[lane]);
        if (!(gap * gap > reach + DOUBT * (square + squares[lane]))) {
            return 0;
        }
    }
    return 1;
}

/* Where the answers go: deviations, or bits. */
struct target {
    double *deviations;
    uint8_t *bits;
    size_t columns;
    int triangle; /* whether both are the same structures: each pair has two places */
};

static void set(const struct target *to, size_t i, size_t j, double deviation, unsigned bit) {
    if (to->bits == NULL) {
        to->deviations[i * to->columns + j] = deviation;
    } else if (bit) {
        to->bits[i * ((to->columns + 7) / 8) + j / 8] |= (uint8_t)(1U << j % 8);
    }
}

static void put(const struct target *to, size_t i, size_t j, double deviation, unsigned bit) {
    if (!to->triangle) {
        set(to, i, j, deviation, bit);
    } else if (i < j) {
        set(to, i, j, deviation, bit);
        set(to, j, i, deviation, bit);
    } else if (i == j) {
        set(to, i, j, 0, 1);
    }
}

/* Some structures, at most ROWS from `first` on, beside the four that begin at `column`. */
static void compare_rows(const struct packed *a, const struct packed *b, size_t first, size_t rows, size_t column,
                         const struct deviation *query, double weight, const struct target *to) {
    struct sums sums[ROWS];
    unsigned skip[ROWS];
    const size_t size = 3 * query->n;
    const double *four = &b->positions[column * size];
    for (size_t row = 0; row < rows; row++) {
        memset(&sums[row], 0, sizeof sums[row]);
        const double square = a->squares[first + row];
        for (size_t lane = 0; lane < QUAD; lane++) {
            sums[row].squares[lane] = square + b->squares[column + lane];
        }
        skip[row] = to->bits != NULL && far_apart(square, &b->squares[column], query, weight);
    }
    for (size_t atom = 0; atom < query->n; atom += STRIDE) {
        const size_t n = query->n - atom < STRIDE ? query->n - atom : STRIDE;
        for (size_t row = 0; row < rows; row++) {
            if (!skip[row]) {
                const double *left = &a->positions[(first + row) * size + 3 * atom];
                (query->superpose ? multiply : multiply_in_place)(left, &four[3 * atom * QUAD], n, sums[row].inner);
            }
        }
    }
    for (size_t row = 0; row < rows; row++) {
        double deviations[QUAD] = {0};
        unsigned bits = 0;
        if (to->bits == NULL) {
            measure(&sums[row], query->superpose, weight, deviations);
        } else if (!skip[row]) {
            bits = compare(&sums[row], query, weight);
        }
        for (size_t lane = 0; lane < QUAD && column + lane < to->columns; lane++) {
            put(to, first + row, column + lane, deviations[lane], bits >> lane & 1);
        }
    }
}

int deviations_find(struct structures a, struct structures b, const struct deviation *query, double *deviations,
                    uint8_t *bits) {
    struct target to = {.triangle = b.positions == NULL};
    struct packed rows = {0}, columns = {0};
    to.deviations = deviations;
    to.bits = bits;
    if (to.triangle) {
        b = a;
    }
    to.columns = b.count;
    const int status = pack(a, query, 1, &rows) != 0 || pack(b, query, QUAD, &columns) != 0 ? -1 : 0;
    const double weight = total_weight(query);
    for (size_t column = 0; status == 0 && column < b.count; column += QUAD) {
        const size_t end = to.triangle && column + QUAD < a.count ? column + QUAD : a.count;
        for (size_t first = 0; first < end; first += ROWS) {
            compare_rows(&rows, &columns, first, end - first < ROWS ? end - first : ROWS, column, query, weight, &to);
        }
    }
    unpack(&rows);
    unpack(&columns);
    return status;
}
