/* Little-endian numbers in bytes, at any address. */
#ifndef BODHI_BYTES_H
#define BODHI_BYTES_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline void put16(unsigned char *out, uint16_t value) {
    value = htole16(value);
    memcpy(out, &value, sizeof value);
}

static inline void put32(unsigned char *out, uint32_t value) {
    value = htole32(value);
    memcpy(out, &value, sizeof value);
}

static inline void put64(unsigned char *out, uint64_t value) {
    value = htole64(value);
    memcpy(out, &value, sizeof value);
}

static inline uint16_t get16(const unsigned char *data) {
    uint16_t value;
    memcpy(&value, data, sizeof value);
    return le16toh(value);
}

static inline uint32_t get32(const unsigned char *data) {
    uint32_t value;
    memcpy(&value, data, sizeof value);
    return le32toh(value);
}

static inline uint64_t get64(const unsigned char *data) {
    uint64_t value;
    memcpy(&value, data, sizeof value);
    return le64toh(value);
}

#endif
