/* Frames as the store has them: read back before it is said that they are there. */
#pragma once

#include "store/dataset.h"

/* A frame that was read back and checked; its arrays live as long as it. */
typedef struct {
    bodhi_frame frame;
    uint32_t ordinal; /* of its segment */
    record_header header;
    unsigned char *record;
    float *positions; /* of a packed record */
} stored_frame;

/* Read back a frame of one kind: the first copy that is there, right, and as far as is known on disk. Copies that are
 * damaged or gone are passed over from now on. OK, MISS (there is none), or an error if that cannot be told now:
 * SYSTEM, MEMORY. Only after OK there is something to free. */
int stored_find(bodhi_dataset *dataset, unsigned kind, uint64_t number, stored_frame *stored);

/* Read back the record at `offset` of the segment that is open as `fd`. As stored_find(); MISS: it is not right, and
 * the message says why. */
int stored_read(int fd, const segment_key *key, uint64_t offset, uint64_t length, stored_frame *stored);

void stored_free(stored_frame *stored);

/* Whether a frame of this number is another than the one that is there, bit by bit; `why` then says how. */
bool stored_differs(const stored_frame *stored, const bodhi_frame *frame, char *why, size_t size);
