/* Chains of a protein that the sides of the box cut, made whole. */
#include "proteins/backbone.h"

#include <string.h>

#include "molecules/molecules.h"

size_t whole_scratch(size_t n) {
    return BACKBONE_ATOMS * n * 2 * sizeof(int64_t);
}

void make_whole(const struct backbone *backbone, const struct lattice *lattice, void *scratch, float *positions) {
    int64_t(*bonds)[2] = scratch;
    size_t n = 0;
    for (size_t i = 0; i < backbone->n; i++) {
        const int64_t first = (int64_t)(BACKBONE_ATOMS * i);
        if (i > 0 && of_one_chain(backbone, i - 1, i)) {
            bonds[n][0] = first - BACKBONE_ATOMS + BACKBONE_C;
            bonds[n++][1] = first + BACKBONE_N;
        }
        for (int atom = BACKBONE_CA; atom < BACKBONE_ATOMS; atom++) {
            bonds[n][0] = first + atom - 1;
            bonds[n++][1] = first + atom;
        }
    }
    memcpy(positions, backbone->at, backbone->n * sizeof *backbone->at);
    groups_unwrap(lattice, positions, &bonds[0][0], n);
}
