#include "surface/sasa.h"

#include "search/cell_list.h"

#include <math.h>
#include <stdlib.h>

/* A point p of an atom of radius r lies in a sphere of radius q at v if p v > s = (r² + v² - q²) / (2 r). */

/* How far off p v - s may be in single precision, in units of reach² / r: v and p are rounded, s has five roundings. */
#define ROUNDINGS 32.0F
#define EPSILON   0x1p-24F
#define NEVER     1e30F
enum { PAIR = 2 * LANES, CHUNK = 4 * LANES };

/* What each slot of the cell list is, beside its position in single precision. */
struct spheres {
    const struct cell_list *cells;
    const double *x, *y, *z; /* Å, exact but for the box's vectors */
    const float *radius;     /* with eight more */
    const double *radii;     /* by atom */
};

/* The neighbours of one atom, one array a fact, filled up to whole vectors with what is near nothing. */
struct around {
    float *x, *y, *z; /* v */
    float *s;
    float *distance;
    uint32_t *slots;
    uint32_t *rows;     /* of the table of caps */
    uint32_t *touching; /* which of them may bury one of the points in hand */
    size_t n;
};

/* Some points that are not yet decided. */
struct chunk {
    float x[CHUNK], y[CHUNK], z[CHUNK];
    uint32_t points[CHUNK];
    size_t n;
    float center[3], radius; /* a ball that holds them */
};

struct sphere *sphere_new(size_t n) {
    struct sphere *sphere = calloc(1, sizeof *sphere);
    if (sphere == NULL || spiral_set(&sphere->spiral, n) != 0 || caps_set(&sphere->caps, &sphere->spiral) != 0) {
        sphere_free(sphere);
        return NULL;
    }
    return sphere;
}

void sphere_free(struct sphere *sphere) {
    if (sphere != NULL) {
        spiral_free(&sphere->spiral);
        caps_free(&sphere->caps);
        free(sphere);
    }
}

/* Where each slot is: the atom, moved by whole vectors of the box, as many as the cell list moved it. */
CLONES static void place_slots(const struct cell_list *cells, struct group atoms, const double *radii,
                               double *restrict x, double *restrict y, double *restrict z, float *restrict radius) {
    const struct grid grid = *cells->grid;
    for (size_t slot = 0; slot < cells->slots; slot++) {
        const size_t atom = cells->atoms[slot];
        const float *from = &atoms.positions[3 * atom];
        const float moved[3] = {cells->x[slot] - (from[0] - grid.origin[0]),
                                cells->y[slot] - (from[1] - grid.origin[1]),
                                cells->z[slot] - (from[2] - grid.origin[2])};
        float fraction[3];
        grid_fraction(&grid, moved, fraction);
        const double a = (double)(grid.period * rintf(fraction[0])), b = (double)(grid.period * rintf(fraction[1])),
                     c = (double)(grid.period * rintf(fraction[2]));
        x[slot] = from[0] + a * grid.vector[0][0] + b * grid.vector[1][0] + c * grid.vector[2][0];
        y[slot] = from[1] + b * grid.vector[1][1] + c * grid.vector[2][1];
        z[slot] = from[2] + c * grid.vector[2][2];
        radius[slot] = (float)radii[atom];
    }
    memset(&radius[cells->slots], 0, LANES * sizeof *radius);
}

/* Append `first` and the number of each bit that is set. All are written, up to eight places behind, too. */
INLINE void append(uint32_t *restrict to, size_t *n, uint32_t first, unsigned bits) {
    size_t end = *n;
    for (unsigned k = 0; k < LANES; k++) {
        to[end] = first + k;
        end += bits >> k & 1;
    }
    *n = end;
}

/* Find the slots whose spheres may meet that of a slot. */
INLINE void find_around(const struct spheres *spheres, uint32_t own, struct around *around) {
    const struct cell_list *cells = spheres->cells;
    const float position[3] = {cells->x[own], cells->y[own], cells->z[own]}, radius = spheres->radius[own];
    const float margin = cells->grid->margin;
    float fraction[3];
    grid_fraction(cells->grid, position, fraction);
    const struct window window = cell_list_window(cells, fraction);
    uint32_t *restrict slots = around->slots;
    size_t n = 0;
    for (int z = window.z_first; z <= window.z_last; z++) {
        for (int y = window.y_first; y <= window.y_last; y++) {
            const struct run run = cell_list_run(cells, &window, y, z);
            for (uint32_t slot = run.start; slot < run.end; slot += LANES) {
                const floats squares = cell_list_squares(cells, slot, position);
                const floats sum = load(&spheres->radius[slot]) + radius;
                unsigned met = bits_of(squares <= sum * sum + margin);
                met &= run.end - slot < LANES ? (1U << (run.end - slot)) - 1 : ~0U;
                met &= own - slot < LANES ? ~(1U << (own - slot)) : ~0U;
                append(slots, &n, slot, met);
            }
        }
    }
    around->n = n;
}

/* Work out v and s of the neighbours of a slot, and which caps they bury. */
INLINE void set_around(const struct spheres *spheres, const struct caps *caps, uint32_t own, float margin,
                       const struct around *around) {
    const double at[3] = {spheres->x[own], spheres->y[own], spheres->z[own]};
    const float radius = spheres->radius[own], half = 0.5F / radius;
    float *restrict x = around->x, *restrict y = around->y, *restrict z = around->z, *restrict s = around->s;
    float *restrict distances = around->distance;
    const uint32_t *restrict slots = around->slots;
    const size_t n = around->n, filled = (n + LANES - 1) / LANES * LANES;
    for (size_t k = 0; k < n; k++) {
        const uint32_t slot = slots[k];
        x[k] = (float)(spheres->x[slot] - at[0]);
        y[k] = (float)(spheres->y[slot] - at[1]);
        z[k] = (float)(spheres->z[slot] - at[2]);
        s[k] = spheres->radius[slot];
    }
    for (size_t k = n; k < filled; k++) {
        x[k] = y[k] = z[k] = s[k] = 0;
    }
    for (size_t k = 0; k < filled; k++) {
        const float square = x[k] * x[k] + y[k] * y[k] + z[k] * z[k];
        s[k] = ((radius - s[k]) * (radius + s[k]) + square) * half;
        distances[k] = sqrtf(square);
    }
    for (size_t k = n; k < filled; k++) {
        s[k] = NEVER;
    }
    for (size_t k = 0; k < filled; k += LANES) {
        /* Of a neighbour at the same place the cap has no direction: it is left to others to decide. */
        const floats distance = load(&distances[k]);
        const floats cosine = choose(distance > margin, (load(&s[k]) + margin) / distance, spread(2));
        const ints rows = caps_rows(caps, load(&x[k]), load(&y[k]), load(&z[k]), cosine);
        memcpy(&around->rows[k], &rows, sizeof rows);
    }
}

/* Leave the points that no neighbour surely buries: `left`. */
INLINE void bury(const struct caps *caps, const struct around *around, ints *restrict left) {
    for (size_t w = 0; w < caps->width; w += CAP_GROUP) {
        ints a = caps->all[w], b = caps->all[w + 1], c = caps->all[w + 2], d = caps->all[w + 3];
        for (size_t k = 0; k < around->n; k++) {
            const ints *outside = &caps->outside[around->rows[k] * caps->width + w];
            a &= outside[0];
            b &= outside[1];
            c &= outside[2];
            d &= outside[3];
        }
        left[w] = a;
        left[w + 1] = b;
        left[w + 2] = c;
        left[w + 3] = d;
    }
}

/* Put a ball around the points of a chunk, and fill it up to pairs of vectors. */
INLINE void close_chunk(struct chunk *chunk) {
    const size_t filled = (chunk->n + PAIR - 1) / PAIR * PAIR;
    for (size_t k = chunk->n; k < filled; k++) {
        chunk->x[k] = chunk->x[0];
        chunk->y[k] = chunk->y[0];
        chunk->z[k] = chunk->z[0];
    }
    floats x = {0}, y = {0}, z = {0};
    for (size_t k = 0; k < filled; k += LANES) {
        x += load(&chunk->x[k]);
        y += load(&chunk->y[k]);
        z += load(&chunk->z[k]);
    }
    const floats *sums[3] = {&x, &y, &z};
    for (int i = 0; i < 3; i++) {
        const floats sum = *sums[i];
        chunk->center[i] =
            (((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]))) / (float)filled;
    }
    floats most = {0};
    for (size_t k = 0; k < filled; k += LANES) {
        const floats dx = load(&chunk->x[k]) - chunk->center[0], dy = load(&chunk->y[k]) - chunk->center[1],
                     dz = load(&chunk->z[k]) - chunk->center[2];
        const floats square = dx * dx + dy * dy + dz * dz;
        most = choose(square > most, square, most);
    }
    float square = 0;
    for (int i = 0; i < LANES; i++) {
        square = most[i] > square ? most[i] : square;
    }
    chunk->radius = sqrtf(square) + 1e-5F;
}

/* Find which neighbours may bury some of the points of a chunk. Returns how many, or -1 if one buries them all. */
INLINE ptrdiff_t find_touching(const struct chunk *chunk, const struct around *around, float margin) {
    size_t n = 0;
    ints all = {0};
    for (size_t k = 0; k < around->n; k += LANES) {
        const floats excess = load(&around->x[k]) * chunk->center[0] + load(&around->y[k]) * chunk->center[1] +
                              load(&around->z[k]) * chunk->center[2] - load(&around->s[k]);
        const floats range = load(&around->distance[k]) * chunk->radius + margin;
        all |= excess > range;
        append(around->touching, &n, (uint32_t)k, bits_of(excess > -range));
    }
    return any_of(all) ? -1 : (ptrdiff_t)n;
}

/* Whether a point is buried, in double precision. */
static int is_buried(const struct spheres *spheres, const struct around *around, size_t n, uint32_t own,
                     const double point[3]) {
    const double radius = spheres->radii[spheres->cells->atoms[own]];
    for (size_t k = 0; k < n; k++) {
        const uint32_t slot = around->slots[around->touching[k]];
        const double other = spheres->radii[spheres->cells->atoms[slot]];
        const double x = spheres->x[slot] - spheres->x[own], y = spheres->y[slot] - spheres->y[own],
                     z = spheres->z[slot] - spheres->z[own];
        if (2 * radius * (point[0] * x + point[1] * y + point[2] * z) >
            (radius - other) * (radius + other) + (x * x + y * y + z * z)) {
            return 1;
        }
    }
    return 0;
}

/* Points that are surely buried, and perhaps. */
struct verdict {
    ints sure, perhaps;
};

INLINE void judge(struct verdict *verdict, floats x, floats y, floats z, const struct around *around, uint32_t k,
                  float margin) {
    const floats excess = x * around->x[k] + y * around->y[k] + z * around->z[k] - around->s[k];
    verdict->sure |= excess > margin;
    verdict->perhaps |= excess > -margin;
}

/* Count the points of a chunk that no neighbour buries. */
INLINE int64_t count_chunk(const struct spheres *spheres, const struct spiral *spiral, const struct around *around,
                           struct chunk *chunk, uint32_t own, float margin) {
    close_chunk(chunk);
    const ptrdiff_t touching = find_touching(chunk, around, margin);
    if (touching < 0) {
        return 0;
    }
    const size_t n = (size_t)touching;
    int64_t exposed = 0;
    for (size_t first = 0; first < chunk->n; first += PAIR) {
        const size_t second = first + LANES;
        const floats x0 = load(&chunk->x[first]), y0 = load(&chunk->y[first]), z0 = load(&chunk->z[first]);
        const floats x1 = load(&chunk->x[second]), y1 = load(&chunk->y[second]), z1 = load(&chunk->z[second]);
        struct verdict verdicts[2] = {{{0}, {0}}, {{0}, {0}}};
        for (size_t k = 0; k < n; k++) {
            judge(&verdicts[0], x0, y0, z0, around, around->touching[k], margin);
            judge(&verdicts[1], x1, y1, z1, around, around->touching[k], margin);
        }
        for (size_t i = 0; i < 2; i++) {
            const size_t start = first + i * LANES, rest = chunk->n > start ? chunk->n - start : 0;
            const unsigned valid = rest < LANES ? (1U << rest) - 1 : (1U << LANES) - 1;
            const unsigned perhaps = bits_of(verdicts[i].perhaps) & valid;
            exposed += __builtin_popcount(valid & ~perhaps);
            for (unsigned open = perhaps & ~bits_of(verdicts[i].sure); open != 0; open &= open - 1) {
                const uint32_t point = chunk->points[start + (size_t)__builtin_ctz(open)];
                exposed += !is_buried(spheres, around, n, own, spiral->exact[point]);
            }
        }
    }
    return exposed;
}

INLINE int64_t count_slot(const struct spheres *spheres, const struct sphere *sphere, struct around *around, ints *left,
                          uint32_t own) {
    const struct spiral *spiral = &sphere->spiral;
    const struct caps *caps = &sphere->caps;
    const float radius = spheres->radius[own], reach = spheres->cells->grid->reach;
    const float margin = ROUNDINGS * EPSILON * reach * reach / radius;
    find_around(spheres, own, around);
    set_around(spheres, caps, own, margin, around);
    bury(caps, around, left);
    int64_t exposed = 0;
    struct chunk chunk;
    chunk.n = 0;
    for (size_t word = 0; word < caps->width * sizeof *left / 8; word++) {
        uint64_t bits;
        memcpy(&bits, (const char *)left + 8 * word, sizeof bits);
        for (; bits != 0; bits &= bits - 1) {
            const size_t point = 64 * word + (size_t)__builtin_ctzll(bits), k = chunk.n++;
            chunk.points[k] = (uint32_t)point;
            chunk.x[k] = spiral->x[point];
            chunk.y[k] = spiral->y[point];
            chunk.z[k] = spiral->z[point];
            if (chunk.n == CHUNK) {
                exposed += count_chunk(spheres, spiral, around, &chunk, own, margin);
                chunk.n = 0;
            }
        }
    }
    return chunk.n == 0 ? exposed : exposed + count_chunk(spheres, spiral, around, &chunk, own, margin);
}

CLONES static void count_all(const struct spheres *spheres, const struct sphere *sphere, struct around *around,
                             ints *left, const uint8_t *counted, int64_t *counts) {
    const struct cell_list *cells = spheres->cells;
    for (int z = cells->pad[2]; z < cells->pad[2] + cells->n[2]; z++) {
        for (int y = cells->pad[1]; y < cells->pad[1] + cells->n[1]; y++) {
            const struct run row = cell_list_core(cells, y, z);
            for (uint32_t slot = row.start; slot < row.end; slot++) {
                const uint32_t atom = cells->atoms[slot];
                if ((counted == NULL || counted[atom]) && spheres->radius[slot] > 0) {
                    counts[atom] = count_slot(spheres, sphere, around, left, slot);
                }
            }
        }
    }
}

int sasa_count(struct scratch *scratch, const struct lattice *lattice, struct group atoms, const double *radii,
               const uint8_t *counted, const struct sphere *sphere, int64_t *counts) {
    memset(counts, 0, atoms.n * sizeof *counts);
    struct extent extent = extent_none();
    extent_add(&extent, atoms);
    if (atoms.n != 0 && !(extent.size < INFINITY)) {
        return SEARCH_NOT_FINITE;
    }
    double largest = 0;
    for (size_t i = 0; i < atoms.n; i++) {
        largest = fmax(largest, radii[i]);
    }
    if (largest == 0) {
        return SEARCH_OK;
    }
    const struct metric metric = metric_choose(lattice, atoms, NULL, &extent, 2 * largest);
    struct grid grid;
    struct cell_list cells;
    if (!grid_set(&grid, &metric, &extent, extent.size, 0, 1.0)) {
        return SASA_NO_CELLS;
    }
    if (cell_list_set(&cells, scratch, &grid, atoms, 1) != 0) {
        return SEARCH_NO_MEMORY;
    }
    const size_t room = cells.slots + PAIR;
    double *at = scratch_take(scratch, SCRATCH_PLACED_A, 3 * room * sizeof *at);
    float *facts = scratch_take(scratch, SCRATCH_HITS, 6 * room * sizeof *facts);
    uint32_t *lists = scratch_take(scratch, SCRATCH_CANDIDATES, 3 * room * sizeof *lists);
    ints *left = scratch_take(scratch, SCRATCH_MASK, sphere->caps.width * sizeof *left);
    if (at == NULL || facts == NULL || lists == NULL || left == NULL) {
        return SEARCH_NO_MEMORY;
    }
    place_slots(&cells, atoms, radii, at, at + room, at + 2 * room, facts);
    const struct spheres spheres = {
        .cells = &cells, .x = at, .y = at + room, .z = at + 2 * room, .radius = facts, .radii = radii};
    float *own = facts + room;
    struct around around = {
        own, own + room, own + 2 * room, own + 3 * room, own + 4 * room, lists, lists + room, lists + 2 * room, 0};
    count_all(&spheres, sphere, &around, left, counted, counts);
    return SEARCH_OK;
}
