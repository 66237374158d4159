#include "search/pairs.h"

#include "search/mask.h"

/* Images of one atom are more than twice this part of the box's width apart: at most one is within the cutoff. */
#define ONE_IMAGE 0.49
/* Cells as wide as the cutoff for few atoms in each, half as wide for many: the sphere is approached more closely. */
#define LARGE_REACH 6.0F

/* Place what needs to be. In a box, the atoms of the larger group are placed when they turn out to be candidates. */
static int place(struct pair_search *search, struct scratch *scratch) {
    const enum lattice_kind kind = search->metric.lattice->kind;
    float *a = scratch_take(scratch, SCRATCH_PLACED_A, 3 * search->a.n * sizeof *a);
    float *b = search->same_group ? a : scratch_take(scratch, SCRATCH_PLACED_B, 3 * search->b.n * sizeof *b);
    if (a == NULL || b == NULL) {
        return SEARCH_NO_MEMORY;
    }
    metric_place_all(&search->metric, search->b, b);
    if (!search->same_group && (kind == LATTICE_NONE || !search->by_cells)) {
        metric_place_all(&search->metric, search->a, a);
        search->a.positions = a;
    }
    search->placed_a = a;
    search->placed_b = b;
    return SEARCH_OK;
}

int pairs_set(struct pair_search *search, struct scratch *scratch, const struct lattice *lattice, struct group a,
              const struct group *b, int metric_of_two, double cutoff) {
    memset(search, 0, sizeof *search);
    const struct group other = b == NULL ? a : *b;
    /* A cell list of the smaller group: the mask tells most of the larger one's atoms away at little cost. */
    search->same_group = b == NULL;
    search->swapped = b != NULL && a.n < other.n;
    search->a = search->swapped ? other : a;
    search->b = search->swapped ? a : other;
    struct extent targets = extent_none();
    extent_add(&targets, search->b);
    struct extent extent = targets;
    if (b != NULL) {
        extent_add(&extent, search->a);
    }
    if (!(extent.size < INFINITY)) {
        return SEARCH_NOT_FINITE;
    }
    search->metric = metric_choose(lattice, a, b == NULL && metric_of_two ? &a : b, &extent, cutoff);
    for (int i = 0; i < 3; i++) {
        targets.low[i] -= search->metric.shift[i];
        targets.high[i] -= search->metric.shift[i];
    }
    search->by_cells = grid_set(&search->grid, &search->metric, &targets, extent.size, 1, ONE_IMAGE);
    if (place(search, scratch) != SEARCH_OK) {
        return SEARCH_NO_MEMORY;
    }
    const struct group placed = {search->placed_b, search->b.n};
    const int parts = search->grid.reach > LARGE_REACH ? 2 : 1;
    if (!search->by_cells) {
        uint32_t *atoms = scratch_take(scratch, SCRATCH_ATOMS, (placed.n + 1) * sizeof *atoms);
        for (size_t k = 0; atoms != NULL && k < placed.n; k++) {
            atoms[k] = (uint32_t)k;
        }
        search->cells = (struct cell_list){.atoms = atoms, .slots = placed.n};
        search->grid.inside = -1; /* the metric decides about each */
        search->grid.margin = INFINITY;
        if (atoms == NULL) {
            return SEARCH_NO_MEMORY;
        }
    } else if ((b != NULL && mask_candidates(scratch, &search->grid, search->a, placed, &search->candidates,
                                             &search->n_candidates) != 0) ||
               cell_list_set(&search->cells, scratch, &search->grid, placed, parts) != 0) {
        return SEARCH_NO_MEMORY;
    }
    const size_t room = search->cells.slots + LANES;
    search->slots = scratch_take(scratch, SCRATCH_HITS, room * sizeof *search->slots);
    search->squares = scratch_take(scratch, SCRATCH_SQUARES, room * sizeof *search->squares);
    return search->slots == NULL || search->squares == NULL ? SEARCH_NO_MEMORY : SEARCH_OK;
}

/* Append what is near a position in one run. All are written and the near ones counted: branches would be guesses. */
INLINE size_t collect(const struct pair_search *search, struct run run, const float position[3], size_t n) {
    const float limit = search->grid.limit;
    for (uint32_t slot = run.start; slot < run.end; slot += LANES) {
        const floats squares = cell_list_squares(&search->cells, slot, position);
        unsigned near = bits_of(squares <= limit);
        if (run.end - slot < LANES) {
            near &= (1U << (run.end - slot)) - 1;
        }
        float each[LANES];
        memcpy(each, &squares, sizeof each);
        for (unsigned k = 0; k < LANES; k++) {
            search->slots[n] = slot + k;
            search->squares[n] = each[k];
            n += near >> k & 1;
        }
    }
    return n;
}

CLONES size_t pairs_around(const struct pair_search *search, size_t atom) {
    float *placed = &search->placed_a[3 * atom];
    if (placed != &search->a.positions[3 * atom]) {
        memcpy(placed, &search->a.positions[3 * atom], 3 * sizeof *placed);
        metric_place(&search->metric, placed);
    }
    const struct place place = grid_place(&search->grid, placed);
    const struct window window = cell_list_window(&search->cells, place.fraction);
    size_t n = 0;
    for (int z = window.z_first; z <= window.z_last; z++) {
        for (int y = window.y_first; y <= window.y_last; y++) {
            n = collect(search, cell_list_run(&search->cells, &window, y, z), place.position, n);
        }
    }
    return n;
}

CLONES size_t pairs_after(const struct pair_search *search, uint32_t slot, int y, int z) {
    const struct cell_list *cells = &search->cells;
    const float position[3] = {cells->x[slot], cells->y[slot], cells->z[slot]};
    float fraction[3];
    grid_fraction(&search->grid, position, fraction);
    const struct window window = cell_list_window(cells, fraction);
    struct run run = cell_list_run(cells, &window, y, z);
    run.start = slot + 1;
    size_t n = collect(search, run, position, 0);
    for (int row = y + 1; row <= window.y_last; row++) {
        n = collect(search, cell_list_run(cells, &window, row, z), position, n);
    }
    for (int plane = z + 1; plane <= window.z_last; plane++) {
        for (int row = window.y_first; row <= window.y_last; row++) {
            n = collect(search, cell_list_run(cells, &window, row, plane), position, n);
        }
    }
    return n;
}

double pairs_square(const struct pair_search *search, size_t atom, size_t k) {
    const size_t other = search->cells.atoms[search->slots[k]];
    const float *a = &search->placed_a[3 * atom], *b = &search->placed_b[3 * other];
    return search->by_cells ? metric_square_near(&search->metric, a, b) : metric_square(&search->metric, a, b);
}

/* Put the pairs in the order of one of their members, those that are equal as they were: a counting sort. */
static void sort(const struct atom_pair *from, size_t n, int by_j, uint32_t *next, size_t groups,
                 struct atom_pair *to) {
    memset(next, 0, (groups + 1) * sizeof *next);
    for (size_t k = 0; k < n; k++) {
        next[(by_j ? from[k].j : from[k].i) + 1]++;
    }
    for (size_t group = 1; group <= groups; group++) {
        next[group] += next[group - 1];
    }
    for (size_t k = 0; k < n; k++) {
        to[next[by_j ? from[k].j : from[k].i]++] = from[k];
    }
}

int pairs_sort(struct scratch *scratch, struct atom_pair *pairs, size_t n, size_t n_i, size_t n_j,
               struct atom_pair *other) {
    const size_t groups = n_i > n_j ? n_i : n_j;
    uint32_t *next = scratch_take(scratch, SCRATCH_STARTS, (groups + 2) * sizeof *next);
    if (next == NULL) {
        return SEARCH_NO_MEMORY;
    }
    sort(pairs, n, 1, next, n_j, other);
    sort(other, n, 0, next, n_i, pairs);
    return SEARCH_OK;
}
