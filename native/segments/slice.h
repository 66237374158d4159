/* The atoms of a slice: a record that has some atoms of a frame says which they are. */
#ifndef BODHI_SLICE_H
#define BODHI_SLICE_H

#include "codec/id_order.h"
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

/* The atoms of a slice that is written: bits, or, if there are none, ids that ascend. */
typedef struct {
    id_bits bits;
    const uint32_t *ids;
    size_t n;
} slice_atoms;

/* What tells the atoms of slices that are written to a segment one after the other: whole, or by what differs from one
 * that was told so. All zeros at first. */
typedef struct {
    id_bytes told; /* of the last */
    slice_base base;
    uint64_t *words; /* of the base, if it is bits */
    size_t n_words, capacity;
    unsigned n_deltas; /* to it */
    id_set differing;  /* scratch */
} ids_encoder;

/* Tell the atoms of the record at `offset` of a segment, which as a set alone take `most` bytes at most. False: memory
 * is out. */
bool ids_encode(ids_encoder *t, slice_atoms atoms, const segment_key *key, uint64_t offset, size_t most);

size_t slice_told_most(slice_atoms atoms);

/* What was told may have been undone: nothing more is told by it. */
void ids_encoder_forget(ids_encoder *t);
void ids_encoder_free(ids_encoder *t);

/* Take the atoms of the record at `record`, of which `told` are the bytes that tell them and are right: header.n_atoms
 * ids. What it differs from is read from the segment at `fd` (-1: cannot be), unless it is in `base`, which it is put
 * into. False: damaged, or memory is out. */
bool slice_ids(int fd, const segment_key *key, const record_header *header, const unsigned char *told, size_t size,
               slice_base *base, uint32_t *ids);

/* The bytes that tell the atoms of a record whose head is at `record`: where they begin, from its beginning, and how
 * many they are; 0: it tells none. */
uint64_t slice_told_at(const unsigned char *record, const record_header *header, uint32_t *size);

#endif
