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
    size_t wanted = n;
    if (doubles) {
        size_t twice = *capacity < SIZE_MAX / 2 ? 2 * *capacity : n;
        wanted = twice > wanted ? twice : wanted;
        wanted = wanted > LEAST ? wanted : LEAST;
    }
    void *grown;
    memcpy(&grown, array, sizeof grown); /* whatever it points to: pointers are alike */
    grown = wanted > SIZE_MAX / size ? NULL : realloc(grown, wanted * size);
    if (grown == NULL) {
        return false;
    }
    memcpy(array, &grown, sizeof grown);
    *capacity = wanted;
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
