/* Pairs of atoms within a cutoff: between two groups, or in one. What `neighbors` and `histogram` have in common. */
#pragma once

#include "search/cell_list.h"
#include "search/search.h"

struct pair_search {
    struct metric metric;
    struct grid grid;
    struct cell_list cells;
    int by_cells;    /* else all pairs are what was found */
    int same_group;  /* whether pairs in one group are wanted, each once */
    int swapped;     /* whether `a` is the caller's second group */
    struct group a;  /* whose atoms are looked around from, as they came */
    struct group b;  /* whose atoms are found; `a` itself for pairs in one group */
    float *placed_a; /* what the metric takes distances from; of two groups only where it was asked for */
    float *placed_b;
    const int32_t *candidates; /* atoms of `a` that may have neighbours in `b` */
    size_t n_candidates;
    uint32_t *slots; /* the neighbours of one atom: slots of the cell list, */
    float *squares;  /* and their squared distances in single precision */
};

/* Get ready to search; `b` NULL: pairs in one group, `metric_of_two`: decided as between two. Returns a status. */
int pairs_set(struct pair_search *search, struct scratch *scratch, const struct lattice *lattice, struct group a,
              const struct group *b, int metric_of_two, double cutoff);

/* Fill `slots` and `squares` with what may be within the cutoff of an atom, which is placed; return how many. */
size_t pairs_around(const struct pair_search *search, size_t atom);

/* The same for pairs in one group: what comes after this slot of row (y, z), so that each pair is found once. */
size_t pairs_after(const struct pair_search *search, uint32_t slot, int y, int z);

/* The squared distance, by the metric, of the atom to the k-th of the neighbours of it. */
double pairs_square(const struct pair_search *search, size_t atom, size_t k);

/* Put n pairs, i < n_i and j < n_j, in the order of i and j; `other` is room for as many. */
int pairs_sort(struct scratch *scratch, struct atom_pair *pairs, size_t n, size_t n_i, size_t n_j,
               struct atom_pair *other);
