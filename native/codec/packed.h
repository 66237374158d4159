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

/* Whether to decode without vector instructions, for tests. */
extern bool packed_portable;

/* Decode a block, within its bounds whatever the bytes are. False: it is none of so many atoms. */
bool packed_decode(const void *data, size_t size, uint32_t n_atoms, float *out);

/* A run of equal molecules within one block; of atoms that are patched, every one, if `sites` is 0. */
typedef struct {
    uint32_t sites, molecules;
    int64_t reach; /* sites further from the first than this along an axis are patched */
} pack_section;

typedef struct {
    pack_section *sections; /* of all blocks, in order */
    size_t n_sections, capacity;
    uint32_t n_atoms, block_atoms; /* of frames that it is for */
    size_t expected;               /* bytes that the frame took for which it was made */
} pack_plan;

/* What a writer needs to pack frame after frame; all zeros at first. */
typedef struct {
    packed_grid grid; /* of the last frame that was packed */
    int32_t *steps;   /* the positions as integers, n_atoms x 3 */
    size_t step_capacity;
    float *decoded; /* a block's positions, decoded again */
    size_t decoded_capacity;
    uint32_t
        *columns; /* the streams of a section, one after the other; behind them, molecules of which a site is far */
    size_t column_capacity;
    pack_plan plan;
    unsigned char *bytes; /* of all blocks, one after the other */
    size_t n_bytes, capacity;
    uint32_t *sizes; /* of the blocks */
    size_t size_capacity;
} packer;

/* Pack positions into p->bytes and p->sizes. False: they stay raw, for want of a grid, gain or memory. */
bool pack_positions(packer *p, const float *positions, uint32_t n_atoms, uint32_t block_atoms);

void packer_free(packer *p);

/* Make the plan for frames like this one. False: memory is out. */
bool pack_make_plan(pack_plan *plan, const int32_t *steps, uint32_t n_atoms, uint32_t block_atoms, packed_grid grid);

/* Find the steps of positions on this grid; false if one does not lie on it, to the last bit. */
bool pack_find_steps(const float *positions, size_t n, packed_grid grid, int32_t *steps);

/* Whether these are the positions of steps of this grid, to the last bit. */
bool pack_is_of(const float *positions, const int32_t *steps, size_t n, packed_grid grid);

/* Take a section apart into columns, one a stream: the first sites as they are, another one as offsets from it.
 * `far`, with room for one more than there are molecules, gets those whose site is to be patched, and their number is
 * returned. */
void pack_first_site(const pack_section *s, const int32_t *steps, uint32_t *columns);
size_t pack_next_site(const pack_section *s, size_t site, const int32_t *steps, uint32_t *columns, uint32_t *far);

/* Bits of the largest of `n` values, less the least of them, which *least is set to. Values wrap. */
unsigned pack_measure(const uint32_t *values, size_t n, uint32_t *least);

/* Write a stream, of values less `least`, to `out`, which is zero and large enough. */
void pack_stream(const uint32_t *values, size_t n, uint32_t least, unsigned width, unsigned char *out);
