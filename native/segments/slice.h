/* The atoms of a slice: a record that has some atoms of a frame says which they are. */
#ifndef BODHI_SLICE_H
#define BODHI_SLICE_H

#include "codec/ids.h"
#include "segments/record.h"

/* Heads of records are not longer than this: of 2^32 atoms in the least blocks that are written. */
#define SLICE_MOST_HEAD (UINT32_C(1) << 28)

/* The set that a record told whole, of which others tell what differs. */
typedef struct {
    segment_key of;
    uint64_t offset;
    id_set set; /* n 0: none */
} slice_base;

void slice_base_free(slice_base *base);

/* Take the atoms of the record at `record`, of which `told` are the bytes that tell them and are right: header.n_atoms
 * ids. What it differs from is read from the segment at `fd` (-1: cannot be), unless it is in `base`, which it is put
 * into. False: damaged, or memory is out. */
bool slice_ids(int fd, const segment_key *key, const record_header *header, const unsigned char *told, size_t size,
               slice_base *base, uint32_t *ids);

/* The bytes that tell the atoms of a record whose head is at `record`: where they begin, from its beginning, and how
 * many they are; 0: it tells none. */
uint64_t slice_told_at(const unsigned char *record, const record_header *header, uint32_t *size);

#endif
