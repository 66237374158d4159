/*
 * Pairs into the order of their shards.
 *
 * What a loop does with each pair depends on the width of keys and the size of values. So the loops are inlined for
 * those that are most common: single keys; no values, or values of 4 or 8 bytes.
 */
#pragma once

#include <string.h>

#include "key_hash.h"

#define SHARDS_INLINE static inline __attribute__((always_inline))

/* The high bits of the hash choose the shard, the low ones a slot of a table when keys are grouped. */
SHARDS_INLINE uint16_t shards_of(const int64_t *key, size_t width, uint32_t shards) {
    return (uint16_t)(((key_hash(key, width) >> 32) * shards) >> 32);
}

SHARDS_INLINE void shards_count_(const int64_t *keys, size_t n, size_t width, uint32_t shards, uint16_t *restrict shard,
                                 uint32_t *restrict counts) {
    for (size_t i = 0; i < n; i++) {
        shard[i] = shards_of(keys + i * width, width, shards);
    }
    for (size_t i = 0; i < n; i++) {
        counts[shard[i]]++;
    }
}

/* Write the shard of each of n keys, and add to `counts` how many there are of each. */
static inline void shards_count(const int64_t *keys, size_t n, size_t width, uint32_t shards, uint16_t *shard,
                                uint32_t *counts) {
    if (width == 1) {
        shards_count_(keys, n, 1, shards, shard, counts);
    } else {
        shards_count_(keys, n, width, shards, shard, counts);
    }
}

/* Columns of pairs: keys of `width` integers, frames, values of `size` bytes. */
struct shards_columns {
    int64_t *keys;
    uint32_t *at;
    uint8_t *values;
};

SHARDS_INLINE void shards_place_(const int64_t *restrict keys, const uint8_t *restrict values, size_t n, uint32_t row,
                                 size_t width, size_t size, const uint16_t *restrict shard, uint32_t *restrict cursor,
                                 struct shards_columns to) {
    for (size_t i = 0; i < n; i++) {
        const size_t place = cursor[shard[i]]++;
        to.at[place] = row;
        memcpy(to.keys + place * width, keys + i * width, width * sizeof(int64_t));
        memcpy(to.values + place * size, values + i * size, size);
    }
}

/* Put the n pairs of one frame, whose row in the table of frames is `row`, where the cursors of their shards stand. */
static inline void shards_place(const int64_t *keys, const uint8_t *values, size_t n, uint32_t row, size_t width,
                                size_t size, const uint16_t *shard, uint32_t *cursor, struct shards_columns to) {
    if (width == 1 && size == 4) {
        shards_place_(keys, values, n, row, 1, 4, shard, cursor, to);
    } else if (width == 1 && size == 8) {
        shards_place_(keys, values, n, row, 1, 8, shard, cursor, to);
    } else if (width == 1 && size == 0) {
        shards_place_(keys, values, n, row, 1, 0, shard, cursor, to);
    } else {
        shards_place_(keys, values, n, row, width, size, shard, cursor, to);
    }
}
