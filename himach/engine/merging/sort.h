/*
 * Sorting what is nearly sorted.
 */
#ifndef HIMACH_ENGINE_SORT_H
#define HIMACH_ENGINE_SORT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/*
 * Sort by merging ascending runs pairwise: one look over what is sorted already, one merge where two sorted lists lie
 * behind one another, as those of two ranks do. A merge goes from both ends to the middle, so that the processor has
 * two chains of comparisons to work on. `spare` is as long as `items`. Items of one key stay as they came.
 */
/* NOLINTBEGIN(bugprone-macro-parentheses): a type cannot stand in parentheses */
#define SORT_DEFINE(name, type, key)                                                                                   \
    static inline size_t name##_run(const type *items, size_t start, size_t n) {                                       \
        size_t stop = start + 1;                                                                                       \
        while (stop < n && key(items[stop - 1]) <= key(items[stop]))                                                   \
            stop++;                                                                                                    \
        return stop;                                                                                                   \
    }                                                                                                                  \
    static inline void name##_merge(const type *from, type *to, size_t start, size_t middle, size_t stop) {            \
        size_t a = start, a_end = middle, b = middle, b_end = stop, out = start, out_end = stop;                       \
        const size_t steps = middle - start < stop - middle ? middle - start : stop - middle;                          \
        for (size_t i = 0; i < steps; i++) {                                                                           \
            const type x = from[a], y = from[b], u = from[a_end - 1], v = from[b_end - 1];                             \
            const size_t second = key(y) < key(x), last = key(v) >= key(u);                                            \
            to[out++] = second ? y : x;                                                                                \
            b += second;                                                                                               \
            a += 1 - second;                                                                                           \
            to[--out_end] = last ? v : u;                                                                              \
            b_end -= last;                                                                                             \
            a_end -= 1 - last;                                                                                         \
        }                                                                                                              \
        while (a < a_end && b < b_end) {                                                                               \
            const size_t second = key(from[b]) < key(from[a]);                                                         \
            to[out++] = second ? from[b] : from[a];                                                                    \
            b += second;                                                                                               \
            a += 1 - second;                                                                                           \
        }                                                                                                              \
        memcpy(to + out, from + a, (a_end - a) * sizeof(type));                                                        \
        memcpy(to + out + (a_end - a), from + b, (b_end - b) * sizeof(type));                                          \
    }                                                                                                                  \
    static inline void name(type *items, type *spare, size_t n) {                                                      \
        type *from = items, *to = spare;                                                                               \
        size_t longest = n ? name##_run(from, 0, n) : 0; /* run that begins at 0 */                                    \
        while (longest < n) {                                                                                          \
            size_t start = 0, middle = longest;                                                                        \
            longest = 0;                                                                                               \
            while (start < n) {                                                                                        \
                const size_t stop = middle < n ? name##_run(from, middle, n) : n;                                      \
                name##_merge(from, to, start, middle, stop);                                                           \
                longest = start == 0 ? stop : longest;                                                                 \
                start = stop;                                                                                          \
                middle = start < n ? name##_run(from, start, n) : n;                                                   \
            }                                                                                                          \
            type *swap = from;                                                                                         \
            from = to;                                                                                                 \
            to = swap;                                                                                                 \
        }                                                                                                              \
        if (from != items)                                                                                             \
            memcpy(items, from, n * sizeof(type));                                                                     \
    }
/* NOLINTEND(bugprone-macro-parentheses) */

#define SORT_ALL(item)   (item)
#define SORT_ABOVE(item) ((uint32_t)((item) >> 32))
SORT_DEFINE(sort_32, uint32_t, SORT_ALL)
SORT_DEFINE(sort_64, uint64_t, SORT_ABOVE)

/*
 * Order items by their upper halves, those that are alike as they came, and write the halves apart. Where two sorted
 * lists lie behind one another, they are merged on the way.
 */
static inline void sort_apart(uint64_t *items, uint64_t *spare, size_t n, uint32_t *above, uint32_t *below) {
    const size_t middle = n ? sort_64_run(items, 0, n) : 0;
    size_t a = 0, a_end = middle, b = middle, b_end = n, out = 0;
    if (middle < n && sort_64_run(items, middle, n) < n) {
        sort_64(items, spare, n);
        a_end = b = n;
    }
    size_t out_end = n;
    const size_t steps = a_end < b_end - b ? a_end : b_end - b;
    for (size_t i = 0; i < steps; i++) {
        const uint64_t x = items[a], y = items[b], u = items[a_end - 1], v = items[b_end - 1];
        const size_t second = SORT_ABOVE(y) < SORT_ABOVE(x), last = SORT_ABOVE(v) >= SORT_ABOVE(u);
        const uint64_t lower = second ? y : x, upper = last ? v : u;
        above[out] = SORT_ABOVE(lower);
        below[out++] = (uint32_t)lower;
        b += second;
        a += 1 - second;
        above[--out_end] = SORT_ABOVE(upper);
        below[out_end] = (uint32_t)upper;
        b_end -= last;
        a_end -= 1 - last;
    }
    for (; out < out_end; out++) {
        const int second = a == a_end || (b < b_end && SORT_ABOVE(items[b]) < SORT_ABOVE(items[a]));
        const uint64_t item = second ? items[b++] : items[a++];
        above[out] = SORT_ABOVE(item);
        below[out] = (uint32_t)item;
    }
}

#endif
