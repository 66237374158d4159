/* Atoms within a cutoff of others: single precision where it can tell, else as MDAnalysis computes it. */
#include "search/search.h"

#include "search/cell_list.h"
#include "search/mask.h"

enum nearness { BEYOND, UNCERTAIN, NEAR };

enum { AT_ONCE = 128 };

/* Candidates, as they are placed, and the first and last cells within their reach: one array a fact. */
struct looks {
    float raw[3][AT_ONCE], at[3][AT_ONCE];
    int first[3][AT_ONCE], last[3][AT_ONCE];
};

/* Look through the cells around a place, by single precision. */
INLINE enum nearness look(const struct cell_list *cells, const struct window *window, const float position[3]) {
    const float inside = cells->grid->inside, limit = cells->grid->limit;
    ints near = {0}, uncertain = {0};
    for (int z = window->z_first; z <= window->z_last; z++) {
        for (int y = window->y_first; y <= window->y_last; y++) {
            const struct run run = cell_list_run(cells, window, y, z);
            uint32_t slot = run.start;
            /* Slots behind the run are targets as well: one turn too many does no harm, a branch would be a guess. */
            do {
                const floats squares = cell_list_squares(cells, slot, position);
                near |= squares <= inside;
                uncertain |= squares <= limit;
                slot += LANES;
            } while (slot < run.end);
        }
        if (any_of(near)) {
            return NEAR;
        }
    }
    return any_of(uncertain) ? UNCERTAIN : BEYOND;
}

/* The same by the metric. */
static int is_within(const struct metric *metric, const struct cell_list *cells, const struct window *window,
                     const float place[3], const float *position, const float *targets) {
    for (int z = window->z_first; z <= window->z_last; z++) {
        for (int y = window->y_first; y <= window->y_last; y++) {
            const struct run run = cell_list_run(cells, window, y, z);
            for (uint32_t slot = run.start; slot < run.end; slot++) {
                const float dx = cells->x[slot] - place[0], dy = cells->y[slot] - place[1],
                            dz = cells->z[slot] - place[2];
                if (dx * dx + dy * dy + dz * dz <= cells->grid->limit &&
                    metric_within(metric, position, &targets[3 * (size_t)cells->atoms[slot]])) {
                    return 1;
                }
            }
        }
    }
    return 0;
}

/* Place the first n. */
INLINE void place_batch(const struct cell_list *cells, struct looks *looks, size_t n) {
    /* Copies, which no store can change, for the compiler. */
    const struct grid grid = *cells->grid;
    struct cell_list same = *cells;
    same.grid = &grid;
    for (size_t i = 0; i < n; i++) {
        const struct place place =
            grid_place(&grid, (const float[3]){looks->raw[0][i], looks->raw[1][i], looks->raw[2][i]});
        const struct window window = cell_list_window(&same, place.fraction);
        looks->at[0][i] = place.position[0];
        looks->at[1][i] = place.position[1];
        looks->at[2][i] = place.position[2];
        looks->first[0][i] = window.x_first;
        looks->last[0][i] = window.x_last;
        looks->first[1][i] = window.y_first;
        looks->last[1][i] = window.y_last;
        looks->first[2][i] = window.z_first;
        looks->last[2][i] = window.z_last;
    }
}

CLONES static size_t look_at_all(const struct metric *metric, const struct cell_list *cells, struct group group,
                                 const float *targets, const int32_t *candidates, size_t n, int64_t *matches) {
    size_t n_matches = 0;
    struct looks looks;
    for (size_t first = 0; first < n; first += AT_ONCE, candidates += AT_ONCE) {
        const size_t count = n - first < AT_ONCE ? n - first : AT_ONCE;
        for (size_t i = 0; i < count; i++) {
            for (int k = 0; k < 3; k++) {
                looks.raw[k][i] = group.positions[3 * (size_t)candidates[i] + k];
            }
        }
        place_batch(cells, &looks, count);
        for (size_t i = 0; i < count; i++) {
            const float position[3] = {looks.at[0][i], looks.at[1][i], looks.at[2][i]};
            const struct window window = {looks.first[0][i], looks.last[0][i],  looks.first[1][i],
                                          looks.last[1][i],  looks.first[2][i], looks.last[2][i]};
            const enum nearness nearness = look(cells, &window, position);
            if (nearness == NEAR ||
                (nearness == UNCERTAIN &&
                 is_within(metric, cells, &window, position, &group.positions[3 * (size_t)candidates[i]], targets))) {
                matches[n_matches++] = candidates[i];
            }
        }
    }
    return n_matches;
}

static int by_cells(struct scratch *scratch, const struct metric *metric, const struct grid *grid, struct group group,
                    struct group others, int64_t *matches, size_t *n_matches) {
    struct cell_list cells;
    const int32_t *candidates;
    size_t n;
    if (mask_candidates(scratch, grid, group, others, &candidates, &n) != 0 ||
        cell_list_set(&cells, scratch, grid, others, 1) != 0) {
        return SEARCH_NO_MEMORY;
    }
    *n_matches = look_at_all(metric, &cells, group, others.positions, candidates, n, matches);
    return SEARCH_OK;
}

/* Every pair, for cutoffs beyond the box and coordinates far out. */
static int by_pairs(struct scratch *scratch, const struct metric *metric, struct group group, struct group others,
                    int64_t *matches, size_t *n_matches) {
    float *a = scratch_take(scratch, SCRATCH_PLACED_A, 3 * group.n * sizeof *a);
    float *b = scratch_take(scratch, SCRATCH_PLACED_B, 3 * others.n * sizeof *b);
    if (a == NULL || b == NULL) {
        return SEARCH_NO_MEMORY;
    }
    metric_place_all(metric, group, a);
    metric_place_all(metric, others, b);
    *n_matches = 0;
    for (size_t i = 0; i < group.n; i++) {
        for (size_t j = 0; j < others.n; j++) {
            if (metric_square(metric, &a[3 * i], &b[3 * j]) <= metric->limit) {
                matches[(*n_matches)++] = (int64_t)i;
                break;
            }
        }
    }
    return SEARCH_OK;
}

int search_within(struct scratch *scratch, const struct lattice *lattice, struct group group, struct group others,
                  double cutoff, const int64_t **matches, size_t *n_matches) {
    *n_matches = 0;
    *matches = NULL;
    if (group.n == 0 || others.n == 0) {
        return SEARCH_OK;
    }
    struct extent targets = extent_none();
    extent_add(&targets, others);
    struct extent extent = targets;
    extent_add(&extent, group);
    if (!(extent.size < INFINITY)) {
        return SEARCH_NOT_FINITE;
    }
    int64_t *to = scratch_take(scratch, SCRATCH_FOUND, group.n * sizeof *to);
    if (to == NULL) {
        return SEARCH_NO_MEMORY;
    }
    *matches = to;
    const struct metric metric = metric_choose(lattice, others, &group, &extent, cutoff);
    struct grid grid;
    /* An image within the cutoff is one that the metric looks at as long as the cutoff is no longer than the box. */
    if (grid_set(&grid, &metric, &targets, extent.size, 0, 1.0)) {
        return by_cells(scratch, &metric, &grid, group, others, to, n_matches);
    }
    return by_pairs(scratch, &metric, group, others, to, n_matches);
}
