/* Coding of sets of atoms, and putting ids in order; see ids.h. */
#include "codec/ids.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/memory.h"

/* --- Runs: the gap before each, and its length less one, seven bits a byte ---------------------------------------- */

static unsigned char *varint_write(unsigned char *at, uint32_t value) {
    while (value >= 128) {
        *at++ = (unsigned char)(value | 128);
        value >>= 7;
    }
    *at++ = (unsigned char)value;
    return at;
}

/* The end of the run that begins at ids[i]. */
static size_t run_end(const uint32_t *ids, size_t n, size_t i) {
    size_t end = i + 1;
    while (end < n && ids[end] == ids[end - 1] + 1) {
        end++;
    }
    return end;
}

/* Returns where the runs end; NULL: that is not before `end`, behind which a run has room. */
static unsigned char *runs_write(unsigned char *at, const unsigned char *end, const uint32_t *ids, size_t n) {
    uint32_t next = 0;
    for (size_t i = 0, stop; i < n && at < end; i = stop) {
        stop = run_end(ids, n, i);
        at = varint_write(at, ids[i] - next);
        at = varint_write(at, (uint32_t)(stop - i - 1));
        next = ids[stop - 1] + 1;
    }
    return at < end ? at : NULL;
}

/* NULL: there is none before `end`. */
static const unsigned char *varint_read(const unsigned char *at, const unsigned char *end, uint64_t *value) {
    *value = 0;
    for (unsigned shift = 0; at < end && shift < 35; shift += 7) {
        *value |= (uint64_t)(*at & 127U) << shift;
        if (*at++ < 128) {
            return at;
        }
    }
    return NULL;
}

/* Take runs of `n` ids together. */
static bool runs_read(const unsigned char *at, const unsigned char *end, uint32_t *ids, size_t n) {
    uint64_t next = 0;
    for (size_t done = 0; done < n;) {
        uint64_t gap;
        uint64_t length;
        at = varint_read(at, end, &gap);
        at = at == NULL ? NULL : varint_read(at, end, &length);
        if (at == NULL || length >= n - done || next + gap + length > UINT32_MAX) {
            return false;
        }
        next += gap;
        for (uint64_t i = 0; i <= length; i++) {
            ids[done++] = (uint32_t)next++;
        }
    }
    return true;
}

/* --- Sets --------------------------------------------------------------------------------------------------------- */

/* coding u8 | 0 u24 | ids u32 | 0 u64 | runs, or the ids */
bool ids_write(id_bytes *out, const uint32_t *ids, size_t n) {
    enum { MOST_OF_A_RUN = 2 * 5 };
    const size_t raw = IDS_HEAD + n * sizeof *ids;
    if (!ARRAY_FIT(out->bytes, out->capacity, raw + MOST_OF_A_RUN)) {
        return false;
    }
    unsigned char *end = runs_write(out->bytes + IDS_HEAD, out->bytes + raw, ids, n);
    memset(out->bytes, 0, IDS_HEAD);
    out->bytes[0] = end != NULL ? IDS_RUNS : IDS_RAW;
    put32(out->bytes + 4, (uint32_t)n);
    if (end == NULL) {
        memcpy(out->bytes + IDS_HEAD, ids, n * sizeof *ids);
        out->size = raw;
        return true;
    }
    while ((end - out->bytes) % IDS_UNIT != 0) {
        *end++ = 0;
    }
    out->size = (size_t)(end - out->bytes);
    return true;
}

static bool raw_read(const unsigned char *at, size_t size, uint32_t *ids, size_t n) {
    bool ascend = size == n * sizeof *ids;
    for (size_t i = 0; ascend && i < n; i++) {
        ids[i] = get32(at + i * sizeof *ids);
        ascend = i == 0 || ids[i] > ids[i - 1];
    }
    return ascend;
}

bool ids_read(const unsigned char *data, size_t size, uint32_t *ids, size_t n) {
    if (size < IDS_HEAD || n == 0 || get32(data + 4) != n) {
        return false;
    }
    return data[0] == IDS_RUNS  ? runs_read(data + IDS_HEAD, data + size, ids, n)
           : data[0] == IDS_RAW ? raw_read(data + IDS_HEAD, size - IDS_HEAD, ids, n)
                                : false;
}

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
