/* From a record in memory to a frame: checks, and decodes where it must. No I/O. */
#pragma once

#include "bodhi.h"
#include "segments/record.h"

/* What is asked of a frame. */
typedef struct {
    unsigned fields;           /* enum bodhi_field, or-ed */
    const bodhi_range *ranges; /* of atoms, ascending and apart; NULL: all */
    size_t n_ranges;
    bool unverified; /* checksums of blocks are not looked at */
} selection;

/* Bytes start to end - 1 of a record. */
typedef struct {
    uint64_t start, end;
} piece;

/* A block that is asked for. */
typedef struct {
    unsigned field;
    uint32_t first, atoms; /* its atoms */
    uint64_t offset;       /* from the beginning of the record */
    block_entry entry;
} wanted_block;

/* A walk over the blocks that are asked for, in the order of the record; begin with record, header and selection. */
typedef struct {
    const unsigned char *record; /* its head */
    const record_header *header;
    const selection *subset;
    uint32_t index;   /* of the next block, over all fields */
    uint64_t payload; /* bytes before it */
    size_t range;
} block_walk;

bool next_wanted_block(block_walk *walk, wanted_block *block);

/* Whether all of a record with these fields is needed. */
static inline bool needs_all(const selection *subset, unsigned fields) {
    return subset->ranges == NULL && (fields & 7U & ~subset->fields) == 0;
}

/* Whether the head is the whole head of a frame record that this version can decode. */
bool is_readable(const record_header *header);

enum unpacked {
    UNPACKED,
    UNPACK_DAMAGED,
    UNPACK_UNREAD /* blocks that are asked for lie outside the pieces */
};

/* Check the blocks that are asked for and find or decode the fields. `record` holds the bytes of `pieces` (ascending),
 * the head among them. Raw fields are pointed to where they lie in the record; packed positions are decoded to
 * `positions`, n_atoms x 3, which may be NULL for a raw record. Fields not asked for or not there are NULL. With
 * `fields` NULL checks alone. */
enum unpacked unpack_fields(unsigned char *record, const record_header *header, const selection *subset,
                            const piece *pieces, size_t n_pieces, float *positions, float *fields[FIELD_COUNT]);
