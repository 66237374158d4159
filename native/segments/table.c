/* The index in memory; see table.h. */
#include "segments/table.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { MOST_RECENT = 4096 };

void table_free(table *t) {
    free(t->places);
    memset(t, 0, sizeof *t);
}

static int by_number_and_offset(const void *a, const void *b) {
    const place *left = a;
    const place *right = b;
    if (left->number != right->number) {
        return left->number < right->number ? -1 : 1;
    }
    return left->offset < right->offset ? -1 : left->offset > right->offset;
}

void places_sort(place *places, size_t n) {
    for (size_t i = 1; i < n; i++) {
        if (by_number_and_offset(&places[i - 1], &places[i]) > 0) {
            qsort(places, n, sizeof *places, by_number_and_offset);
            return;
        }
    }
}

/* Merge `n` sorted places into `count` sorted ones from the back; room is there. */
static void merge(place *into, size_t count, const place *places, size_t n) {
    for (size_t at = count + n; n > 0; at--) {
        // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): the first `count` places are set
        if (count > 0 && into[count - 1].number > places[n - 1].number) {
            into[at - 1] = into[--count];
        } else {
            into[at - 1] = places[--n];
        }
    }
}

/* Merge the recent places into the others; without memory for that they stay, and are searched. */
static void merge_recent(table *t) {
    size_t n = t->count - t->n_old;
    place *recent = malloc(n * sizeof *recent);
    if (recent != NULL) {
        memcpy(recent, t->places + t->n_old, n * sizeof *recent);
        merge(t->places, t->n_old, recent, n);
        t->n_old = t->count;
        free(recent);
    }
}

/* The old places (0) or the recent ones (1); NULL: there are none. */
static place *part_of(const table *t, int recent, size_t *n) {
    *n = recent ? t->count - t->n_old : t->n_old;
    return *n == 0 ? NULL : recent ? t->places + t->n_old : t->places;
}

/* First position in sorted `places` that is not below `number`. */
static size_t lower_bound(const place *places, size_t n, uint64_t number) {
    size_t low;
    ARRAY_SEARCH(low, n, i, places[i].number < number);
    return low;
}

place *places_from(place *places, size_t n, uint64_t number) {
    return places + lower_bound(places, n, number);
}

bool table_add(table *t, place *places, size_t n) {
    if (n == 0) {
        return true;
    }
    if (!ARRAY_GROW(t->places, t->capacity, t->count + n)) {
        return false;
    }
    places_sort(places, n);
    merge(t->places + t->n_old, t->count - t->n_old, places, n);
    t->count += n;
    if (t->n_old == 0 || t->places[t->n_old].number >= t->places[t->n_old - 1].number) {
        t->n_old = t->count;
    } else if (t->count - t->n_old > MOST_RECENT) {
        merge_recent(t);
    }
    return true;
}

place *table_find(const table *t, uint64_t number, size_t *state) {
    size_t to_skip = *state;
    for (int recent = 0; recent < 2; recent++) {
        size_t n;
        place *places = part_of(t, recent, &n);
        for (size_t i = lower_bound(places, n, number); i < n && places[i].number == number; i++) {
            if (to_skip-- == 0) {
                ++*state;
                return places + i;
            }
        }
    }
    return NULL;
}

bool table_next(const table *t, uint64_t from, uint64_t *number) {
    bool is_there = false;
    *number = UINT64_MAX;
    for (int recent = 0; recent < 2; recent++) {
        size_t n;
        const place *places = part_of(t, recent, &n);
        size_t i = lower_bound(places, n, from);
        while (i < n && places[i].dead) {
            i++;
        }
        is_there = is_there || i < n;
        *number = i < n && places[i].number < *number ? places[i].number : *number;
    }
    return is_there;
}

size_t table_remove(table *t, uint32_t segment, uint32_t offset) {
    size_t living = 0;
    size_t kept = 0;
    size_t kept_old = 0;
    for (size_t i = 0; i < t->count; i++) {
        bool goes = t->places[i].segment == segment && t->places[i].offset < offset;
        living += goes && !t->places[i].dead;
        t->places[kept] = t->places[i];
        kept += !goes;
        kept_old += !goes && i < t->n_old;
    }
    t->count = kept;
    t->n_old = kept_old;
    size_t capacity = t->count < 1024 ? 1024 : t->count;
    place *shrunk = t->capacity <= capacity ? NULL : realloc(t->places, capacity * sizeof *shrunk);
    if (shrunk != NULL) {
        t->places = shrunk;
        t->capacity = capacity;
    }
    return living;
}

/* --- Bits -------------------------------------------------------------------------------------------------------- */

/* The first place from `at` on that is not below `number`: sought in strides that double, because it is near. */
static size_t skip_to(const place *places, size_t n, size_t at, uint64_t number) {
    size_t stride = 1;
    while (at < n && stride < n - at && places[at + stride].number < number) {
        at += stride;
        stride *= 2;
    }
    size_t end = stride < n - at ? at + stride : n;
    return at < end ? at + lower_bound(places + at, end - at, number) : at;
}

/* Set the bits of living places. `step` is the selection's; the compiler makes a loop of its own where it is 1. */
static inline void mark_places(const place *places, size_t n, const frame_selection *chosen, uint64_t step,
                               uint64_t *words) {
    uint64_t word = 0;
    uint64_t bits = 0; /* of that word: neighbours are written at once */
    size_t i = skip_to(places, n, 0, chosen->low);
    while (i < n) {
        uint64_t offset = places[i].number - chosen->low;
        uint64_t turn = (offset + (step - 1)) / step;
        if (turn >= chosen->count) {
            break;
        }
        if (turn * step != offset) {
            i = skip_to(places, n, i + 1, chosen->low + turn * step);
            continue;
        }
        uint64_t position = selection_bit(chosen, turn);
        if (position / 64 != word) {
            words[word] |= bits;
            word = position / 64;
            bits = 0;
        }
        bits |= (uint64_t)!places[i].dead << (position % 64);
        i++;
    }
    words[word] |= bits;
}

void places_mark(const place *places, size_t n, const frame_selection *chosen, uint64_t *words) {
    if (chosen->step == 1) {
        mark_places(places, n, chosen, 1, words);
    } else {
        mark_places(places, n, chosen, chosen->step, words);
    }
}

void table_mark(const table *t, const frame_selection *chosen, uint64_t *words) {
    for (int recent = 0; recent < 2; recent++) {
        size_t n;
        const place *places = part_of(t, recent, &n);
        places_mark(places, n, chosen, words);
    }
}
