/* Memory: arrays of malloc's, which grow, and sorted ones searched; large pages. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Have room for `n` elements of `size` bytes each in the array to which *array points, whose capacity grows to just
 * that; with `doubles` to twice what it was, if that is more. Elements stay, new ones hold anything. False: memory is
 * out, and nothing has changed. */
bool array_reserve(void *array, size_t *capacity, size_t n, size_t size, bool doubles);

/* The same of an array and its capacity by their names. NOLINTBEGIN(bugprone-sizeof-expression): pointers, too */
#define ARRAY_GROW(array, capacity, n) array_reserve((void *)&(array), &(capacity), n, sizeof *(array), true)
#define ARRAY_FIT(array, capacity, n)  array_reserve((void *)&(array), &(capacity), n, sizeof *(array), false)
/* NOLINTEND(bugprone-sizeof-expression) */

/* Set `result` to the first of `n` sorted elements that is not `below`, which is asked of element `i`. */
#define ARRAY_SEARCH(result, n, i, below)                                                                              \
    do {                                                                                                               \
        (result) = 0;                                                                                                  \
        for (size_t left_ = (n); left_ > 0;) {                                                                         \
            const size_t i = (result) + left_ / 2;                                                                     \
            const bool below_ = (below);                                                                               \
            (result) = below_ ? (i) + 1 : (result);                                                                    \
            left_ = below_ ? left_ - left_ / 2 - 1 : left_ / 2;                                                        \
        }                                                                                                              \
    } while (0)

/* --- Large pages: what is walked through in no order, as every small one would have to be looked up --------------- */

enum { LARGE_PAGE = 2 << 20, LARGE_LEAST = 64 << 10, LARGE_SMALL_PAGE = 4096 };

/* Memory of `size` bytes or more (*capacity), for free(), at a multiple of LARGE_SMALL_PAGE; NULL: there is none. */
void *large_alloc(size_t size, size_t *capacity);
