/* Pairs within a cutoff, counted by their distance. */
#include "search/search.h"

#include "search/pairs_each.h"

struct bins {
    size_t n;
    double *limits;                     /* (n), the least square of a distance in each bin */
    float width;                        /* Å */
    float margin;                       /* squares that are no further from that of an edge may belong to either side */
    int32_t *bin;                       /* of the neighbours of one atom */
    const int64_t *groups_a, *groups_b; /* of the search's groups; NULL where all pairs count */
    int64_t *counts;
};

/* Of the square of an edge in single precision, and of a root. */
#define ROUNDINGS_OF_EDGE 0x1p-20F

enum { UNCERTAIN = -1 };

/* The bin of each square, unless single precision cannot tell. */
CLONES static void choose_bins(const struct bins *bins, const float *squares, size_t n) {
    const float width = bins->width, scale = 1 / width, margin = bins->margin;
    int32_t *restrict bin = bins->bin;
    for (size_t i = 0; i < n; i++) {
        const float at = sqrtf(squares[i]) * scale;
        const float edge = (float)(int32_t)(at + 0.5F) * width;
        bin[i] = fabsf(squares[i] - edge * edge) > margin ? (int32_t)at : UNCERTAIN;
    }
}

static void count_by_metric(const struct metric *metric, const struct bins *bins, double square) {
    if (square > metric->limit) {
        return;
    }
    size_t bin = (size_t)(sqrt(square) / bins->width);
    bin = bin < bins->n ? bin : bins->n - 1;
    while (bin > 0 && square < bins->limits[bin]) {
        bin--;
    }
    while (bin + 1 < bins->n && square >= bins->limits[bin + 1]) {
        bin++;
    }
    bins->counts[bin]++;
}

/* Leave out the neighbours of an atom in its own group; return how many are left. No branches: they are guesses.
 */
static size_t leave_out(const struct pair_search *search, const struct bins *bins, size_t atom, size_t n) {
    uint32_t *restrict slots = search->slots;
    float *restrict squares = search->squares;
    const uint32_t *atoms = search->cells.atoms;
    const int64_t *groups = bins->groups_b, own = bins->groups_a[atom];
    size_t left = 0;
    for (size_t k = 0; k < n; k++) {
        const uint32_t slot = slots[k];
        slots[left] = slot;
        squares[left] = squares[k];
        left += groups[atoms[slot]] != own;
    }
    return left;
}

static int count(void *to, const struct pair_search *search, size_t atom, size_t n) {
    const struct bins *bins = to;
    if (bins->groups_a != NULL) {
        n = leave_out(search, bins, atom, n);
    }
    choose_bins(bins, search->squares, n);
    for (size_t k = 0; k < n; k++) {
        if (bins->bin[k] != UNCERTAIN) {
            bins->counts[bins->bin[k]]++;
        } else {
            count_by_metric(&search->metric, bins, pairs_square(search, atom, k));
        }
    }
    return SEARCH_OK;
}

int search_histogram(struct scratch *scratch, const struct lattice *lattice, struct group a, const struct group *b,
                     const int64_t *groups_a, const int64_t *groups_b, const double *edges, size_t n, int64_t *counts) {
    if (a.n == 0 || (b != NULL && b->n == 0)) {
        return SEARCH_OK;
    }
    struct pair_search search;
    const int status = pairs_set(&search, scratch, lattice, a, b, 1, edges[n]);
    if (status != SEARCH_OK) {
        return status;
    }
    struct bins bins = {.n = n, .width = (float)(edges[n] / (double)n)};
    bins.counts = counts;
    bins.groups_a = search.swapped ? groups_b : groups_a;
    bins.groups_b = search.swapped ? groups_a : groups_b;
    bins.margin = search.grid.margin + search.grid.reach * search.grid.reach * ROUNDINGS_OF_EDGE;
    bins.limits = scratch_take(scratch, SCRATCH_LIMITS, n * sizeof *bins.limits);
    bins.bin = scratch_take(scratch, SCRATCH_BINS, (search.cells.slots + 1) * sizeof *bins.bin);
    if (bins.limits == NULL || bins.bin == NULL) {
        return SEARCH_NO_MEMORY;
    }
    for (size_t i = 0; i < n; i++) {
        bins.limits[i] = least_square(edges[i]);
    }
    return pairs_each(&search, count, &bins);
}
