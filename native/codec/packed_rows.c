/* Decoding rows of packed blocks by vector instructions; the portable twin is decode_row() of packed_blocks.c. */
#include "codec/packed.h"

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

uint32_t packed_decode_rows(const packed_stream *streams, unsigned sites, uint32_t n_rows, packed_grid grid,
                            float *out) {
    if (n_rows < 2 || packed_portable || __builtin_cpu_supports("avx2") == 0) {
        return 0;
    }
    decode_rows_avx2(streams, sites, n_rows, grid, out);
    return n_rows - 1;
}

#else

uint32_t packed_decode_rows(const packed_stream *streams, unsigned sites, uint32_t n_rows, packed_grid grid,
                            float *out) {
    (void)streams, (void)sites, (void)n_rows, (void)grid, (void)out;
    return 0;
}
#endif
