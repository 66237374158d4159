/* The loop over the atoms of a search, inline in those who give the visit: a call an atom would be felt. It is no part
 * of pairs.h, because clang compiles no versions of a function that was called before. */
#pragma once

#include "search/pairs.h"

/* What is done with the n neighbours that were matches around an atom; anything but SEARCH_OK ends the search. */
typedef int pairs_visit(void *to, const struct pair_search *search, size_t atom, size_t n);

INLINE int pairs_each_between(const struct pair_search *search, pairs_visit *visit, void *to) {
    int status = SEARCH_OK;
    for (size_t k = 0; k < search->n_candidates && status == SEARCH_OK; k++) {
        const size_t atom = (size_t)search->candidates[k];
        status = visit(to, search, atom, pairs_around(search, atom));
    }
    return status;
}

INLINE int pairs_each_within(const struct pair_search *search, pairs_visit *visit, void *to) {
    const struct cell_list *cells = &search->cells;
    int status = SEARCH_OK;
    for (int z = cells->pad[2]; z < cells->pad[2] + cells->n[2]; z++) {
        for (int y = cells->pad[1]; y < cells->pad[1] + cells->n[1]; y++) {
            const struct run row = cell_list_core(cells, y, z);
            for (uint32_t slot = row.start; slot < row.end && status == SEARCH_OK; slot++) {
                status = visit(to, search, cells->atoms[slot], pairs_after(search, slot, y, z));
            }
        }
    }
    return status;
}

/* Every pair, for cutoffs beyond the box and coordinates far out. */
INLINE int pairs_each_of_all(const struct pair_search *search, pairs_visit *visit, void *to) {
    int status = SEARCH_OK;
    for (size_t i = 0; i < search->a.n && status == SEARCH_OK; i++) {
        size_t n = 0;
        for (size_t j = search->same_group ? i + 1 : 0; j < search->b.n; j++) {
            search->slots[n] = (uint32_t)j;
            search->squares[n++] = 0;
        }
        status = visit(to, search, i, n);
    }
    return status;
}

/* Visit every atom that may have neighbours. */
INLINE int pairs_each(const struct pair_search *search, pairs_visit *visit, void *to) {
    return !search->by_cells    ? pairs_each_of_all(search, visit, to)
           : search->same_group ? pairs_each_within(search, visit, to)
                                : pairs_each_between(search, visit, to);
}
