/* Claiming a segment to write to: one that has room and that no other writer holds, else a new one. */
#ifndef BODHI_CLAIM_H
#define BODHI_CLAIM_H

#include <stdint.h>

#include "store/dataset.h"

/* A segment that is ours to append to until its descriptor is closed. */
typedef struct {
    uint32_t ordinal;
    segment_key key;
    char name[SEGMENT_NAME];
    int fd, index_fd;
    uint64_t end;       /* where the next record goes */
    uint64_t index_end; /* where the next index entry goes */
    bool created;
} claim;

/* Claim a segment with room for `length` bytes below `segment_bytes`. Needs the mutex. FULL, SYSTEM, MEMORY. */
int claim_segment(bodhi_dataset *dataset, unsigned kind, uint64_t length, uint64_t segment_bytes, claim *claimed);

#endif
