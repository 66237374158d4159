/* Hydrogen bonds of a protein's backbone, by the electrostatic energy of Kabsch and Sander. */
#pragma once

#include <stddef.h>
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

/* Memory that bonds_find needs for n residues. */
size_t bonds_scratch(size_t n);

/* Find the bonds. `scratch` is of bonds_scratch(n) bytes. */
void bonds_find(const struct backbone *backbone, void *scratch, bond_partners *partners);
