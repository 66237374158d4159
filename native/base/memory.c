/* Growing arrays and large pages; see memory.h. */
#include "base/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LEAST = 16 };

bool array_reserve(void *array, size_t *capacity, size_t n, size_t size, bool doubles) {
    if (n <= *capacity) {
        return true;
    }
    size_t new_capacity = n;
    if (doubles) {
        size_t twice = *capacity < SIZE_MAX / 2 ? 2 * *capacity : n;
        new_capacity = twice > new_capacity ? twice : new_capacity;
        new_capacity = new_capacity > LEAST ? new_capacity : LEAST;
    }
    void *grown;
    memcpy(&grown, array, sizeof grown); /* whatever it points to: pointers are alike */
    grown = new_capacity > SIZE_MAX / size ? NULL : realloc(grown, new_capacity * size);
    if (grown == NULL) {
        return false;
    }
    memcpy(array, &grown, sizeof grown);
    *capacity = new_capacity;
    return true;
}

void *large_alloc(size_t size, size_t *capacity) {
    size_t page = size >= LARGE_LEAST ? LARGE_PAGE : LARGE_SMALL_PAGE;
    size_t whole = (size + page - 1) / page * page;
    void *made = size <= whole ? aligned_alloc(page, whole) : NULL;
    if (made != NULL && page == LARGE_PAGE) {
        (void)madvise(made, whole, MADV_HUGEPAGE);
    }
    if (capacity != NULL) {
        *capacity = made != NULL ? whole : 0;
    }
    return made;
}
