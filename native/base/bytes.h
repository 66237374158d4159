/* Little-endian numbers in bytes, at any address. */
#pragma once

#include <endian.h>
#include <stdint.h>
#include <string.h>

_Static_assert(BYTE_ORDER == LITTLE_ENDIAN, "positions, too, lie in files and messages as the machine has them");

static inline void put16(unsigned char *out, uint16_t value) {
    memcpy(out, &value, sizeof value);
}

static inline void put32(unsigned char *out, uint32_t value) {
    memcpy(out, &value, sizeof value);
}

static inline void put64(unsigned char *out, uint64_t value) {
    memcpy(out, &value, sizeof value);
}

static inline uint16_t get16(const unsigned char *data) {
    uint16_t value;
    memcpy(&value, data, sizeof value);
    return value;
}

static inline uint32_t get32(const unsigned char *data) {
    uint32_t value;
    memcpy(&value, data, sizeof value);
    return value;
}

static inline uint64_t get64(const unsigned char *data) {
    uint64_t value;
    memcpy(&value, data, sizeof value);
    return value;
}
