#include "box/lattice.h"

#include "clones.h"

#include <math.h>
#include <string.h>

#define RIGHT_ANGLE 90.0F

static double cosine(float degrees) {
    return degrees == RIGHT_ANGLE ? 0.0 : cos(degrees * (M_PI / 180.0));
}

static void set_widths(struct lattice *lattice) {
    const double ax = lattice->vector[0][0], bx = lattice->vector[1][0], by = lattice->vector[1][1];
    const double cx = lattice->vector[2][0], cy = lattice->vector[2][1], cz = lattice->vector[2][2];
    const double normal = bx * cy - by * cx;
    lattice->width[0] = ax * by * cz / sqrt(by * cz * by * cz + bx * cz * bx * cz + normal * normal);
    lattice->width[1] = by * cz / sqrt(cy * cy + cz * cz);
    lattice->width[2] = cz;
}

static void set_grid_cutoff(struct lattice *lattice, const float angles[3]) {
    float least = INFINITY;
    for (int i = 0; i < 3; i++) {
        const float radians = (float)(angles[i] * (M_PI / 180.0)), sine = (float)sin((double)radians);
        for (int j = 0; j < 3; j++) {
            least = j == i ? least : fminf(least, lattice->vector[j][j] * sine);
        }
    }
    lattice->grid_cutoff = least / 2;
}

int lattice_set(struct lattice *lattice, const float *box) {
    memset(lattice, 0, sizeof *lattice);
    lattice->kind = LATTICE_NONE;
    if (box == NULL) {
        return 0;
    }
    for (int i = 0; i < 3; i++) {
        if (!(box[i] > 0 && box[i] < INFINITY && box[3 + i] > 0 && box[3 + i] < 180)) {
            return -1;
        }
    }
    if (box[3] == RIGHT_ANGLE && box[4] == RIGHT_ANGLE && box[5] == RIGHT_ANGLE) {
        lattice->kind = LATTICE_RIGHT;
        for (int i = 0; i < 3; i++) {
            lattice->vector[i][i] = box[i];
            lattice->width[i] = box[i];
        }
        set_grid_cutoff(lattice, &box[3]);
        return 0;
    }
    const double b = box[1], c = box[2];
    const double alpha = cosine(box[3]), beta = cosine(box[4]), gamma = cosine(box[5]);
    const double sine = box[5] == RIGHT_ANGLE ? 1.0 : sin(box[5] * (M_PI / 180.0));
    const double cx = c * beta, cy = c * (alpha - beta * gamma) / sine;
    const double cz = sqrt(c * c - cx * cx - cy * cy);
    if (!(cz > 0)) {
        return -1;
    }
    lattice->kind = LATTICE_TILTED;
    lattice->vector[0][0] = box[0];
    lattice->vector[1][0] = (float)(b * gamma);
    lattice->vector[1][1] = (float)(b * sine);
    lattice->vector[2][0] = (float)cx;
    lattice->vector[2][1] = (float)cy;
    lattice->vector[2][2] = (float)cz;
    set_widths(lattice);
    set_grid_cutoff(lattice, &box[3]);
    return 0;
}

/* A period is added in single precision; what is further away is folded by division, which may miss by a rounding. */

static float fold_axis(float x, float edge) {
    const double inverse = 1.0 / (double)edge;
    float near = x < 0 ? x + edge : x;
    if (near < 0) {
        const float far = x - (float)floor(x * inverse) * edge;
        return far < 0 ? far + edge : far;
    }
    if (near >= edge) {
        near -= edge;
    }
    if (near >= edge) {
        const float far = x - (float)floor(x * inverse) * edge;
        return far >= edge ? far - edge : far;
    }
    return near;
}

/* Move by one period along an axis towards [low, high); returns whether one was enough. */
static int step(float p[3], const float vector[3], int axis, double low, double high) {
    if (p[axis] < low) {
        for (int i = 0; i <= axis; i++) {
            p[i] += vector[i];
        }
        if (p[axis] < low) {
            return 0;
        }
    }
    /* No "else": -1e-9 + 10 is 10 in single precision. */
    if (p[axis] >= high) {
        for (int i = 0; i <= axis; i++) {
            p[i] -= vector[i];
        }
        if (p[axis] >= high) {
            return 0;
        }
    }
    return 1;
}

struct slopes {
    double a, b, c;        /* inverses of the diagonal */
    double ab, ac, bc, cy; /* what one axis's coordinate takes from the others */
};

static struct slopes slopes_of(const struct lattice *lattice) {
    const float(*v)[3] = lattice->vector;
    struct slopes s;
    s.a = 1.0 / (double)v[0][0];
    s.b = 1.0 / (double)v[1][1];
    s.c = 1.0 / (double)v[2][2];
    s.ab = -v[1][0] * s.a * s.b;
    s.ac = (-s.ab * v[2][1] - v[2][0] * s.a) * s.c;
    s.bc = -v[2][1] * s.b * s.c;
    s.cy = (double)v[2][1] * s.c;
    return s;
}

static int step_all(const struct lattice *lattice, const struct slopes *s, float p[3], int insist) {
    const float(*v)[3] = lattice->vector;
    if (!step(p, v[2], 2, 0.0, v[2][2]) && insist) {
        return 0;
    }
    double low = p[2] * s->cy;
    if (!step(p, v[1], 1, low, low + v[1][1]) && insist) {
        return 0;
    }
    low = -(p[1] * s->ab + p[2] * s->ac) * v[0][0];
    return step(p, v[0], 0, low, low + v[0][0]) || !insist;
}

static void fold_tilted(const struct lattice *lattice, const struct slopes *s, float position[3]) {
    const float(*v)[3] = lattice->vector;
    float p[3] = {position[0], position[1], position[2]};
    if (!step_all(lattice, s, p, 1)) {
        memcpy(p, position, sizeof p);
        float periods = (float)floor(p[2] * s->c);
        p[2] -= periods * v[2][2];
        p[1] -= periods * v[2][1];
        p[0] -= periods * v[2][0];
        periods = (float)floor(p[1] * s->b + p[2] * s->bc);
        p[1] -= periods * v[1][1];
        p[0] -= periods * v[1][0];
        periods = (float)floor(p[0] * s->a + p[1] * s->ab + p[2] * s->ac);
        p[0] -= periods * v[0][0];
        (void)step_all(lattice, s, p, 0);
    }
    memcpy(position, p, sizeof p);
}

void lattice_fold(const struct lattice *lattice, float position[3]) {
    if (lattice->kind == LATTICE_RIGHT) {
        for (int i = 0; i < 3; i++) {
            position[i] = fold_axis(position[i], lattice->vector[i][i]);
        }
    } else if (lattice->kind == LATTICE_TILTED) {
        const struct slopes s = slopes_of(lattice);
        fold_tilted(lattice, &s, position);
    }
}

enum { BLOCK = 256 };

/* Positions by axis, and which of them are further away than one period along each axis. */
struct block {
    float axis[3][BLOCK];
    uint8_t far[BLOCK];
};

/* Fold a whole block as step_all() does, without branches. */
CLONES static void fold_block(const struct lattice *lattice, const struct slopes *s, struct block *block) {
    const float(*v)[3] = lattice->vector;
    const float ax = v[0][0], bx = v[1][0], by = v[1][1], cx = v[2][0], cy = v[2][1], cz = v[2][2];
    const double a = ax, b = by, slope_y = s->cy, slope_ab = s->ab, slope_ac = s->ac;
    float *restrict xs = block->axis[0], *restrict ys = block->axis[1], *restrict zs = block->axis[2];
    for (size_t i = 0; i < BLOCK; i++) {
        float x = xs[i], y = ys[i], z = zs[i];
        const int up_z = z < 0;
        x = up_z ? x + cx : x;
        y = up_z ? y + cy : y;
        z = up_z ? z + cz : z;
        int far = z < 0;
        const int down_z = z >= cz;
        x = down_z ? x - cx : x;
        y = down_z ? y - cy : y;
        z = down_z ? z - cz : z;
        far |= z >= cz;
        const double low_y = z * slope_y;
        const int up_y = y < low_y;
        x = up_y ? x + bx : x;
        y = up_y ? y + by : y;
        far |= y < low_y;
        const int down_y = y >= low_y + b;
        x = down_y ? x - bx : x;
        y = down_y ? y - by : y;
        far |= y >= low_y + b;
        const double low_x = -(y * slope_ab + z * slope_ac) * a;
        x = x < low_x ? x + ax : x;
        far |= x < low_x;
        x = x >= low_x + a ? x - ax : x;
        far |= x >= low_x + a;
        xs[i] = x;
        ys[i] = y;
        zs[i] = z;
        block->far[i] = (uint8_t)far;
    }
}

CLONES static void load_block(const float *restrict from, size_t n, struct block *restrict to) {
    for (size_t i = 0; i < n; i++) {
        to->axis[0][i] = from[3 * i];
        to->axis[1][i] = from[3 * i + 1];
        to->axis[2][i] = from[3 * i + 2];
    }
}

static void fold_all_tilted(const struct lattice *lattice, const float *from, size_t n, float *to) {
    const struct slopes s = slopes_of(lattice);
    struct block block = {0};
    for (size_t first = 0; first < n; first += BLOCK) {
        const size_t count = n - first < BLOCK ? n - first : BLOCK;
        load_block(&from[3 * first], count, &block);
        fold_block(lattice, &s, &block);
        for (size_t i = 0; i < count; i++) {
            float *position = &to[3 * (first + i)];
            if (block.far[i]) {
                memmove(position, &from[3 * (first + i)], 3 * sizeof *position);
                fold_tilted(lattice, &s, position);
                continue;
            }
            for (int k = 0; k < 3; k++) {
                position[k] = block.axis[k][i];
            }
        }
    }
}

/* Fold up to BLOCK positions as fold_axis() does; returns whether any of their numbers is further away. */
CLONES static int fold_right(const float edges[3], const float *from, size_t n, float *restrict to) {
    int far = 0;
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < 3; k++) {
            const float x = from[3 * i + k], edge = edges[k];
            float near = x < 0 ? x + edge : x;
            far |= near < 0;
            near = near >= edge ? near - edge : near;
            far |= near >= edge;
            to[3 * i + k] = near;
        }
    }
    return far;
}

static void fold_all_right(const struct lattice *lattice, const float *from, size_t n, float *to) {
    const float edges[3] = {lattice->vector[0][0], lattice->vector[1][1], lattice->vector[2][2]};
    float folded[3 * BLOCK];
    for (size_t first = 0; first < n; first += BLOCK) {
        const size_t count = n - first < BLOCK ? n - first : BLOCK;
        const float *here = &from[3 * first];
        if (fold_right(edges, here, count, folded)) {
            for (size_t i = 0; i < 3 * count; i++) {
                folded[i] = fold_axis(here[i], edges[i % 3]);
            }
        }
        memcpy(&to[3 * first], folded, 3 * count * sizeof *to);
    }
}

void lattice_fold_all(const struct lattice *lattice, const float *from, size_t n, float *to) {
    if (lattice->kind == LATTICE_RIGHT) {
        fold_all_right(lattice, from, n, to);
    } else if (lattice->kind == LATTICE_TILTED) {
        fold_all_tilted(lattice, from, n, to);
    } else if (to != from) {
        memcpy(to, from, 3 * n * sizeof *to);
    }
}

void lattice_reduce(const struct lattice *lattice, double vector[3]) {
    for (int axis = 2; axis >= 0; axis--) {
        const double periods = rint(vector[axis] / lattice->vector[axis][axis]);
        for (int i = 0; i <= axis; i++) {
            vector[i] -= periods * lattice->vector[axis][i];
        }
    }
}

/* The nearest integer, also where the processor has no instruction for it: beyond 2^52 doubles have no fractions. */
#define TO_INTEGER 6755399441055744.0 /* 3 * 2^51 */

static inline double nearest(double number) {
    return (number + TO_INTEGER) - TO_INTEGER;
}

CLONES void lattice_reduce_all(const struct lattice *lattice, double *xs, double *ys, double *zs, size_t n) {
    const float(*v)[3] = lattice->vector;
    const double ax = v[0][0], bx = v[1][0], by = v[1][1], cx = v[2][0], cy = v[2][1], cz = v[2][2];
    const double a = 1.0 / ax, b = 1.0 / by, c = 1.0 / cz;
    for (size_t i = 0; i < n; i++) {
        double x = xs[i], y = ys[i], z = zs[i];
        const double along_c = nearest(z * c);
        x -= along_c * cx;
        y -= along_c * cy;
        z -= along_c * cz;
        const double along_b = nearest(y * b);
        x -= along_b * bx;
        y -= along_b * by;
        x -= nearest(x * a) * ax;
        xs[i] = x;
        ys[i] = y;
        zs[i] = z;
    }
}

static double square_of(const double v[3]) {
    return v[0] * v[0] + v[1] * v[1] + v[2] * v[2];
}

void lattice_shorten(const struct lattice *lattice, double vector[3]) {
    const double *width = lattice->width;
    const double least = width[0] < width[1] ? width[0] : width[1], sure = (least < width[2] ? least : width[2]) / 2;
    if (square_of(vector) <= sure * sure) {
        return; /* as most are */
    }
    lattice_reduce(lattice, vector);
    if (lattice->kind != LATTICE_TILTED || square_of(vector) <= sure * sure) {
        return;
    }
    const double start[3] = {vector[0], vector[1], vector[2]};
    const float(*v)[3] = lattice->vector;
    for (int code = 0; code < 27; code++) {
        const int steps[3] = {code % 3 - 1, code / 3 % 3 - 1, code / 9 - 1};
        const double i = steps[0], j = steps[1], k = steps[2];
        const double image[3] = {start[0] + i * v[0][0] + j * v[1][0] + k * v[2][0],
                                 start[1] + j * v[1][1] + k * v[2][1], start[2] + k * v[2][2]};
        if (square_of(image) < square_of(vector)) {
            memcpy(vector, image, sizeof image);
        }
    }
}
