/* The index in memory; see table.h. */
#include "segments/table.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

void table_free(table *t) {
    free(t->places);
    free(t->recent);
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

/* Room for `n` more. Small tables double; large ones grow by an eighth, so that memory stays near 24 bytes a frame. */
static bool reserve(table *t, size_t n) {
    if (t->count + n <= t->capacity) {
        return true;
    }
    size_t slack = t->count < 65536 ? t->count : t->count / 8;
    size_t capacity = t->count + n > t->count + slack ? t->count + n : t->count + slack;
    return ARRAY_FIT(t->places, t->capacity, capacity);
}

/* Merge `n` sorted places from the back; room is there. */
static void merge(table *t, const place *places, size_t n) {
    size_t left = t->count;
    t->count += n;
    for (size_t at = t->count; n > 0; at--) {
        // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): the first `left` places are set
        if (left > 0 && t->places[left - 1].number > places[n - 1].number) {
            t->places[at - 1] = t->places[--left];
        } else {
            t->places[at - 1] = places[--n];
        }
    }
}

static bool flush_recent(table *t) {
    if (!reserve(t, t->n_recent)) {
        return false;
    }
    merge(t, t->recent, t->n_recent);
    t->n_recent = 0;
    return true;
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

static bool add_recent(table *t, const place *places, size_t n) {
    if (t->recent == NULL) {
        t->recent = malloc(TABLE_RECENT * sizeof *t->recent);
        if (t->recent == NULL) {
            return false;
        }
    }
    if (t->n_recent + n > TABLE_RECENT && !flush_recent(t)) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        size_t at = lower_bound(t->recent, t->n_recent, places[i].number);
        memmove(t->recent + at + 1, t->recent + at, (t->n_recent - at) * sizeof *t->recent);
        t->recent[at] = places[i];
        t->n_recent++;
    }
    return true;
}

bool table_add(table *t, place *places, size_t n) {
    if (n == 0) {
        return true;
    }
    places_sort(places, n);
    bool behind = t->count == 0 || places[0].number >= t->places[t->count - 1].number;
    if (!behind && n <= 16) {
        return add_recent(t, places, n);
    }
    if (!reserve(t, n)) {
        return false;
    }
    merge(t, places, n);
    return true;
}

place *table_find(const table *t, uint64_t number, size_t *state) {
    size_t copy = 0;
    for (size_t i = lower_bound(t->places, t->count, number); i < t->count && t->places[i].number == number; i++) {
        if (copy++ >= *state) {
            *state = copy;
            return t->places + i;
        }
    }
    for (size_t i = lower_bound(t->recent, t->n_recent, number); i < t->n_recent && t->recent[i].number == number;
         i++) {
        if (copy++ >= *state) {
            *state = copy;
            return t->recent + i;
        }
    }
    *state = copy;
    return NULL;
}

size_t table_numbers(const table *t, uint64_t from, uint64_t *numbers, size_t capacity) {
    size_t i = lower_bound(t->places, t->count, from);
    size_t j = lower_bound(t->recent, t->n_recent, from);
    size_t n = 0;
    while (n < capacity && (i < t->count || j < t->n_recent)) {
        bool first = j == t->n_recent || (i < t->count && t->places[i].number <= t->recent[j].number);
        const place *next = first ? &t->places[i++] : &t->recent[j++];
        if (!next->dead && (n == 0 || numbers[n - 1] != next->number)) {
            numbers[n++] = next->number;
        }
    }
    return n;
}

static size_t remove_places(place *places, size_t n, uint32_t segment, uint32_t offset, size_t *living) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        bool goes = places[i].segment == segment && places[i].offset < offset;
        *living += goes && !places[i].dead;
        places[kept] = places[i];
        kept += !goes;
    }
    return kept;
}

size_t table_remove(table *t, uint32_t segment, uint32_t offset) {
    size_t living = 0;
    t->n_recent = remove_places(t->recent, t->n_recent, segment, offset, &living);
    t->count = remove_places(t->places, t->count, segment, offset, &living);
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
    places_mark(t->places, t->count, chosen, words);
    places_mark(t->recent, t->n_recent, chosen, words);
}

size_t table_memory(const table *t) {
    return t->capacity * sizeof *t->places + (t->recent == NULL ? 0 : TABLE_RECENT * sizeof *t->recent);
}
