/* Putting ids in order; see id_order.h. */
#include "codec/id_order.h"

#include <stdlib.h>
#include <string.h>

enum { WORD = 64, PART = 16, MOST_DENSE = 1 << 24, FEW = 128 };

void id_order_free(id_order *o) {
    free(o->sorted);
    free(o->places);
    free(o->pairs);
    free(o->words);
    free(o->before);
    free(o->last);
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

static enum ids_order sort_many(id_order *o, const int64_t *ids, size_t n, size_t n_words, int64_t *wrong) {
    if (!reserve_words(o, n_words)) {
        return IDS_NO_MEMORY;
    }
    memset(o->words, 0, n_words * sizeof *o->words);
    for (size_t i = 0; i < n; i++) {
        uint64_t id = (uint64_t)ids[i];
        o->words[id / WORD] |= UINT64_C(1) << id % WORD;
    }
    o->bits = (id_bits){.words = o->words, .n_words = n_words};
    if (find_places(o, ids, n, n_words) != n) {
        *wrong = find_double(o, ids, n, n_words);
        return IDS_WRONG;
    }
    return IDS_SORTED;
}

/* --- Any ---------------------------------------------------------------------------------------------------------- */

/* Whether the ids are in 0..n_atoms-1, and whether they ascend. */
static bool check_ids(const int64_t *ids, size_t n, int64_t n_atoms, bool *ascend, int64_t *wrong) {
    uint64_t most = (uint64_t)ids[0];
    bool unordered = false;
    for (size_t i = 1; i < n; i++) {
        most = (uint64_t)ids[i] > most ? (uint64_t)ids[i] : most;
        unordered |= ids[i] <= ids[i - 1];
    }
    *ascend = !unordered;
    *wrong = (int64_t)most;
    return most < (uint64_t)n_atoms;
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
    if (!check_ids(ids, n, n_atoms, &o->ascends, wrong)) {
        return IDS_WRONG;
    }
    if (!reserve(o, n)) {
        return IDS_NO_MEMORY;
    }
    o->dense = n >= (size_t)n_atoms / PART && n_atoms <= MOST_DENSE;
    if (o->dense) {
        return sort_many(o, ids, n, (size_t)n_atoms / WORD + 1, wrong);
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
    if (n > o->last_capacity) {
        free(o->last);
        o->last = malloc(n * sizeof *o->last);
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

const uint32_t *id_order_ids(id_order *o) {
    for (size_t k = 0, i = 0; o->dense && k < o->bits.n_words; k++) {
        for (uint64_t left = o->bits.words[k]; left != 0; left &= left - 1) {
            o->sorted[i++] = (uint32_t)(k * WORD + (unsigned)__builtin_ctzll(left));
        }
    }
    return o->sorted;
}

void id_order_rows(const id_order *o, const float *rows, float *out) {
    if (o->ascends) {
        memcpy(out, rows, o->n * 3 * sizeof *rows);
        return;
    }
    for (size_t i = 0; i < o->n; i++) {
        memcpy(out + i * 3, rows + (size_t)o->places[i] * 3, 3 * sizeof *rows);
    }
}
