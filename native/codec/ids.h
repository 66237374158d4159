/* Sets of atoms as bytes, and back. A set is told as runs or as bits, whichever is shorter; or as what differs from
 * another set, where that is shorter still. docs/formats.md describes it in words. No I/O. */
#ifndef BODHI_IDS_H
#define BODHI_IDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { IDS_HEAD = 16, IDS_UNIT = 4, IDS_MOST_DELTAS = 256 };

enum ids_coding { IDS_RUNS = 1, IDS_BITS = 2, IDS_DELTA = 3 };

/* Ids that ascend. */
typedef struct {
    uint32_t *ids;
    size_t n, capacity;
} id_set;

/* Bytes that tell a set; a multiple of IDS_UNIT. */
typedef struct {
    unsigned char *bytes;
    size_t size, capacity;
} id_bytes;

bool id_set_copy(id_set *to, const uint32_t *ids, size_t n);
void id_set_free(id_set *set);

/* Bytes that a set takes at most. */
size_t ids_most(const uint32_t *ids, size_t n);

/* Tell a set by itself. False: memory is out. */
bool ids_write(id_bytes *out, const uint32_t *ids, size_t n);

/* Tell a set by what differs from `base`, whose bytes lie in the record at `offset`; `scratch` is used. *shorter:
 * whether that takes fewer than `most` bytes, and than the set itself as runs; else nothing was written. False: memory
 * is out. */
bool ids_write_delta(id_bytes *out, const uint32_t *ids, size_t n, const id_set *base, uint64_t offset, size_t most,
                     id_set *scratch, bool *shorter);

/* Whether the bytes tell a delta, and from the set of which record. */
bool ids_are_delta(const unsigned char *data, size_t size, uint64_t *offset);

/* Take a set of just `n` ids, of which there is room at `ids`; of a delta, `base` is what it is to. False: damaged, or
 * memory is out. */
bool ids_read(const unsigned char *data, size_t size, const id_set *base, uint32_t *ids, size_t n);

/* What the bytes are made of; id_bits.c tells sets by them, too. */
static inline size_t ids_whole_units(size_t size) {
    return (size + IDS_UNIT - 1) / IDS_UNIT * IDS_UNIT;
}
void ids_write_head(id_bytes *out, enum ids_coding coding, size_t count, uint64_t offset);
size_t ids_varint_size(uint32_t value);
unsigned char *ids_varint_write(unsigned char *at, uint32_t value);

#endif
