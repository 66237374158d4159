#include "bytes.h"

#include "clones.h"

#include <string.h>

INLINE uint32_t bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

INLINE uint32_t big_endian(uint32_t bits) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return __builtin_bswap32(bits);
#else
    return bits;
#endif
}

INLINE uint32_t little_endian(uint32_t bits) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return bits;
#else
    return __builtin_bswap32(bits);
#endif
}

CLONES static void put_scaled(const float *restrict from, size_t n, float divisor, float factor, uint8_t *restrict to) {
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = big_endian(bits_of_float(from[i] / divisor * factor));
        memcpy(to + 4 * i, &bits, sizeof bits);
    }
}

CLONES static void put_as_is(const float *restrict from, size_t n, uint8_t *restrict to) {
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = big_endian(bits_of_float(from[i]));
        memcpy(to + 4 * i, &bits, sizeof bits);
    }
}

void put_big_endian(const float *from, size_t n, float divisor, float factor, uint8_t *to) {
    if (divisor == 1.0F && factor == 1.0F) {
        put_as_is(from, n, to);
    } else {
        put_scaled(from, n, divisor, factor, to);
    }
}

CLONES void put_columns(const float *restrict from, size_t n, uint8_t *restrict to, size_t stride) {
    uint8_t *const second = to + stride, *const third = second + stride;
    for (size_t i = 0; i < n; i++) {
        const uint32_t x = little_endian(bits_of_float(from[3 * i]));
        const uint32_t y = little_endian(bits_of_float(from[3 * i + 1]));
        const uint32_t z = little_endian(bits_of_float(from[3 * i + 2]));
        memcpy(to + 4 * i, &x, sizeof x);
        memcpy(second + 4 * i, &y, sizeof y);
        memcpy(third + 4 * i, &z, sizeof z);
    }
}
