/* Bridges between strands of a protein, and the ladders that they form. */
#pragma once

#include "proteins/bonds.h"

/* Memory that bridges_mark needs for n residues. */
size_t bridges_scratch(size_t n);

/* Mark the residues in ladders with E and those in single bridges with B. `scratch` is of bridges_scratch(n) bytes. */
void bridges_mark(const struct backbone *backbone, const bond_partners *partners, void *scratch, uint8_t *states);
