/* Secondary structure of a protein, by the definitions of DSSP. */
#pragma once

#include "search/search.h"

#include <stddef.h>
#include <stdint.h>

enum { DSSP_CHAINS_FALL = -3 };

/* Tell the state of each of n residues: one of "HBEGITSP", or '-'. Positions (n, 4, 3) are of N, CA, C and O; chains
 * (n,) are numbers that do not fall, NULL for one chain; prolines (n,) tell which residues are some, NULL where none
 * is; chains are made whole by the lattice, if there is a box. Returns DSSP_CHAINS_FALL or a status of a search. */
int dssp_assign(struct scratch *search, const float *positions, const int64_t *chains, const uint8_t *prolines,
                size_t n, const struct lattice *lattice, uint8_t *states);
