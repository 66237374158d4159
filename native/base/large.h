/* Memory that is walked through in no order: in large pages where the system gives them, as every small one would have
 * to be looked up. */
#ifndef BODHI_LARGE_H
#define BODHI_LARGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { LARGE_PAGE = 2 << 20, LARGE_LEAST = 64 << 10, LARGE_SMALL_PAGE = 4096 };

/* Memory of at least `size` bytes, for free(), at a multiple of LARGE_SMALL_PAGE; NULL: there is none. *capacity is how
 * many there are. */
static inline void *large_alloc(size_t size, size_t *capacity) {
    size_t page = size >= LARGE_LEAST ? LARGE_PAGE : LARGE_SMALL_PAGE;
    size_t whole = (size + page - 1) / page * page;
    void *made = size <= whole ? aligned_alloc(page, whole) : NULL;
    if (made != NULL && page == LARGE_PAGE) {
        (void)madvise(made, whole, MADV_HUGEPAGE);
    }
    *capacity = made != NULL ? whole : 0;
    return made;
}

#endif
