/* Room for what a writer appends, within the store's quota and the disk's reserve. It is granted in steps; grants that
 * are not used up yet stand in the store's file `quota`, so that all writers of a store together keep to its quota. */
#ifndef BODHI_QUOTA_H
#define BODHI_QUOTA_H

#include <stdint.h>

#include "store/dataset.h"

typedef struct {
    int fd;                /* of the file; -1: nothing was asked for yet */
    uint64_t slot;         /* our place in it, locked as long as we live */
    uint64_t left;         /* granted, and not appended yet */
    uint64_t outstanding;  /* granted, and not in a file yet: what the others must count */
    uint64_t refused;      /* bytes that were asked for in vain lately ... */
    int64_t refused_until; /* ... and when it is worth asking for as many again, ms */
} room;

/* Have room for `bytes` more of a dataset, evicting others if need be. Errors: FULL, SYSTEM, MEMORY. */
int room_ask(room *r, const bodhi_dataset *dataset, uint64_t bytes);

/* So many bytes were appended. */
void room_take(room *r, uint64_t bytes);

/* So many bytes that were appended are in a file, or never will be. */
void room_settle(room *r, uint64_t bytes);

/* Give back what is left. */
void room_close(room *r);

#endif
