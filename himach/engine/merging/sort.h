/*
 * Sorting what is nearly sorted.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Return what an item is sorted by: its upper half. */
static inline uint32_t sort_key(uint64_t item) {
    return (uint32_t)(item >> 32);
}

/* Return the end of the ascending run that begins at `start`. */
static inline size_t sort_run(const uint64_t *items, size_t start, size_t n) {
    size_t stop = start + 1;
    while (stop < n && sort_key(items[stop - 1]) <= sort_key(items[stop])) {
        stop++;
    }
    return stop;
}

/*
 * Merge two neighbouring runs, from both ends to the middle, so that the processor has two chains of comparisons to
 * work on.
 */
static inline void sort_merge(const uint64_t *from, uint64_t *to, size_t start, size_t middle, size_t stop) {
    size_t a = start, a_end = middle, b = middle, b_end = stop, out = start, out_end = stop;
    const size_t steps = middle - start < stop - middle ? middle - start : stop - middle;
    for (size_t i = 0; i < steps; i++) {
        const uint64_t x = from[a], y = from[b], u = from[a_end - 1], v = from[b_end - 1];
        const size_t second = sort_key(y) < sort_key(x), last = sort_key(v) >= sort_key(u);
        to[out++] = second ? y : x;
        b += second;
        a += 1 - second;
        to[--out_end] = last ? v : u;
        b_end -= last;
        a_end -= 1 - last;
    }
    while (a < a_end && b < b_end) {
        const size_t second = sort_key(from[b]) < sort_key(from[a]);
        to[out++] = second ? from[b] : from[a];
        b += second;
        a += 1 - second;
    }
    memcpy(to + out, from + a, (a_end - a) * sizeof(uint64_t));
    memcpy(to + out + (a_end - a), from + b, (b_end - b) * sizeof(uint64_t));
}

/*
 * Sort by merging ascending runs pairwise: one look over what is sorted already, one merge where two sorted lists lie
 * behind one another, as those of two ranks do. Items of one key stay as they came. `spare` is as long as `items`.
 * Return which of the two has the sorted items.
 */
static inline const uint64_t *sort_items(uint64_t *items, uint64_t *spare, size_t n) {
    uint64_t *from = items, *to = spare;
    size_t longest = n ? sort_run(from, 0, n) : 0; /* run that begins at 0 */
    while (longest < n) {
        size_t start = 0, middle = longest;
        longest = 0;
        while (start < n) {
            const size_t stop = middle < n ? sort_run(from, middle, n) : n;
            sort_merge(from, to, start, middle, stop);
            longest = start == 0 ? stop : longest;
            start = stop;
            middle = start < n ? sort_run(from, start, n) : n;
        }
        uint64_t *swap = from;
        from = to;
        to = swap;
    }
    return from;
}
