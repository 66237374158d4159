/* Searches by distance: `within`, `neighbors`, `contacts` and `histogram` of himach.kernels. They return a status.
 *
 * All decide as MDAnalysis's capped_distance() does, to the last bit: single precision finds what is surely within the
 * cutoff and what is surely beyond, and a metric decides about the few pairs between. */
#pragma once

#include "box/metric.h"
#include "search/scratch.h"

#include <stdint.h>

enum {
    SEARCH_OK = 0,
    SEARCH_NO_MEMORY = -1,
    SEARCH_NOT_FINITE = -2, /* a coordinate is NaN or infinite */
};

/* Find which atoms of `group` are within the cutoff of any of `others`: `*matches`, ascending, in the scratch. */
int search_within(struct scratch *scratch, const struct lattice *lattice, struct group group, struct group others,
                  double cutoff, const int64_t **matches, size_t *n_matches);

struct atom_pair {
    uint32_t i, j;
    double square; /* Å² */
};

/* Find the pairs of two groups within the cutoff, or those in `a` (`b` NULL, i < j), in the order of i and j. */
int search_neighbors(struct scratch *scratch, const struct lattice *lattice, struct group a, const struct group *b,
                     double cutoff, const struct atom_pair **matches, size_t *n_matches);

/* Find the pairs of groups of which any two atoms are within the cutoff. `groups_a` has the group of each atom of `a`,
 * less than n_a; `b` as in search_neighbors(), where it is NULL pairs of a group with itself are none. `*matches` is in
 * the order of i and j, in the scratch, with the squares of least distances if these are wanted. */
int search_contacts(struct scratch *scratch, const struct lattice *lattice, struct group a, const int64_t *groups_a,
                    size_t n_a, const struct group *b, const int64_t *groups_b, size_t n_b, double cutoff,
                    int distances, const struct atom_pair **matches, size_t *n_matches);

/* Write them into arrays: indices (n, 2), and distances (n,) in Å unless NULL. */
void search_write(const struct atom_pair *matches, size_t n, int64_t *indices, double *distances);

/* Add to `counts` (bins) how many pairs within edges[bins] have distances in [edges[i], edges[i + 1]), the last one
 * included. Edges are from 0, evenly apart. Each pair in one group counts once. Pairs of which both atoms have one
 * number in `groups_a` (a.n) and `groups_b` (b->n, or `groups_a` again) do not count; NULL where all do. */
int search_histogram(struct scratch *scratch, const struct lattice *lattice, struct group a, const struct group *b,
                     const int64_t *groups_a, const int64_t *groups_b, const double *edges, size_t bins,
                     int64_t *counts);
