/* Pairs within a cutoff, listed. */
#include "search/search.h"

#include "search/pairs_each.h"

struct list {
    struct scratch *scratch;
    struct atom_pair *pairs;
    size_t n, room;
};

static int make_room(struct list *list, size_t more) {
    if (list->n + more <= list->room) {
        return 0;
    }
    const size_t room = 2 * list->room + more;
    list->pairs = scratch_grow(list->scratch, SCRATCH_FOUND, room * sizeof *list->pairs);
    list->room = room;
    return list->pairs == NULL ? -1 : 0;
}

static int append_found(void *to, const struct pair_search *search, size_t atom, size_t n) {
    struct list *list = to;
    if (make_room(list, n) != 0) {
        return SEARCH_NO_MEMORY;
    }
    for (size_t k = 0; k < n; k++) {
        const size_t other = search->cells.atoms[search->slots[k]];
        const double square = pairs_square(search, atom, k);
        if (square <= search->metric.limit) {
            const int turned = search->same_group ? other < atom : search->swapped;
            list->pairs[list->n++] =
                (struct atom_pair){(uint32_t)(turned ? other : atom), (uint32_t)(turned ? atom : other), square};
        }
    }
    return SEARCH_OK;
}

int search_neighbors(struct scratch *scratch, const struct lattice *lattice, struct group a, const struct group *b,
                     double cutoff, const struct atom_pair **matches, size_t *n_matches) {
    *n_matches = 0;
    *matches = NULL;
    if (a.n == 0 || (b != NULL && b->n == 0)) {
        return SEARCH_OK;
    }
    struct pair_search search;
    int status = pairs_set(&search, scratch, lattice, a, b, 0, cutoff);
    if (status != SEARCH_OK) {
        return status;
    }
    struct list list = {.scratch = scratch};
    status = pairs_each(&search, append_found, &list);
    if (status != SEARCH_OK || list.n == 0) {
        return status;
    }
    struct atom_pair *other = scratch_take(scratch, SCRATCH_SORTED, list.n * sizeof *other);
    if (other == NULL) {
        return SEARCH_NO_MEMORY;
    }
    *matches = list.pairs;
    *n_matches = list.n;
    return pairs_sort(scratch, list.pairs, list.n, a.n, b == NULL ? a.n : b->n, other);
}

void search_write(const struct atom_pair *matches, size_t n, int64_t *indices, double *distances) {
    for (size_t k = 0; k < n; k++) {
        indices[2 * k] = matches[k].i;
        indices[2 * k + 1] = matches[k].j;
    }
    for (size_t k = 0; distances != NULL && k < n; k++) {
        distances[k] = sqrt(matches[k].square);
    }
}
