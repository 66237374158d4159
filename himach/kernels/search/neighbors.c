/* Pairs within a cutoff, listed: of atoms, or of the groups that these belong to. */
#include "search/search.h"

#include "search/pairs_each.h"

enum { RECENT = 4096 };

struct list {
    struct scratch *scratch;
    struct atom_pair *pairs;
    size_t n, room;
    /* Of pairs of groups: */
    const int64_t *a, *b;    /* the groups of atoms, as the search has them */
    int distances;           /* whether least distances are wanted */
    uint32_t recent[RECENT]; /* places in the list of some pairs, by their groups */
};

static int make_room(struct list *list, size_t more) {
    if (list->n + more > list->room) {
        list->room = 2 * list->room + more;
        list->pairs = scratch_grow(list->scratch, SCRATCH_FOUND, list->room * sizeof *list->pairs);
    }
    return list->pairs == NULL ? SEARCH_NO_MEMORY : SEARCH_OK;
}

static int append_atoms(void *to, const struct pair_search *search, size_t atom, size_t n) {
    struct list *list = to;
    if (n != 0 && make_room(list, n) != SEARCH_OK) {
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

/* Most pairs of groups were listed a little before; those that are equal are joined in the end. The metric is computed
 * only where single precision does not decide whether atoms are near, or nearer than those before. */
static int append_groups(void *to, const struct pair_search *search, size_t atom, size_t n) {
    struct list *list = to;
    const float inside = search->grid.inside;
    const double margin = search->grid.margin;
    if (n != 0 && make_room(list, n) != SEARCH_OK) {
        return SEARCH_NO_MEMORY;
    }
    for (size_t k = 0; k < n; k++) {
        const uint32_t own = (uint32_t)list->a[atom];
        const uint32_t other = (uint32_t)list->b[search->cells.atoms[search->slots[k]]];
        const int turned = search->same_group ? other < own : search->swapped;
        const uint32_t i = turned ? other : own, j = turned ? own : other;
        if (search->same_group && i == j) {
            continue;
        }
        uint32_t *place = &list->recent[(i * 61 + j) % RECENT];
        struct atom_pair *earlier = &list->pairs[*place];
        const int known = *place < list->n && earlier->i == i && earlier->j == j;
        if (known && (!list->distances || search->squares[k] - margin > earlier->square)) {
            continue;
        }
        double square = 0;
        if (list->distances || search->squares[k] > inside) {
            square = pairs_square(search, atom, k);
            if (square > search->metric.limit) {
                continue;
            }
        }
        if (known) {
            earlier->square = square < earlier->square ? square : earlier->square;
        } else {
            *place = (uint32_t)list->n;
            list->pairs[list->n++] = (struct atom_pair){i, j, square};
        }
    }
    return SEARCH_OK;
}

/* Put the pairs, i < n_i and j < n_j, in the order of i and j. */
static int sort(struct list *list, size_t n_i, size_t n_j, const struct atom_pair **matches, size_t *n_matches) {
    struct atom_pair *other = scratch_take(list->scratch, SCRATCH_SORTED, list->n * sizeof *other);
    if (other == NULL) {
        return SEARCH_NO_MEMORY;
    }
    *matches = list->pairs;
    *n_matches = list->n;
    return pairs_sort(list->scratch, list->pairs, list->n, n_i, n_j, other);
}

/* Join pairs of the same groups, which follow one another, to one with the least distance; return how many are left. */
static size_t join(struct atom_pair *pairs, size_t n) {
    size_t joined = 0;
    for (size_t k = 0; k < n; k++) {
        if (joined == 0 || pairs[k].i != pairs[joined - 1].i || pairs[k].j != pairs[joined - 1].j) {
            pairs[joined++] = pairs[k];
        } else if (pairs[k].square < pairs[joined - 1].square) {
            pairs[joined - 1].square = pairs[k].square;
        }
    }
    return joined;
}

int search_neighbors(struct scratch *scratch, const struct lattice *lattice, struct group a, const struct group *b,
                     double cutoff, const struct atom_pair **matches, size_t *n_matches) {
    *n_matches = 0;
    if (a.n == 0 || (b != NULL && b->n == 0)) {
        return SEARCH_OK;
    }
    struct pair_search search;
    struct list list = {.scratch = scratch};
    int status = pairs_set(&search, scratch, lattice, a, b, 0, cutoff);
    if (status == SEARCH_OK) {
        status = pairs_each(&search, append_atoms, &list);
    }
    return status != SEARCH_OK ? status : sort(&list, a.n, b == NULL ? a.n : b->n, matches, n_matches);
}

int search_contacts(struct scratch *scratch, const struct lattice *lattice, struct group a, const int64_t *groups_a,
                    size_t n_a, const struct group *b, const int64_t *groups_b, size_t n_b, double cutoff,
                    int distances, const struct atom_pair **matches, size_t *n_matches) {
    *n_matches = 0;
    if (a.n == 0 || (b != NULL && b->n == 0)) {
        return SEARCH_OK;
    }
    struct pair_search search;
    struct list list = {.scratch = scratch, .distances = distances};
    int status = pairs_set(&search, scratch, lattice, a, b, 0, cutoff);
    list.a = search.swapped ? groups_b : groups_a;
    list.b = b == NULL || search.swapped ? groups_a : groups_b;
    if (status == SEARCH_OK) {
        status = pairs_each(&search, append_groups, &list);
    }
    if (status == SEARCH_OK) {
        status = sort(&list, n_a, b == NULL ? n_a : n_b, matches, n_matches);
        *n_matches = join(list.pairs, *n_matches);
    }
    return status;
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
