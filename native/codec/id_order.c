/* Putting ids in order; see id_order.h. */
#include "codec/id_order.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { WORD = 64, PART = 16, MOST_DENSE = 1 << 24, FEW = 128, MOST_NEAR = 4 << 20 };

void id_order_free(id_order *o) {
    free(o->sorted);
    free(o->places);
    free(o->pairs);
    free(o->words);
    free(o->before);
    free(o->last);
    free(o->near);
    *o = (id_order){0};
}

/* --- Few of all atoms: sorted ------------------------------------------------------------------------------------- */

/* Sort by the upper halves, 11 bits at a time; returns which of the two arrays has the result. */
static uint64_t *radix_sort(uint64_t *from, uint64_t *to, size_t n) {
    enum { DIGIT = 11, DIGITS = 1 << DIGIT };
    for (unsigned shift = 32; shift < 64; shift += DIGIT) {
        size_t counts[DIGITS] = {0};
        for (size_t i = 0; i < n; i++) {
            counts[from[i] >> shift & (DIGITS - 1)]++;
        }
        if (counts[from[0] >> shift & (DIGITS - 1)] == n) {
            continue;
        }
        size_t sum = 0;
        for (size_t digit = 0; digit < DIGITS; digit++) {
            size_t count = counts[digit];
            counts[digit] = sum;
            sum += count;
        }
        for (size_t i = 0; i < n; i++) {
            to[counts[from[i] >> shift & (DIGITS - 1)]++] = from[i];
        }
        uint64_t *swapped = from;
        from = to;
        to = swapped;
    }
    return from;
}

static int by_value(const void *left, const void *right) {
    uint64_t a = *(const uint64_t *)left;
    uint64_t b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static enum ids_order sort_few(id_order *o, const int64_t *ids, size_t n, int64_t *wrong) {
    if (o->pairs == NULL && (o->pairs = malloc(2 * o->capacity * sizeof *o->pairs)) == NULL) {
        return IDS_NO_MEMORY;
    }
    for (size_t i = 0; i < n; i++) {
        o->pairs[i] = (uint64_t)ids[i] << 32 | i;
    }
    const uint64_t *found = o->pairs;
    if (n <= FEW) { /* the digits would take longer than these */
        qsort(o->pairs, n, sizeof *o->pairs, by_value);
    } else {
        found = radix_sort(o->pairs, o->pairs + n, n);
    }
    for (size_t i = 0; i < n; i++) {
        o->sorted[i] = (uint32_t)(found[i] >> 32);
        o->places[i] = (uint32_t)found[i];
        if (i > 0 && o->sorted[i] == o->sorted[i - 1]) {
            *wrong = o->sorted[i];
            return IDS_WRONG;
        }
    }
    return IDS_SORTED;
}

/* --- Many: a bit an atom ------------------------------------------------------------------------------------------ */

static bool reserve_words(id_order *o, size_t n_words) {
    if (o->n_words < n_words) {
        free(o->words);
        free(o->before);
        o->words = malloc(n_words * sizeof *o->words);
        o->before = malloc(n_words * sizeof *o->before);
        o->n_words = o->words != NULL && o->before != NULL ? n_words : 0;
    }
    return o->n_words >= n_words;
}

/* Where each stands is how many there are before it. Returns how many there are, of which each counts once. */
#define FIND_PLACES(o, ids, n, n_words)                                                                                \
    uint32_t sum = 0;                                                                                                  \
    for (size_t k = 0; k < (n_words); k++) {                                                                           \
        (o)->before[k] = sum;                                                                                          \
        sum += (uint32_t)__builtin_popcountll((o)->words[k]);                                                          \
    }                                                                                                                  \
    for (size_t i = 0; sum == (n) && !(o)->ascends && i < (n); i++) {                                                  \
        uint64_t id = (uint64_t)(ids)[i];                                                                              \
        uint64_t lower = (o)->words[id / WORD] & ((UINT64_C(1) << id % WORD) - 1);                                     \
        (o)->places[(o)->before[id / WORD] + (uint32_t)__builtin_popcountll(lower)] = (uint32_t)i;                     \
    }                                                                                                                  \
    return sum;

static size_t find_places_any(id_order *o, const int64_t *ids, size_t n, size_t n_words) {
    FIND_PLACES(o, ids, n, n_words)
}

#if defined(__x86_64__)
__attribute__((target("popcnt"))) static size_t find_places_popcnt(id_order *o, const int64_t *ids, size_t n,
                                                                   size_t n_words) {
    FIND_PLACES(o, ids, n, n_words)
}

static size_t find_places(id_order *o, const int64_t *ids, size_t n, size_t n_words) {
    return __builtin_cpu_supports("popcnt") ? find_places_popcnt(o, ids, n, n_words)
                                            : find_places_any(o, ids, n, n_words);
}
#else
static size_t find_places(id_order *o, const int64_t *ids, size_t n, size_t n_words) {
    return find_places_any(o, ids, n, n_words);
}
#endif

/* An id that is there twice. */
static int64_t find_double(id_order *o, const int64_t *ids, size_t n, size_t n_words) {
    memset(o->words, 0, n_words * sizeof *o->words);
    for (size_t i = 0; i < n; i++) {
        uint64_t bit = UINT64_C(1) << ids[i] % WORD;
        if ((o->words[ids[i] / WORD] & bit) != 0) {
            return ids[i];
        }
        o->words[ids[i] / WORD] |= bit;
    }
    return -1;
}

/* Whether the ids are in 0..n_atoms-1; *wrong is the last that is not. */
static bool are_in_range(const int64_t *ids, size_t n, uint64_t n_atoms, int64_t *wrong) {
    uint64_t all = 0;
    for (size_t i = 0; i < n; i++) {
        all |= (uint64_t)ids[i];
    }
    bool right = true;
    for (size_t i = 0; all >= n_atoms && i < n; i++) { /* else none can be as large */
        bool fits = (uint64_t)ids[i] < n_atoms;
        *wrong = fits ? *wrong : ids[i];
        right &= fits;
    }
    return right;
}

/* Words for all ids below a power of two, which is quickly checked for. */
static size_t words_for(size_t n_atoms) {
    size_t n_words = 1;
    while (n_words * WORD < n_atoms) {
        n_words *= 2;
    }
    return n_words;
}

static bool has_above(id_bits set, size_t n_atoms) {
    uint64_t above = set.words[(n_atoms - 1) / WORD] >> (n_atoms - 1) % WORD >> 1;
    for (size_t k = (n_atoms - 1) / WORD + 1; k < set.n_words; k++) {
        above |= set.words[k];
    }
    return above != 0;
}

static enum ids_order sort_many(id_order *o, const int64_t *ids, size_t n, size_t n_atoms, int64_t *wrong) {
    size_t n_words = words_for(n_atoms);
    if (!are_in_range(ids, n, (uint64_t)n_words * WORD, wrong)) {
        return IDS_WRONG;
    }
    if (!reserve_words(o, n_words)) {
        return IDS_NO_MEMORY;
    }
    memset(o->words, 0, n_words * sizeof *o->words);
    for (size_t i = 0; i < n; i++) {
        uint64_t id = (uint64_t)ids[i];
        o->words[id / WORD] |= UINT64_C(1) << id % WORD;
    }
    o->bits = (id_bits){.words = o->words, .n_words = n_words};
    if (has_above(o->bits, n_atoms)) {
        (void)are_in_range(ids, n, n_atoms, wrong);
        return IDS_WRONG;
    }
    if (find_places(o, ids, n, n_words) != n) {
        *wrong = find_double(o, ids, n, n_words);
        return IDS_WRONG;
    }
    return IDS_SORTED;
}

/* --- Any ---------------------------------------------------------------------------------------------------------- */

static bool do_ascend(const int64_t *ids, size_t n) {
    size_t i = 1;
    while (i < n && ids[i] > ids[i - 1]) {
        i++;
    }
    return i == n;
}

static bool reserve(id_order *o, size_t n) {
    if (n > o->capacity) {
        free(o->sorted);
        free(o->places);
        free(o->pairs);
        o->pairs = NULL;
        o->sorted = malloc(n * sizeof *o->sorted);
        o->places = malloc(n * sizeof *o->places);
        o->capacity = o->sorted != NULL && o->places != NULL ? n : 0;
    }
    return n <= o->capacity;
}

static enum ids_order sort(id_order *o, const int64_t *ids, size_t n, int64_t n_atoms, int64_t *wrong) {
    o->ascends = do_ascend(ids, n);
    o->dense = n >= (size_t)n_atoms / PART && n_atoms <= MOST_DENSE;
    if (!reserve(o, n)) {
        return IDS_NO_MEMORY;
    }
    if (o->dense) {
        return sort_many(o, ids, n, (size_t)n_atoms, wrong);
    }
    if (!are_in_range(ids, n, (uint64_t)n_atoms, wrong)) {
        return IDS_WRONG;
    }
    if (!o->ascends) {
        return sort_few(o, ids, n, wrong);
    }
    for (size_t i = 0; i < n; i++) {
        o->sorted[i] = (uint32_t)ids[i];
    }
    return IDS_SORTED;
}

/* Keep the ids, to see whether they come again. */
static void keep(id_order *o, const int64_t *ids, size_t n) {
    size_t bytes = n * sizeof *o->last;
    if (n > o->last_capacity && bytes > 0) {
        free(o->last);
        o->last = malloc(bytes);
        o->last_capacity = o->last != NULL ? n : 0;
    }
    o->keeps = n <= o->last_capacity;
    if (o->keeps) {
        memcpy(o->last, ids, n * sizeof *ids);
    }
}

enum ids_order ids_sort(id_order *o, const int64_t *ids, size_t n, int64_t n_atoms, int64_t *wrong) {
    size_t first = n < ID_ORDER_FIRST ? n : ID_ORDER_FIRST;
    bool alike = n == o->n && n_atoms == o->n_atoms && memcmp(ids, o->first, first * sizeof *ids) == 0;
    if (alike && o->keeps && memcmp(ids, o->last, n * sizeof *ids) == 0) {
        return IDS_SORTED;
    }
    o->n = 0;
    o->keeps = false;
    enum ids_order sorted = sort(o, ids, n, n_atoms, wrong);
    if (sorted == IDS_SORTED) {
        o->n = n;
        o->n_atoms = n_atoms;
        memcpy(o->first, ids, first * sizeof *ids);
        if (alike) { /* where all moves all the time, nothing is kept */
            keep(o, ids, n);
        }
    }
    return sorted;
}

uint32_t *id_order_ids(id_order *o) {
    for (size_t k = 0, i = 0; o->dense && k < o->bits.n_words; k++) {
        for (uint64_t left = o->bits.words[k]; left != 0; left &= left - 1) {
            o->sorted[i++] = (uint32_t)(k * WORD + (unsigned)__builtin_ctzll(left));
        }
    }
    return o->sorted;
}

/* The same rows in memory of few pages: of the caller's, each that is met in no order has to be looked up, which takes
 * three times as long as the rest. */
static const float *bring_near(id_order *o, const float *rows) {
    size_t bytes = o->n * 3 * sizeof *rows;
    if (bytes < LARGE_LEAST || bytes > MOST_NEAR) {
        return rows;
    }
    if (bytes > o->near_bytes) {
        free(o->near);
        o->near = large_alloc(bytes, &o->near_bytes);
    }
    if (o->near == NULL) {
        return rows;
    }
    memcpy(o->near, rows, bytes);
    return o->near;
}

void id_order_rows(id_order *o, const float *rows, float *out) {
    if (o->ascends) {
        memcpy(out, rows, o->n * 3 * sizeof *rows);
        return;
    }
    rows = bring_near(o, rows);
    for (size_t i = 0; i < o->n; i++) {
        memcpy(out + i * 3, rows + (size_t)o->places[i] * 3, 3 * sizeof *rows);
    }
}
