/* Putting ids in order; see ids.h. */
#include "codec/ids.h"

#include <stdlib.h>
#include <string.h>

void id_order_free(id_order *o) {
    free(o->sorted);
    free(o->places);
    free(o->last);
    free(o->pairs);
    *o = (id_order){0};
}

static bool reserve(id_order *o, size_t n) {
    if (n > o->capacity) {
        id_order_free(o);
        o->sorted = malloc(n * sizeof *o->sorted);
        o->places = malloc(n * sizeof *o->places);
        o->last = malloc(n * sizeof *o->last);
        o->pairs = malloc(2 * n * sizeof *o->pairs);
        o->capacity = o->sorted != NULL && o->places != NULL && o->last != NULL && o->pairs != NULL ? n : 0;
    }
    return n <= o->capacity;
}

/* Sort by the upper halves, a byte at a time; returns which of the two arrays has the result. */
static uint64_t *radix_sort(uint64_t *from, uint64_t *to, size_t n) {
    enum { DIGIT = 8, DIGITS = 1 << DIGIT };
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

enum ids_order ids_sort(id_order *o, const int64_t *ids, size_t n, int64_t n_atoms, int64_t *wrong) {
    if (n == o->n && n_atoms == o->n_atoms && memcmp(ids, o->last, n * sizeof *ids) == 0) {
        return IDS_SORTED;
    }
    o->n = 0;
    if (!reserve(o, n)) {
        return IDS_NO_MEMORY;
    }
    o->ascends = true;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= n_atoms) {
            *wrong = ids[i];
            return IDS_WRONG;
        }
        o->ascends &= i == 0 || ids[i] > ids[i - 1];
        o->pairs[i] = (uint64_t)ids[i] << 32 | i;
    }
    const uint64_t *sorted = o->ascends ? o->pairs : radix_sort(o->pairs, o->pairs + n, n);
    for (size_t i = 0; i < n; i++) {
        o->sorted[i] = (uint32_t)(sorted[i] >> 32);
        o->places[i] = (uint32_t)sorted[i];
        if (i > 0 && o->sorted[i] == o->sorted[i - 1]) {
            *wrong = o->sorted[i];
            return IDS_WRONG;
        }
    }
    memcpy(o->last, ids, n * sizeof *ids);
    o->n = n;
    o->n_atoms = n_atoms;
    return IDS_SORTED;
}

void id_order_rows(const id_order *o, const float *rows, float *out) {
    for (size_t i = 0; i < o->n; i++) {
        memcpy(out + i * 3, rows + (size_t)o->places[i] * 3, 3 * sizeof *rows);
    }
}
