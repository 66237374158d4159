/* Packed blocks: positions that lie on a grid, as small integers. Pure functions over bytes; docs/formats.md describes
 * the same in words.
 *
 * The positions are integers i of which each is (float)i * unit * scale, two roundings, as from XTC. A block is cut
 * into sections of equal molecules: of each molecule the first site as it is, the others as offsets from it. One axis
 * of one site makes a stream: its least value, and what the values exceed it by in as few bits as the largest takes.
 * The eight values of a row lie in eight lanes of 32 bits, which fill one above the other, so that one shift unpacks
 * all eight. Atoms whose offsets are too large (molecules split over the box) are patched. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PACKED_MAX_ATOMS = 1 << 16, /* in a block */
    PACKED_MAX_SITES = 8,       /* of a molecule */
    PACKED_LEAST_BYTES = 64,    /* of a block */
    PACKED_HEADER_BYTES = 16,
    PACKED_PATCH_BYTES = 16,
    PACKED_LANES = 8,
    PACKED_ROW_BYTES = 4 * PACKED_LANES,
    PACKED_AXES = 3,
    PACKED_STREAMS = PACKED_AXES * PACKED_MAX_SITES
};

/* Step i of the grid is at (float)i * unit * scale. */
typedef struct {
    float unit, scale;
} packed_grid;

static inline float packed_position(uint32_t i, packed_grid grid) {
    float position = (float)(int32_t)i * grid.unit;
    return position * grid.scale;
}

/* Bytes of a stream of `n` values of `width` bits. */
static inline uint64_t packed_stream_bytes(uint64_t n, unsigned width) {
    uint64_t rows = (n + PACKED_LANES - 1) / PACKED_LANES;
    return (rows * width + 31) / 32 * PACKED_ROW_BYTES;
}

/* Bytes in front of a section's streams. */
static inline size_t packed_section_bytes(unsigned sites) {
    return 8 + (size_t)sites * PACKED_AXES * 4 + ((size_t)sites * PACKED_AXES + 3) / 4 * 4;
}

/* One axis of one site of a section. */
typedef struct {
    const unsigned char *words; /* PACKED_ROW_BYTES more than it takes are there, two rows at least */
    uint32_t least;
    uint32_t width; /* 0 to 32 */
} packed_stream;

/* Decode rows by vector instructions; returns how many: all but the last, or none without such instructions. */
uint32_t packed_decode_rows(const packed_stream *streams, unsigned sites, uint32_t n_rows, packed_grid grid,
                            float *out);

/* Whether to decode without vector instructions, for tests. */
extern bool packed_portable;

/* Decode a block, within its bounds whatever the bytes are. False: it is none of so many atoms. */
bool packed_decode(const void *data, size_t size, uint32_t n_atoms, float *out);
