/* Bridges between strands of a protein, and the ladders that they form. */
#include "proteins/backbone.h"

#include <stdlib.h>

enum kind { PARALLEL, ANTIPARALLEL };

/* Residues i < j, each in the middle of three, and how they lie to each other. */
struct bridge {
    int32_t i, j;
    enum kind kind;
};

/* Bridges that follow one another, from the first to the last residue on either side. */
struct ladder {
    int32_t i_first, i_last, j_first, j_last;
    enum kind kind;
    int n_bridges;
};

/* Each bond is at the head of three patterns at most, and there are two bonds a residue. */
enum { BRIDGES_A_RESIDUE = 6, NEAREST = 3 };

size_t bridges_scratch(size_t n) {
    return BRIDGES_A_RESIDUE * n * (sizeof(struct bridge) + sizeof(struct ladder));
}

static int has_neighbors(const struct backbone *backbone, int64_t i) {
    return i > 0 && (size_t)i + 1 < backbone->n && of_one_chain(backbone, (size_t)i - 1, (size_t)i + 1);
}

static size_t add(const struct backbone *backbone, struct bridge *bridges, size_t n, int64_t i, int64_t j,
                  enum kind kind) {
    const int64_t low = i < j ? i : j, high = i < j ? j : i;
    if (high - low < NEAREST || !has_neighbors(backbone, low) || !has_neighbors(backbone, high)) {
        return n;
    }
    bridges[n] = (struct bridge){(int32_t)low, (int32_t)high, kind};
    return n + 1;
}

/* Find the bridges by the bonds that make them: from h to o, and another one that completes a pattern. */
static size_t find(const struct backbone *backbone, const bond_partners *partners, struct bridge *bridges) {
    size_t n = 0;
    for (int64_t h = 0; h < (int64_t)backbone->n; h++) {
        for (int k = 0; k < 2; k++) {
            const int64_t o = partners[h][k];
            if (o < 0) {
                continue;
            }
            if (h >= 2 && is_bonded(partners, o, h - 2)) {
                n = add(backbone, bridges, n, h - 1, o, PARALLEL);
            }
            if (h >= 2 && (size_t)o + 2 < backbone->n && is_bonded(partners, o + 2, h - 2)) {
                n = add(backbone, bridges, n, h - 1, o + 1, ANTIPARALLEL);
            }
            if (is_bonded(partners, o, h)) {
                n = add(backbone, bridges, n, h, o, ANTIPARALLEL);
            }
        }
    }
    return n;
}

static int compare(const void *first, const void *second) {
    const struct bridge *a = first, *b = second;
    if (a->i != b->i) {
        return a->i < b->i ? -1 : 1;
    }
    if (a->j != b->j) {
        return a->j < b->j ? -1 : 1;
    }
    return (int)a->kind - (int)b->kind;
}

/* Put a bridge at the end of the first ladder that it continues, or into one of its own; return how many there are. */
static size_t place(const struct bridge *bridge, struct ladder *ladders, size_t n) {
    /* A ladder's i rises with every bridge, and bridges come in the order of i: what can be continued begins late. */
    for (size_t k = 0; k < n; k++) {
        struct ladder *ladder = &ladders[k];
        if (ladder->kind != bridge->kind || ladder->i_last + 1 != bridge->i) {
            continue;
        }
        if (bridge->kind == PARALLEL && ladder->j_last + 1 == bridge->j) {
            ladder->j_last = bridge->j;
        } else if (bridge->kind == ANTIPARALLEL && ladder->j_first - 1 == bridge->j) {
            ladder->j_first = bridge->j;
        } else {
            continue;
        }
        ladder->i_last = bridge->i;
        ladder->n_bridges++;
        return n;
    }
    ladders[n] = (struct ladder){bridge->i, bridge->i, bridge->j, bridge->j, bridge->kind, 1};
    return n + 1;
}

static int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static int32_t most(int32_t a, int32_t b) {
    return a > b ? a : b;
}

/* Whether one ladder goes on in another one, with a bulge: up to one residue between them in one strand, and up to four
 * in the other. */
static int has_bulge(const struct backbone *backbone, const struct ladder *a, const struct ladder *b) {
    const int32_t i_step = b->i_first - a->i_last;
    const int32_t j_step = a->kind == PARALLEL ? b->j_first - a->j_last : a->j_first - b->j_last;
    if (a->kind != b->kind || i_step <= 0 || j_step < 0 || i_step >= 6 || j_step >= 6 || (i_step >= 3 && j_step >= 3)) {
        return 0;
    }
    return of_one_chain(backbone, (size_t)a->i_first, (size_t)most(a->i_last, b->i_last)) &&
           of_one_chain(backbone, (size_t)least(a->j_first, b->j_first), (size_t)most(a->j_last, b->j_last));
}

static void join(struct ladder *a, const struct ladder *b) {
    a->i_last = b->i_last;
    a->n_bridges += b->n_bridges;
    if (a->kind == PARALLEL) {
        a->j_last = b->j_last;
    } else {
        a->j_first = b->j_first;
    }
}

static size_t join_all(const struct backbone *backbone, struct ladder *ladders, size_t n) {
    for (size_t i = 0; i < n; i++) {
        for (size_t j = i + 1; j < n; j++) {
            if (has_bulge(backbone, &ladders[i], &ladders[j])) {
                join(&ladders[i], &ladders[j]);
                for (size_t k = j + 1; k < n; k++) {
                    ladders[k - 1] = ladders[k];
                }
                n--;
                j--;
            }
        }
    }
    return n;
}

static void mark(uint8_t *states, int32_t first, int32_t last, uint8_t state) {
    for (int32_t i = first; i <= last; i++) {
        if (states[i] != 'E') {
            states[i] = state;
        }
    }
}

void bridges_mark(const struct backbone *backbone, const bond_partners *partners, void *scratch, uint8_t *states) {
    struct bridge *bridges = scratch;
    struct ladder *ladders = (struct ladder *)(bridges + BRIDGES_A_RESIDUE * backbone->n);
    const size_t n_bridges = find(backbone, partners, bridges);
    size_t n = 0;
    qsort(bridges, n_bridges, sizeof *bridges, compare);
    for (size_t k = 0; k < n_bridges; k++) {
        /* One pattern is found from either of its bonds; of two kinds between two residues it is the parallel one. */
        if (k == 0 || bridges[k].i != bridges[k - 1].i || bridges[k].j != bridges[k - 1].j) {
            n = place(&bridges[k], ladders, n);
        }
    }
    n = join_all(backbone, ladders, n);
    for (size_t k = 0; k < n; k++) {
        const uint8_t state = ladders[k].n_bridges > 1 ? 'E' : 'B';
        mark(states, ladders[k].i_first, ladders[k].i_last, state);
        mark(states, ladders[k].j_first, ladders[k].j_last, state);
    }
}
