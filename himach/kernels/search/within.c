#include "search/search.h"

#include "search/cell_list.h"
#include "search/mask.h"

enum nearness { BEYOND, UNCERTAIN, NEAR };

/* Look through the cells around a place, by single precision. */
INLINE enum nearness look(const struct cell_list *cells, const struct place *place) {
    const struct window window = cell_list_window(cells, place->fraction);
    const float inside = cells->grid->inside, limit = cells->grid->limit;
    enum nearness nearness = BEYOND;
    for (int z = window.z_first; z <= window.z_last; z++) {
        for (int y = window.y_first; y <= window.y_last; y++) {
            const struct run run = cell_list_run(cells, &window, y, z);
            ints near = {0}, uncertain = {0};
            /* The last turn may look at slots behind the run, which are targets as well. */
            for (uint32_t slot = run.begin; slot < run.end; slot += LANES) {
                const floats squares = cell_list_squares(cells, slot, place->position);
                near |= squares <= inside;
                uncertain |= squares <= limit;
            }
            if (bits_of(near)) {
                return NEAR;
            }
            if (bits_of(uncertain)) {
                nearness = UNCERTAIN;
            }
        }
    }
    return nearness;
}

/* The same by the metric. */
static int is_within(const struct metric *metric, const struct cell_list *cells, const struct place *place,
                     const float *position, const float *targets) {
    const struct window window = cell_list_window(cells, place->fraction);
    for (int z = window.z_first; z <= window.z_last; z++) {
        for (int y = window.y_first; y <= window.y_last; y++) {
            const struct run run = cell_list_run(cells, &window, y, z);
            for (uint32_t slot = run.begin; slot < run.end; slot++) {
                const float dx = cells->x[slot] - place->position[0], dy = cells->y[slot] - place->position[1],
                            dz = cells->z[slot] - place->position[2];
                if (dx * dx + dy * dy + dz * dz <= cells->grid->limit &&
                    metric_within(metric, position, &targets[3 * (size_t)cells->atoms[slot]])) {
                    return 1;
                }
            }
        }
    }
    return 0;
}

CLONES static size_t look_at_all(const struct metric *metric, const struct cell_list *cells, struct group group,
                                 const float *targets, const int32_t *candidates, size_t n, int64_t *found) {
    size_t n_found = 0;
    for (size_t i = 0; i < n; i++) {
        const float *position = &group.positions[3 * (size_t)candidates[i]];
        const struct place place = grid_place(cells->grid, position);
        const enum nearness nearness = look(cells, &place);
        if (nearness == NEAR || (nearness == UNCERTAIN && is_within(metric, cells, &place, position, targets))) {
            found[n_found++] = candidates[i];
        }
    }
    return n_found;
}

static int by_cells(struct scratch *scratch, const struct metric *metric, const struct grid *grid, struct group group,
                    struct group others, int64_t *found, size_t *n_found) {
    struct cell_list cells;
    const int32_t *candidates;
    size_t n;
    if (mask_candidates(scratch, grid, group, others, &candidates, &n) != 0 ||
        cell_list_set(&cells, scratch, grid, others, 1) != 0) {
        return SEARCH_NO_MEMORY;
    }
    *n_found = look_at_all(metric, &cells, group, others.positions, candidates, n, found);
    return SEARCH_OK;
}

/* Every pair, for cutoffs beyond the box and coordinates far out. */
static int by_pairs(struct scratch *scratch, const struct metric *metric, struct group group, struct group others,
                    int64_t *found, size_t *n_found) {
    float *a = scratch_take(scratch, SCRATCH_PLACED_A, 3 * group.n * sizeof *a);
    float *b = scratch_take(scratch, SCRATCH_PLACED_B, 3 * others.n * sizeof *b);
    if (a == NULL || b == NULL) {
        return SEARCH_NO_MEMORY;
    }
    metric_place_all(metric, group, a);
    metric_place_all(metric, others, b);
    *n_found = 0;
    for (size_t i = 0; i < group.n; i++) {
        for (size_t j = 0; j < others.n; j++) {
            if (metric_square(metric, &a[3 * i], &b[3 * j]) <= metric->limit) {
                found[(*n_found)++] = (int64_t)i;
                break;
            }
        }
    }
    return SEARCH_OK;
}

int search_within(struct scratch *scratch, const struct lattice *lattice, struct group group, struct group others,
                  double cutoff, const int64_t **found, size_t *n_found) {
    *n_found = 0;
    *found = NULL;
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
    *found = to;
    const struct metric metric = metric_choose(lattice, others, &group, &extent, cutoff);
    struct grid grid;
    /* An image within the cutoff is one that the metric looks at as long as the cutoff is no longer than the box. */
    if (grid_set(&grid, &metric, &targets, extent.size, 0, 1.0)) {
        return by_cells(scratch, &metric, &grid, group, others, to, n_found);
    }
    return by_pairs(scratch, &metric, group, others, to, n_found);
}
