/* Decoding packed blocks; see packed.h. */
#include "codec/packed.h"

#include <string.h>

#include "base/bytes.h"

/* A block being decoded. */
typedef struct {
    const unsigned char *data;
    uint32_t n_atoms, n_sections, n_patches;
    packed_grid grid;
    size_t patches; /* where they begin; before them are the sections */
    size_t streams; /* where they begin */
} block;

typedef struct {
    uint32_t sites, molecules;
    const unsigned char *least, *widths;
} section;

static float get_float(const unsigned char *data) {
    uint32_t bits = get32(data);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The section at `at`, and the place of the next; false if it does not end within `size`, or has senseless numbers. */
static bool read_section(const unsigned char *data, size_t size, size_t *at, section *s) {
    if (size - *at < 8) {
        return false;
    }
    s->molecules = get32(data + *at);
    s->sites = get32(data + *at + 4);
    if (s->sites > PACKED_MAX_SITES || size - *at < packed_section_bytes(s->sites)) {
        return false;
    }
    s->least = data + *at + 8;
    s->widths = s->least + (size_t)s->sites * PACKED_AXES * 4;
    *at += packed_section_bytes(s->sites);
    return true;
}

/* Atoms without a site are patched, every one. */
static uint64_t atoms_of(const section *s) {
    return (uint64_t)s->molecules * (s->sites == 0 ? 1 : s->sites);
}

/* Read the header and check that sections, patches and streams are just the block. */
static bool read_block(const unsigned char *data, size_t size, uint32_t n_atoms, block *b) {
    if (size < PACKED_LEAST_BYTES || size % PACKED_ROW_BYTES != 0 || n_atoms > PACKED_MAX_ATOMS) {
        return false;
    }
    *b = (block){.data = data,
                 .n_atoms = get32(data),
                 .n_sections = (uint32_t)data[4] | (uint32_t)data[5] << 8,
                 .n_patches = (uint32_t)data[6] | (uint32_t)data[7] << 8,
                 .grid = {.unit = get_float(data + 8), .scale = get_float(data + 12)}};
    size_t at = PACKED_HEADER_BYTES;
    uint64_t atoms = 0;
    uint64_t streams = 0;
    for (uint32_t i = 0; i < b->n_sections; i++) {
        section s;
        if (!read_section(data, size, &at, &s)) {
            return false;
        }
        atoms += atoms_of(&s);
        for (unsigned k = 0; k < s.sites * PACKED_AXES; k++) {
            if (s.widths[k] > 32) {
                return false;
            }
            streams += packed_stream_bytes(s.molecules, s.widths[k]);
        }
    }
    b->patches = at;
    uint64_t head = at + (uint64_t)b->n_patches * PACKED_PATCH_BYTES;
    b->streams = (size_t)((head + PACKED_ROW_BYTES - 1) / PACKED_ROW_BYTES * PACKED_ROW_BYTES);
    return b->n_atoms == n_atoms && atoms == n_atoms && b->streams + streams + PACKED_ROW_BYTES == size;
}

/* Decode molecules 8 * row to 8 * row + n - 1, n at most 8, of a section; `out` is that of its first molecule. */
static void decode_row(const packed_stream *streams, unsigned sites, uint32_t row, uint32_t n, packed_grid grid,
                       float *out) {
    uint32_t first[PACKED_AXES][PACKED_LANES] = {{0}};
    for (unsigned k = 0; k < sites * PACKED_AXES; k++) {
        const packed_stream *s = &streams[k];
        uint32_t bit = row * s->width;
        const unsigned char *words = s->words + (size_t)(bit / 32) * PACKED_ROW_BYTES;
        uint32_t mask = s->width == 0 ? 0 : UINT32_MAX >> (32 - s->width);
        for (uint32_t lane = 0; lane < n; lane++) {
            uint64_t pair =
                get32(words + (size_t)lane * 4) | (uint64_t)get32(words + PACKED_ROW_BYTES + (size_t)lane * 4) << 32;
            uint32_t value = ((uint32_t)(pair >> bit % 32) & mask) + s->least + first[k % PACKED_AXES][lane];
            if (k < PACKED_AXES) {
                first[k][lane] = value;
            }
            out[((size_t)(row * PACKED_LANES + lane) * sites * PACKED_AXES) + k] = packed_position(value, grid);
        }
    }
}

/* Decode a section whose streams begin at `words`; returns where they end. */
static const unsigned char *decode_section(const block *b, const section *s, const unsigned char *words, float *out) {
    packed_stream streams[PACKED_STREAMS];
    for (unsigned k = 0; k < s->sites * PACKED_AXES; k++) {
        uint32_t width = s->widths[k];
        /* What a row of no bits loads is masked away, but must be there: that of the block's beginning is. */
        streams[k] = (packed_stream){
            .words = width == 0 ? b->data : words, .least = get32(s->least + (size_t)k * 4), .width = width};
        words += packed_stream_bytes(s->molecules, width);
    }
    uint32_t rows = (s->molecules + PACKED_LANES - 1) / PACKED_LANES;
    uint32_t row = packed_decode_rows(streams, s->sites, rows, b->grid, out);
    for (; row < rows; row++) {
        uint32_t left = s->molecules - row * PACKED_LANES;
        decode_row(streams, s->sites, row, left < PACKED_LANES ? left : PACKED_LANES, b->grid, out);
    }
    return words;
}

static bool apply_patches(const block *b, float *out) {
    const unsigned char *patch = b->data + b->patches;
    for (uint32_t i = 0; i < b->n_patches; i++, patch += PACKED_PATCH_BYTES) {
        uint32_t atom = get32(patch);
        if (atom >= b->n_atoms) {
            return false;
        }
        for (size_t axis = 0; axis < PACKED_AXES; axis++) {
            out[(size_t)atom * PACKED_AXES + axis] = packed_position(get32(patch + 4 + axis * 4), b->grid);
        }
    }
    return true;
}

bool packed_decode(const void *data, size_t size, uint32_t n_atoms, float *out) {
    block b;
    if (!read_block(data, size, n_atoms, &b)) {
        return false;
    }
    size_t at = PACKED_HEADER_BYTES;
    const unsigned char *words = b.data + b.streams;
    float *to = out;
    for (uint32_t i = 0; i < b.n_sections; i++) {
        section s;
        if (!read_section(b.data, size, &at, &s)) {
            return false;
        }
        if (s.sites == 0) {
            memset(to, 0, (size_t)s.molecules * PACKED_AXES * sizeof *to);
        } else {
            words = decode_section(&b, &s, words, to);
        }
        to += atoms_of(&s) * PACKED_AXES;
    }
    return apply_patches(&b, out);
}
