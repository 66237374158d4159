/* The backbone of a protein: its hydrogen bonds, and the bridges that these form. What needs memory gets it
 * as `scratch`, of so many bytes for n residues as a function of its own tells. */
#pragma once

#include "box/lattice.h"
#include "search/scratch.h"

#include <stdint.h>

enum backbone_atom { BACKBONE_N, BACKBONE_CA, BACKBONE_C, BACKBONE_O, BACKBONE_ATOMS };

/* Positions (n, 4, 3) of N, CA, C and O; chains, NULL for one; whether each is a proline, NULL where none is. */
struct backbone {
    const float (*at)[BACKBONE_ATOMS][3];
    const int64_t *chains;
    const uint8_t *prolines;
    size_t n;
};

/* Of each residue the two whose O its hydrogen is bonded to best, best first; -1 for none. */
typedef int32_t bond_partners[2];

/* Whether residues of the backbone are of one chain; there are no gaps in chains. */
static inline int of_one_chain(const struct backbone *backbone, size_t a, size_t b) {
    return backbone->chains == NULL || backbone->chains[a] == backbone->chains[b];
}

/* Whether the hydrogen of a residue is bonded to the oxygen of another one. */
static inline int is_bonded(const bond_partners *partners, int64_t donor, int64_t acceptor) {
    return partners[donor][0] == acceptor || partners[donor][1] == acceptor;
}

/* Find the hydrogen bonds, by the electrostatic energy of Kabsch and Sander. Returns the status of a search. */
size_t bonds_scratch(size_t n);
int bonds_find(const struct backbone *backbone, struct scratch *search, void *scratch, bond_partners *partners);

/* Mark the residues in ladders of bridges between strands with E and those in single bridges with B. */
size_t bridges_scratch(size_t n);
void bridges_mark(const struct backbone *backbone, const bond_partners *partners, void *scratch, uint8_t *states);
