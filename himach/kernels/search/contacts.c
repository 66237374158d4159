/* Pairs of groups that have any two atoms within a cutoff, with their least distance: found pairs of atoms go into a
 * hash table of pairs of groups, of which there are few. */
#include "search/search.h"

#include "search/pairs_each.h"

#define NONE       UINT64_MAX
#define ROOM       1024 /* of the table at first, a power of two */
#define MULTIPLIER UINT64_C(0x9E3779B97F4A7C15)

struct contact {
    uint64_t groups; /* i << 32 | j, or NONE */
    double square;
};

struct table {
    struct scratch *scratch;
    const int64_t *a, *b; /* the groups of atoms, as the search has them */
    int distances;        /* whether least distances are wanted */
    struct contact *contacts;
    size_t n, room;
};

static struct contact *find(const struct table *table, uint64_t groups) {
    const size_t last = table->room - 1;
    size_t at = (size_t)((groups * MULTIPLIER) >> 32) & last;
    while (table->contacts[at].groups != groups && table->contacts[at].groups != NONE) {
        at = (at + 1) & last;
    }
    return &table->contacts[at];
}

static void clear(struct table *table) {
    for (size_t k = 0; k < table->room; k++) {
        table->contacts[k].groups = NONE;
    }
}

/* Twice the room for what the table holds. */
static int grow(struct table *table) {
    const size_t bytes = table->room * sizeof *table->contacts;
    struct contact *old = scratch_take(table->scratch, SCRATCH_SORTED, bytes);
    if (old == NULL) {
        return SEARCH_NO_MEMORY;
    }
    memcpy(old, table->contacts, bytes);
    table->contacts = scratch_take(table->scratch, SCRATCH_FOUND, 2 * bytes);
    if (table->contacts == NULL) {
        return SEARCH_NO_MEMORY;
    }
    const size_t n_old = table->room;
    table->room *= 2;
    clear(table);
    for (size_t k = 0; k < n_old; k++) {
        if (old[k].groups != NONE) {
            *find(table, old[k].groups) = old[k];
        }
    }
    return SEARCH_OK;
}

static int insert(struct table *table, struct contact *to, uint64_t groups, double square) {
    if (to->groups == groups) {
        to->square = square < to->square ? square : to->square;
        return SEARCH_OK;
    }
    *to = (struct contact){groups, square};
    return 2 * ++table->n > table->room ? grow(table) : SEARCH_OK;
}

/* The groups of two atoms in the caller's order; NONE for one group. */
INLINE uint64_t groups_of(const struct table *table, const struct pair_search *search, size_t atom, size_t other) {
    const uint64_t i = (uint64_t)table->a[atom], j = (uint64_t)table->b[other];
    if (search->same_group) {
        return i < j ? i << 32 | j : i > j ? j << 32 | i : NONE;
    }
    return search->swapped ? j << 32 | i : i << 32 | j;
}

/* The metric is asked only where single precision cannot tell whether atoms are near, or nearer than those before. */
static int add_found(void *to, const struct pair_search *search, size_t atom, size_t n) {
    struct table *table = to;
    const float inside = search->grid.inside;
    const double margin = search->grid.margin;
    int status = SEARCH_OK;
    for (size_t k = 0; k < n && status == SEARCH_OK; k++) {
        const uint64_t groups = groups_of(table, search, atom, search->cells.atoms[search->slots[k]]);
        if (groups == NONE) {
            continue;
        }
        struct contact *contact = find(table, groups);
        if (contact->groups == groups && (!table->distances || search->squares[k] - margin > contact->square)) {
            continue;
        }
        double square = 0;
        if (table->distances || search->squares[k] > inside) {
            square = pairs_square(search, atom, k);
            if (square > search->metric.limit) {
                continue;
            }
        }
        status = insert(table, contact, groups, square);
    }
    return status;
}

/* Take the contacts out of the table, in order. */
static int list(const struct table *table, size_t n_a, size_t n_b, const struct atom_pair **matches) {
    struct atom_pair *pairs = scratch_take(table->scratch, SCRATCH_SORTED, table->n * sizeof *pairs);
    if (pairs == NULL) {
        return SEARCH_NO_MEMORY;
    }
    size_t n = 0;
    for (size_t k = 0; k < table->room; k++) {
        const struct contact contact = table->contacts[k];
        if (contact.groups != NONE) {
            pairs[n++] = (struct atom_pair){(uint32_t)(contact.groups >> 32), (uint32_t)contact.groups, contact.square};
        }
    }
    struct atom_pair *sorted = scratch_take(table->scratch, SCRATCH_FOUND, n * sizeof *sorted);
    *matches = pairs;
    return sorted == NULL ? SEARCH_NO_MEMORY : pairs_sort(table->scratch, pairs, n, n_a, n_b, sorted);
}

int search_contacts(struct scratch *scratch, const struct lattice *lattice, struct group a, const int64_t *groups_a,
                    size_t n_a, const struct group *b, const int64_t *groups_b, size_t n_b, double cutoff,
                    int distances, const struct atom_pair **matches, size_t *n_matches) {
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
    struct table table = {.scratch = scratch, .a = groups_a, .b = groups_a, .distances = distances, .room = ROOM};
    if (b != NULL) {
        table.a = search.swapped ? groups_b : groups_a;
        table.b = search.swapped ? groups_a : groups_b;
    }
    const size_t columns = b == NULL ? n_a : n_b;
    table.contacts = scratch_take(scratch, SCRATCH_FOUND, ROOM * sizeof *table.contacts);
    if (table.contacts == NULL) {
        return SEARCH_NO_MEMORY;
    }
    clear(&table);
    status = pairs_each(&search, add_found, &table);
    if (status != SEARCH_OK || table.n == 0) {
        return status;
    }
    *n_matches = table.n;
    return list(&table, n_a, columns, matches);
}
