/* Packing a frame's positions; see packed.h. */
#include "codec/packed.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/memory.h"

enum { FIRST = 8, PROBED = 64 /* values that a grid is tried on first */ };

/* --- Memory ------------------------------------------------------------------------------------------------------ */

static bool have_room(packer *p, uint32_t n_atoms, uint32_t block_atoms) {
    uint32_t most = n_atoms < block_atoms ? n_atoms : block_atoms;
    return ARRAY_FIT(p->steps, p->step_capacity, (size_t)n_atoms * PACKED_AXES) &&
           ARRAY_FIT(p->decoded, p->decoded_capacity, (size_t)most * PACKED_AXES) &&
           ARRAY_FIT(p->sizes, p->size_capacity, (n_atoms - 1) / block_atoms + 1);
}

void packer_free(packer *p) {
    free(p->steps);
    free(p->decoded);
    free(p->columns);
    free(p->plan.sections);
    free(p->bytes);
    free(p->sizes);
}

/* --- The grid ---------------------------------------------------------------------------------------------------- */

static bool is_on(const float *positions, size_t n, packed_grid grid) {
    int32_t steps[PROBED];
    return pack_find_steps(positions, n < FIRST ? n : FIRST, grid, steps) &&
           pack_find_steps(positions, n < PROBED ? n : PROBED, grid, steps);
}

/* Steps per nm that trajectories are written with, the usual one first; positions are read as Angstrom. */
enum { PRECISIONS = 7 };
static const double precisions[PRECISIONS] = {1e3, 1.0, 1e1, 1e2, 1e4, 1e5, 1e6};

static packed_grid grid_of(double precision) {
    return (packed_grid){.unit = (float)(1.0 / precision), .scale = 10.0F};
}

/* Find the grid that the positions lie on, that of the last frame first. */
static bool find_grid(packer *p, const float *positions, size_t n) {
    if (p->grid.unit != 0 && is_on(positions, n, p->grid) && pack_find_steps(positions, n, p->grid, p->steps)) {
        return true;
    }
    for (size_t i = 0; i < PRECISIONS; i++) {
        p->grid = grid_of(precisions[i]);
        if (is_on(positions, n, p->grid) && pack_find_steps(positions, n, p->grid, p->steps)) {
            return true;
        }
    }
    p->grid.unit = 0;
    return false;
}

/* --- Blocks ------------------------------------------------------------------------------------------------------ */

/* A block being written. */
typedef struct {
    unsigned char *sections, *patches, *streams; /* where the next of each goes */
    uint32_t n_patches;
} output;

static void put_float(unsigned char *out, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put32(out, bits);
}

static void put_patch(output *to, uint32_t atom, const int32_t *step) {
    put32(to->patches, atom);
    for (size_t axis = 0; axis < PACKED_AXES; axis++) {
        put32(to->patches + 4 + axis * 4, (uint32_t)step[axis]);
    }
    to->patches += PACKED_PATCH_BYTES;
    to->n_patches++;
}

/* Columns of a section, whose first atom is `atom`; a patched site costs nothing there, as it repeats the last one. */
static void make_columns(const pack_section *s, uint32_t atom, const int32_t *steps, uint32_t *columns, output *to) {
    size_t n = s->molecules;
    uint32_t *far = columns + n * s->sites * PACKED_AXES;
    pack_first_site(s, steps, columns);
    for (size_t site = 1; site < s->sites; site++) {
        size_t n_far = pack_next_site(s, site, steps, columns, far);
        for (size_t k = 0; k < n_far; k++) {
            size_t at = (size_t)far[k] * s->sites + site;
            put_patch(to, atom + (uint32_t)at, steps + at * PACKED_AXES);
            for (size_t axis = 0; axis < PACKED_AXES; axis++) {
                uint32_t *offset = columns + (site * PACKED_AXES + axis) * n + far[k];
                *offset = far[k] > 0 ? offset[-1] : 0;
            }
        }
    }
}

static void put_section(const pack_section *s, const uint32_t *columns, output *to) {
    unsigned n_streams = s->sites * PACKED_AXES;
    unsigned char *least = to->sections + 8;
    unsigned char *widths = least + (size_t)n_streams * 4;
    put32(to->sections, s->molecules);
    put32(to->sections + 4, s->sites);
    for (unsigned k = 0; k < n_streams; k++) {
        const uint32_t *values = columns + (size_t)k * s->molecules;
        uint32_t lowest;
        unsigned width = pack_measure(values, s->molecules, &lowest);
        put32(least + (size_t)k * 4, lowest);
        widths[k] = (unsigned char)width;
        pack_stream(values, s->molecules, lowest, width, to->streams);
        to->streams += packed_stream_bytes(s->molecules, width);
    }
    to->sections += packed_section_bytes(s->sites);
}

/* The sections of a block from `first` on: up to which, their bytes, and the most that streams take. */
typedef struct {
    size_t end, head_bytes, stream_bytes;
} extent;

static extent measure_block(const pack_plan *plan, size_t first, uint32_t atoms) {
    extent e = {.end = first, .head_bytes = PACKED_HEADER_BYTES};
    while (atoms > 0) {
        const pack_section *s = &plan->sections[e.end++];
        e.head_bytes += packed_section_bytes(s->sites);
        e.stream_bytes += (size_t)s->sites * PACKED_AXES * (size_t)packed_stream_bytes(s->molecules, 32);
        atoms -= s->molecules * (s->sites == 0 ? 1 : s->sites);
    }
    return e;
}

static void put_gap(const pack_section *s, uint32_t atom, const int32_t *steps, output *to) {
    put32(to->sections, s->molecules);
    put32(to->sections + 4, 0);
    to->sections += packed_section_bytes(0);
    for (uint32_t i = 0; i < s->molecules; i++) {
        put_patch(to, atom + i, steps + (size_t)i * PACKED_AXES);
    }
}

/* Write sections first to e->end - 1 as a block; returns its bytes, 0 for want of memory or room for patches. */
static size_t pack_block(packer *p, size_t first, const extent *e, uint32_t atoms, const int32_t *steps) {
    size_t most =
        e->head_bytes + (size_t)atoms * PACKED_PATCH_BYTES + 2 * e->stream_bytes + (size_t)2 * PACKED_ROW_BYTES;
    if (!ARRAY_FIT(p->bytes, p->capacity, p->n_bytes + most) ||
        !ARRAY_FIT(p->columns, p->column_capacity, (size_t)atoms * (PACKED_AXES + 1) + 1)) {
        return 0;
    }
    unsigned char *block = p->bytes + p->n_bytes;
    unsigned char *scratch = block + most - e->stream_bytes;
    output to = {.sections = block + PACKED_HEADER_BYTES, .patches = block + e->head_bytes, .streams = scratch};
    uint32_t atom = 0;
    memset(block, 0, e->head_bytes);
    for (size_t i = first; i < e->end; i++) {
        const pack_section *s = &p->plan.sections[i];
        const int32_t *here = steps + (size_t)atom * PACKED_AXES;
        if (s->sites == 0) {
            put_gap(s, atom, here, &to);
        } else {
            make_columns(s, atom, here, p->columns, &to);
            put_section(s, p->columns, &to);
        }
        atom += s->molecules * (s->sites == 0 ? 1 : s->sites);
    }
    put32(block, atoms);
    put32(block + 4, (uint32_t)(e->end - first) | to.n_patches << 16);
    put_float(block + 8, p->grid.unit);
    put_float(block + 12, p->grid.scale);
    size_t head = (size_t)(to.patches - block);
    size_t padded = (head + PACKED_ROW_BYTES - 1) / PACKED_ROW_BYTES * PACKED_ROW_BYTES;
    size_t streams = (size_t)(to.streams - scratch);
    memset(block + head, 0, padded - head);
    memmove(block + padded, scratch, streams);
    memset(block + padded + streams, 0, PACKED_ROW_BYTES);
    return to.n_patches <= UINT16_MAX && e->end - first <= UINT16_MAX ? padded + streams + PACKED_ROW_BYTES : 0;
}

/* --- Frames ------------------------------------------------------------------------------------------------------ */

/* Whether the blocks decode to what the steps stand for, bit for bit. */
static bool is_right(const packer *p, uint32_t n_atoms, uint32_t block_atoms) {
    const unsigned char *data = p->bytes;
    const int32_t *steps = p->steps;
    uint32_t block = 0;
    for (uint32_t atom = 0; atom < n_atoms; atom += block_atoms, block++) {
        uint32_t atoms = n_atoms - atom < block_atoms ? n_atoms - atom : block_atoms;
        size_t n = (size_t)atoms * PACKED_AXES;
        if (!packed_decode(data, p->sizes[block], atoms, p->decoded) || !pack_is_of(p->decoded, steps, n, p->grid)) {
            return false;
        }
        data += p->sizes[block];
        steps += n;
    }
    return true;
}

static bool pack_blocks(packer *p, uint32_t n_atoms, uint32_t block_atoms) {
    size_t section = 0;
    uint32_t block = 0;
    p->n_bytes = 0;
    for (uint32_t atom = 0; atom < n_atoms; atom += block_atoms, block++) {
        uint32_t atoms = n_atoms - atom < block_atoms ? n_atoms - atom : block_atoms;
        extent e = measure_block(&p->plan, section, atoms);
        size_t bytes = pack_block(p, section, &e, atoms, p->steps + (size_t)atom * PACKED_AXES);
        if (bytes == 0) {
            return false;
        }
        p->sizes[block] = (uint32_t)bytes;
        p->n_bytes += bytes;
        section = e.end;
    }
    return true;
}

/* Pack by the plan at hand; a frame that takes much more than expected gets a new one. */
static bool pack_by_plan(packer *p, uint32_t n_atoms, uint32_t block_atoms) {
    bool fits = p->plan.n_atoms == n_atoms && p->plan.block_atoms == block_atoms;
    if (fits && pack_blocks(p, n_atoms, block_atoms) && p->n_bytes <= p->plan.expected + p->plan.expected / 16) {
        return true;
    }
    bool done =
        pack_make_plan(&p->plan, p->steps, n_atoms, block_atoms, p->grid) && pack_blocks(p, n_atoms, block_atoms);
    p->plan.n_atoms = done ? n_atoms : 0;
    p->plan.expected = p->n_bytes;
    return done;
}

bool pack_positions(packer *p, const float *positions, uint32_t n_atoms, uint32_t block_atoms) {
    return block_atoms <= PACKED_MAX_ATOMS && have_room(p, n_atoms, block_atoms) &&
           find_grid(p, positions, (size_t)n_atoms * PACKED_AXES) && pack_by_plan(p, n_atoms, block_atoms) &&
           p->n_bytes < (size_t)n_atoms * PACKED_AXES * sizeof(float) && is_right(p, n_atoms, block_atoms);
}
