/* Telling sets that are bits; see id_bits.h. */
#include "codec/id_bits.h"

#include <string.h>

#include "base/memory.h"

enum { WORD = 64, MOST_OF_RUN = 10 /* bytes */ };

/* Word k of what is in one of two sets and not in the other; of a set alone, its own. */
static uint64_t word_of(id_bits set, const uint64_t *base, size_t k) {
    return base == NULL ? set.words[k] : set.words[k] ^ base[k];
}

/* The first bit from `from` on that is set, or with `flip` ~0 is not; 64 * n_words if there is none. */
static size_t seek(id_bits set, const uint64_t *base, size_t from, uint64_t flip) {
    size_t k = from / WORD;
    if (k >= set.n_words) {
        return set.n_words * WORD;
    }
    uint64_t left = (word_of(set, base, k) ^ flip) & ~UINT64_C(0) << from % WORD;
    while (left == 0) {
        if (++k == set.n_words) {
            return set.n_words * WORD;
        }
        left = word_of(set, base, k) ^ flip;
    }
    return k * WORD + (unsigned)__builtin_ctzll(left);
}

static size_t last_of(id_bits set) {
    size_t k = set.n_words - 1;
    while (set.words[k] == 0) {
        k--;
    }
    return k * WORD + WORD - 1 - (unsigned)__builtin_clzll(set.words[k]);
}

/* Bytes that runs take at least. */
static size_t least_of_runs(id_bits set, const uint64_t *base) {
    size_t runs = 0;
    uint64_t before = 0; /* the last bit of the word before */
    for (size_t k = 0; k < set.n_words; k++) {
        uint64_t word = word_of(set, base, k);
        uint64_t begins = word & ~(word << 1 | before);
        before = word >> (WORD - 1);
        runs += (unsigned)__builtin_popcountll(begins);
    }
    return IDS_HEAD + 2 * runs;
}

/* Bytes that runs take, or some number from `most` on if they take as many; written to `out` unless that is NULL.
 * *count is the number of ids in them. */
static size_t runs_of(id_bits set, const uint64_t *base, size_t most, unsigned char *out, size_t *count) {
    const size_t end = set.n_words * WORD;
    size_t size = IDS_HEAD;
    size_t next = 0;
    *count = 0;
    for (size_t begin = seek(set, base, 0, 0); begin < end && size < most; begin = seek(set, base, next, 0)) {
        size_t stop = seek(set, base, begin, ~UINT64_C(0));
        uint32_t gap = (uint32_t)(begin - next);
        uint32_t length = (uint32_t)(stop - begin - 1);
        if (out != NULL) {
            (void)ids_varint_write(ids_varint_write(out + size, gap), length);
        }
        size += ids_varint_size(gap) + ids_varint_size(length);
        *count += stop - begin;
        next = stop;
    }
    return size;
}

/* Tell by runs if that takes fewer than `most` bytes. False: memory is out. */
static bool write_runs(id_bytes *out, id_bits set, const uint64_t *base, uint64_t offset, size_t most, bool *shorter) {
    size_t count;
    *shorter = least_of_runs(set, base) < most;
    if (!*shorter) {
        return true;
    }
    if (!ARRAY_FIT(out->bytes, out->capacity, most + MOST_OF_RUN + IDS_UNIT)) {
        return false;
    }
    size_t size = runs_of(set, base, most, out->bytes, &count);
    *shorter = size < most;
    if (*shorter) {
        out->size = ids_whole_units(size);
        memset(out->bytes + size, 0, out->size - size);
        ids_write_head(out, base == NULL ? IDS_RUNS : IDS_DELTA, count, offset);
    }
    return true;
}

static size_t size_as_bits(id_bits set, size_t first) {
    return IDS_HEAD + (last_of(set) - first) / 8 + 1;
}

size_t id_bits_most(id_bits set) {
    return ids_whole_units(size_as_bits(set, seek(set, NULL, 0, 0)));
}

/* Write `size` bytes of bits, from bit `first` on. */
static void write_bits(unsigned char *out, size_t size, id_bits set, size_t first) {
    const unsigned shift = first % WORD;
    for (size_t at = 0, k = first / WORD; at < size; at += 8, k++) {
        uint64_t word = k < set.n_words ? set.words[k] >> shift : 0;
        word |= shift > 0 && k + 1 < set.n_words ? set.words[k + 1] << (WORD - shift) : 0;
        for (size_t i = 0; i < 8 && at + i < size; i++) {
            out[at + i] = (unsigned char)(word >> 8 * i);
        }
    }
}

bool id_bits_write(id_bytes *out, id_bits set, size_t n) {
    size_t first = seek(set, NULL, 0, 0);
    size_t size = size_as_bits(set, first);
    bool runs;
    if (!write_runs(out, set, NULL, 0, size, &runs)) {
        return false;
    }
    if (runs) {
        return true;
    }
    size = ids_whole_units(size);
    if (!ARRAY_FIT(out->bytes, out->capacity, size)) {
        return false;
    }
    out->size = size;
    ids_write_head(out, IDS_BITS, n, first);
    write_bits(out->bytes + IDS_HEAD, size - IDS_HEAD, set, first);
    return true;
}

bool id_bits_write_delta(id_bytes *out, id_bits set, id_bits base, uint64_t offset, size_t most, bool *shorter) {
    size_t count;
    if (!write_runs(out, set, base.words, offset, most, shorter)) {
        return false;
    }
    *shorter = *shorter && out->size < most &&
               (least_of_runs(set, NULL) >= out->size || runs_of(set, NULL, out->size, NULL, &count) >= out->size);
    return true;
}
