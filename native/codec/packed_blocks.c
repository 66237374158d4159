/* Decoding packed blocks, by vector instructions where there are some; see packed.h. */
#include "codec/packed.h"

#include <string.h>

#include "base/bytes.h"

bool packed_portable = false;

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define VECTOR __attribute__((target("avx2"), always_inline)) static inline

/* The eight values of a row, less the least of their stream. */
VECTOR __m256i load_row(const packed_stream *s, uint32_t row) {
    uint32_t bit = row * s->width;
    const __m256i *words = (const __m256i *)(const void *)(s->words + (size_t)(bit / 32) * PACKED_ROW_BYTES);
    __m128i right = _mm_cvtsi32_si128((int)(bit % 32));
    __m128i left = _mm_cvtsi32_si128((int)(32 - bit % 32));
    __m256i low = _mm256_srl_epi32(_mm256_loadu_si256(words), right);
    __m256i high = _mm256_sll_epi32(_mm256_loadu_si256(words + 1), left); /* by 32: zero */
    return _mm256_or_si256(low, high);
}

/* Store four floats of each of eight molecules, `stride` floats apart, in the order of the molecules. */
VECTOR void store_four(float *out, size_t stride, __m256 a, __m256 b, __m256 c, __m256 d) {
    __m256 ab_low = _mm256_unpacklo_ps(a, b);
    __m256 ab_high = _mm256_unpackhi_ps(a, b);
    __m256 cd_low = _mm256_unpacklo_ps(c, d);
    __m256 cd_high = _mm256_unpackhi_ps(c, d);
    __m256 molecules[4] = {_mm256_shuffle_ps(ab_low, cd_low, 0x44), _mm256_shuffle_ps(ab_low, cd_low, 0xEE),
                           _mm256_shuffle_ps(ab_high, cd_high, 0x44), _mm256_shuffle_ps(ab_high, cd_high, 0xEE)};
    for (size_t i = 0; i < 4; i++) {
        _mm_storeu_ps(out + i * stride, _mm256_castps256_ps128(molecules[i]));
    }
    for (size_t i = 0; i < 4; i++) {
        _mm_storeu_ps(out + (4 + i) * stride, _mm256_extractf128_ps(molecules[i], 1));
    }
}

/* All rows but the last, which may be short. With one site the fourth float of each store is the next atom's, and
 * overwritten by it. `sites` is a constant where this is inlined. */
VECTOR void decode_rows(const packed_stream *streams, unsigned sites, uint32_t n_rows, packed_grid grid, float *out) {
    const __m256 unit = _mm256_set1_ps(grid.unit);
    const __m256 scale = _mm256_set1_ps(grid.scale);
    const unsigned n = sites * PACKED_AXES;
    __m256i least[PACKED_STREAMS];
    __m256i mask[PACKED_STREAMS];
    for (unsigned k = 0; k < n; k++) {
        least[k] = _mm256_set1_epi32((int)streams[k].least);
        mask[k] = _mm256_set1_epi32(streams[k].width == 0 ? 0 : (int)(UINT32_MAX >> (32 - streams[k].width)));
    }
    for (uint32_t row = 0; row + 1 < n_rows; row++, out += (size_t)PACKED_LANES * n) {
        __m256 place[PACKED_STREAMS];
        __m256i first[PACKED_AXES] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
#pragma GCC unroll 24
        for (unsigned k = 0; k < n; k++) {
            __m256i value = _mm256_add_epi32(_mm256_and_si256(load_row(&streams[k], row), mask[k]), least[k]);
            value = _mm256_add_epi32(value, first[k % PACKED_AXES]);
            first[k % PACKED_AXES] = k < PACKED_AXES ? value : first[k % PACKED_AXES];
            place[k] = _mm256_mul_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(value), unit), scale);
        }
        if (sites == 1) {
            store_four(out, n, place[0], place[1], place[2], place[2]);
            continue;
        }
#pragma GCC unroll 6
        for (unsigned k = 0; k < n; k += 4) {
            unsigned at = k + 4 <= n ? k : n - 4;
            store_four(out + at, n, place[at], place[at + 1], place[at + 2], place[at + 3]);
        }
    }
}

__attribute__((target("avx2"))) static void decode_rows_avx2(const packed_stream *streams, unsigned sites,
                                                             uint32_t n_rows, packed_grid grid, float *out) {
    switch (sites) {
    case 1:
        decode_rows(streams, 1, n_rows, grid, out);
        break;
    case 3:
        decode_rows(streams, 3, n_rows, grid, out);
        break;
    case 4:
        decode_rows(streams, 4, n_rows, grid, out);
        break;
    default:
        decode_rows(streams, sites, n_rows, grid, out);
        break;
    }
}

#endif

/* Decode rows by vector instructions; returns how many: all but the last, or none without such instructions. */
static uint32_t decode_fast(const packed_stream *streams, unsigned sites, uint32_t n_rows, packed_grid grid,
                            float *out) {
#if defined(__x86_64__) && defined(__GNUC__)
    if (n_rows >= 2 && !packed_portable && __builtin_cpu_supports("avx2") != 0) {
        decode_rows_avx2(streams, sites, n_rows, grid, out);
        return n_rows - 1;
    }
#else
    (void)streams, (void)sites, (void)n_rows, (void)grid, (void)out;
#endif
    return 0;
}

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
    uint32_t row = decode_fast(streams, s->sites, rows, b->grid, out);
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
