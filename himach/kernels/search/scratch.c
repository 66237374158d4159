#include "search/scratch.h"

#include <stdlib.h>
#include <string.h>

#define ALIGNMENT ((size_t)64)

static void *replace(struct scratch *scratch, enum scratch_block block, size_t bytes, int keep) {
    if (bytes <= scratch->size[block] && scratch->memory[block] != NULL) {
        return scratch->memory[block];
    }
    /* Half as much again: boxes and neighbours fluctuate, and the next frame may need a little more. */
    size_t size = (bytes + bytes / 2 + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
    void *memory = aligned_alloc(ALIGNMENT, size);
    if (memory == NULL) {
        return NULL;
    }
    if (keep && scratch->memory[block] != NULL) {
        memcpy(memory, scratch->memory[block], scratch->size[block]);
    }
    free(scratch->memory[block]);
    scratch->memory[block] = memory;
    scratch->size[block] = size;
    return memory;
}

void *scratch_take(struct scratch *scratch, enum scratch_block block, size_t bytes) {
    return replace(scratch, block, bytes, 0);
}

void *scratch_grow(struct scratch *scratch, enum scratch_block block, size_t bytes) {
    return replace(scratch, block, bytes, 1);
}

void scratch_free(struct scratch *scratch) {
    for (int block = 0; block < SCRATCH_BLOCKS; block++) {
        free(scratch->memory[block]);
        scratch->memory[block] = NULL;
        scratch->size[block] = 0;
    }
}
