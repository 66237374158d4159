/* CRC32C: a portable table-driven way, and the CRC instructions and carry-less multiplication of x86-64.
 *
 * Folding by carry-less multiplication follows V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using
 * PCLMULQDQ Instruction" (Intel, 2009): an accumulator is moved on by D bits by multiplying its low and high halves
 * with x^(D+32) and x^(D-32) modulo the polynomial. What is left in the accumulators has the checksum of all that was
 * folded into them, so that the CRC instruction finishes the work without a reduction of its own. */
#include "base/crc32c.h"

#include <pthread.h>
#include <string.h>

#define POLYNOMIAL 0x82F63B78U /* bit-reflected */

bool bodhi_bypass_checksums = false;

static uint32_t slices[8][256];

/* Every way below takes and returns the inverted register. */

static uint32_t crc_portable(uint32_t crc, const unsigned char *data, size_t size) {
    while (size >= 8) {
        uint32_t low =
            crc ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24);
        crc = slices[7][low & 255] ^ slices[6][low >> 8 & 255] ^ slices[5][low >> 16 & 255] ^ slices[4][low >> 24] ^
              slices[3][data[4]] ^ slices[2][data[5]] ^ slices[1][data[6]] ^ slices[0][data[7]];
        data += 8;
        size -= 8;
    }
    while (size-- > 0) {
        crc = crc >> 8 ^ slices[0][(crc ^ *data++) & 255];
    }
    return crc;
}

static void make_slices(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) {
            crc = crc & 1 ? crc >> 1 ^ POLYNOMIAL : crc >> 1;
        }
        slices[0][byte] = crc;
    }
    for (int slice = 1; slice < 8; slice++) {
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = slices[slice - 1][byte];
            slices[slice][byte] = crc >> 8 ^ slices[0][crc & 255];
        }
    }
}

#if defined(__x86_64__)
#include <immintrin.h>

/* Of newer versions of clang the CRC instructions have a name of their own, which older compilers do not know. */
#if defined(__clang__) && __clang_major__ >= 14
#define SSE42 "sse4.2,crc32"
#else
#define SSE42 "sse4.2"
#endif

__attribute__((target(SSE42))) static uint32_t crc_sse42(uint32_t crc, const unsigned char *data, size_t size) {
    uint64_t wide = crc;
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, data, sizeof word);
        wide = _mm_crc32_u64(wide, word);
    }
    crc = (uint32_t)wide;
    for (; size > 0; data++, size--) {
        crc = _mm_crc32_u8(crc, *data);
    }
    return crc;
}

/* x^(1024 + 32) and x^(1024 - 32) modulo the polynomial, bit-reflected and shifted to where the multiplication wants
 * them. */
static const uint64_t fold_1024[2] = {0x6992CEA2, 0x0D3B6092};

/* Eight accumulators of 16 bytes: 128 bytes a turn. */
__attribute__((target(SSE42 ",pclmul"))) static uint32_t crc_pclmul(uint32_t crc, const unsigned char *data,
                                                                    size_t size) {
    enum { LANES = 8, WIDTH = 16 };
    const size_t turn = (size_t)WIDTH * LANES;
    if (size < 2 * turn) {
        return crc_sse42(crc, data, size);
    }
    __m128i lanes[LANES];
    const __m128i by = _mm_loadu_si128((const __m128i *)(const void *)fold_1024);
    for (size_t i = 0; i < LANES; i++) {
        lanes[i] = _mm_loadu_si128((const __m128i *)(const void *)(data + WIDTH * i));
    }
    lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128((int)crc));
    for (data += turn, size -= turn; size >= turn; data += turn, size -= turn) {
        for (size_t i = 0; i < LANES; i++) {
            __m128i next = _mm_loadu_si128((const __m128i *)(const void *)(data + WIDTH * i));
            __m128i low = _mm_clmulepi64_si128(lanes[i], by, 0x00);
            __m128i high = _mm_clmulepi64_si128(lanes[i], by, 0x11);
            lanes[i] = _mm_xor_si128(next, _mm_xor_si128(low, high));
        }
    }
    unsigned char rest[LANES * WIDTH];
    memcpy(rest, lanes, sizeof rest);
    return crc_sse42(crc_sse42(0, rest, sizeof rest), data, size);
}

#endif

typedef uint32_t crc_function(uint32_t crc, const unsigned char *data, size_t size);

static pthread_once_t once = PTHREAD_ONCE_INIT;
static crc_function *best = crc_portable;

static void choose(void) {
    make_slices();
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) {
        best = crc_pclmul;
    }
#endif
}

uint32_t bodhi_crc32c(uint32_t crc, const void *data, size_t size) {
    pthread_once(&once, choose);
    return ~best(~crc, data, size);
}

uint32_t bodhi_crc32c_portable(uint32_t crc, const void *data, size_t size) {
    pthread_once(&once, choose);
    return ~crc_portable(~crc, data, size);
}
