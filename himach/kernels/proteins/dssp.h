/* Secondary structure of a protein, by the definitions of DSSP. */
#pragma once

#include "search/search.h"

#include <stddef.h>
#include <stdint.h>

enum { DSSP_CHAINS_FALL = -3, DSSP_NO_BOX = -4 };

/* Tell the state of each of n residues: one of "HBEGITSP", or '-'. Positions (n, 4, 3) are of N, CA, C and O; chains
 * (n,) are numbers that do not fall, NULL for one chain; prolines (n,) tell which residues are some, NULL where none
 * is; box (6,) has lengths in Å and angles in degrees, NULL where chains are whole. Returns one of these or a status of
 * a search. */
int dssp_assign(struct scratch *search, const float *positions, const int64_t *chains, const uint8_t *prolines,
                size_t n, const float *box, uint8_t *states);
