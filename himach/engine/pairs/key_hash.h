/*
 * Keys hashed and compared.
 *
 * A key is `width` integers of 64 bits. The high bits of its hash choose the shard, the low ones a slot of a hash
 * table.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* The finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014). */
static inline uint64_t key_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

static inline uint64_t key_hash(const int64_t *key, size_t width) {
    uint64_t hash = (uint64_t)width * UINT64_C(0x9E3779B97F4A7C15);
    for (size_t i = 0; i < width; i++) {
        hash = key_mix(hash + (uint64_t)key[i] + UINT64_C(0x9E3779B97F4A7C15));
    }
    return hash;
}

static inline int key_same(const int64_t *a, const int64_t *b, size_t width) {
    for (size_t i = 0; i < width; i++) {
        if (a[i] != b[i]) {
            return 0;
        }
    }
    return 1;
}
