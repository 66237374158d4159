/*
 * Keys numbered in the order of their first appearance, by hashing.
 */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "key_hash.h"

struct key_ids {
    size_t width, groups, room;
    int64_t *keys;   /* of each group */
    uint32_t *slots; /* hash -> group + 1 */
    uint64_t mask;
};

static inline void key_ids_end(struct key_ids *table) {
    free(table->keys);
    free(table->slots);
}

/* Make room for four times as many groups; return 0 if memory is out. */
static inline int key_ids_grow(struct key_ids *table) {
    const size_t room = 4 * table->room;
    int64_t *keys = realloc(table->keys, room * table->width * sizeof(int64_t));
    if (keys == NULL) {
        return 0;
    }
    table->keys = keys;
    uint32_t *slots = calloc(2 * room, sizeof(uint32_t));
    if (slots == NULL) {
        return 0;
    }
    free(table->slots);
    table->slots = slots;
    table->room = room;
    table->mask = 2 * room - 1;
    for (size_t group = 0; group < table->groups; group++) {
        uint64_t slot = key_hash(keys + group * table->width, table->width) & table->mask;
        while (slots[slot]) {
            slot = (slot + 1) & table->mask;
        }
        slots[slot] = (uint32_t)group + 1;
    }
    return 1;
}

static inline int key_ids_begin(struct key_ids *table, size_t width) {
    *table = (struct key_ids){.width = width, .room = 64};
    return key_ids_grow(table);
}

static inline void key_ids_clear(struct key_ids *table) {
    memset(table->slots, 0, 2 * table->room * sizeof(uint32_t));
    table->groups = 0;
}

/* Number a key that is not there yet, and not by its hash; return 0 if memory is out. */
static inline int key_ids_add(struct key_ids *table, const int64_t *row) {
    memcpy(table->keys + table->groups * table->width, row, table->width * sizeof(int64_t));
    return ++table->groups < table->room || key_ids_grow(table);
}

static inline __attribute__((always_inline)) int key_ids_number_(struct key_ids *table, const int64_t *rows, size_t n,
                                                                 size_t width, uint32_t *ids) {
    for (size_t i = 0; i < n; i++) {
        const int64_t *row = rows + i * width;
        uint64_t slot = key_hash(row, width) & table->mask;
        uint32_t known;
        while ((known = table->slots[slot]) && !key_same(table->keys + (known - 1) * width, row, width)) {
            slot = (slot + 1) & table->mask;
        }
        if (known == 0) {
            table->slots[slot] = known = (uint32_t)table->groups + 1;
            if (!key_ids_add(table, row)) {
                return 0;
            }
        }
        ids[i] = known - 1;
    }
    return 1;
}

/* Write the number of each of the n rows to `ids`; return 0 if memory is out. */
static inline int key_ids_number(struct key_ids *table, const int64_t *rows, size_t n, uint32_t *ids) {
    if (table->width == 1) {
        return key_ids_number_(table, rows, n, 1, ids);
    }
    return key_ids_number_(table, rows, n, table->width, ids);
}
