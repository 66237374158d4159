/* Memory that a kernel keeps between frames, so that a frame allocates nothing. One at a time may use a scratch. */
#pragma once

#include <stddef.h>

enum scratch_block {
    SCRATCH_MASK,
    SCRATCH_MASK_LINES,
    SCRATCH_CELLS,
    SCRATCH_STARTS,
    SCRATCH_POINTS,
    SCRATCH_X,
    SCRATCH_Y,
    SCRATCH_Z,
    SCRATCH_ATOMS,
    SCRATCH_CANDIDATES,
    SCRATCH_HITS,
    SCRATCH_PLACED_A,
    SCRATCH_PLACED_B,
    SCRATCH_FOUND,
    SCRATCH_SORTED,
    SCRATCH_BINS,
    SCRATCH_LIMITS,
    SCRATCH_SQUARES,
    SCRATCH_BLOCKS
};

struct scratch {
    void *memory[SCRATCH_BLOCKS];
    size_t size[SCRATCH_BLOCKS];
};

/* Return a block of at least `bytes`, aligned to 64; NULL if there is no memory. Its contents are lost if it grows. */
void *scratch_take(struct scratch *scratch, enum scratch_block block, size_t bytes);

/* The same, but what the block holds stays. */
void *scratch_grow(struct scratch *scratch, enum scratch_block block, size_t bytes);

void scratch_free(struct scratch *scratch);
