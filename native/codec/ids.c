/* Coding of sets of atoms; see ids.h. */
#include "codec/ids.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/memory.h"

enum { WORD_BITS = 64 };

/* --- Sets and bytes ----------------------------------------------------------------------------------------------- */

bool id_set_copy(id_set *to, const uint32_t *ids, size_t n) {
    if (!ARRAY_FIT(to->ids, to->capacity, n)) {
        to->n = 0;
        return false;
    }
    memcpy(to->ids, ids, n * sizeof *ids);
    to->n = n;
    return true;
}

void id_set_free(id_set *set) {
    free(set->ids);
    *set = (id_set){0};
}

/* coding u8 | 0 u24 | ids that are told u32 | offset u64, of a delta; else first id u32 | 0 u32 */
void ids_write_head(id_bytes *out, enum ids_coding coding, size_t count, uint64_t offset) {
    memset(out->bytes, 0, IDS_HEAD);
    out->bytes[0] = (unsigned char)coding;
    put32(out->bytes + 4, (uint32_t)count);
    put32(out->bytes + 8, (uint32_t)offset);
    put32(out->bytes + 12, (uint32_t)(offset >> 32));
}

/* --- Runs: the gap before each, and its length less one, seven bits a byte ---------------------------------------- */

size_t ids_varint_size(uint32_t value) {
    size_t size = 1;
    while (value >= 128) {
        value >>= 7;
        size++;
    }
    return size;
}

unsigned char *ids_varint_write(unsigned char *at, uint32_t value) {
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

static size_t runs_size(const uint32_t *ids, size_t n, size_t most) {
    size_t size = IDS_HEAD;
    uint32_t next = 0;
    for (size_t i = 0, end; i < n && size < most; i = end) {
        end = run_end(ids, n, i);
        size += ids_varint_size(ids[i] - next) + ids_varint_size((uint32_t)(end - i - 1));
        next = ids[end - 1] + 1;
    }
    return size;
}

static void runs_write(unsigned char *at, const unsigned char *end_at, const uint32_t *ids, size_t n) {
    uint32_t next = 0;
    for (size_t i = 0, end; i < n; i = end) {
        end = run_end(ids, n, i);
        at = ids_varint_write(at, ids[i] - next);
        at = ids_varint_write(at, (uint32_t)(end - i - 1));
        next = ids[end - 1] + 1;
    }
    memset(at, 0, (size_t)(end_at - at));
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

/* --- Bits: from the first id on ----------------------------------------------------------------------------------- */

static size_t bits_size(const uint32_t *ids, size_t n) {
    return IDS_HEAD + (size_t)(ids[n - 1] - ids[0]) / 8 + 1;
}

static void bits_write(unsigned char *out, size_t size, const uint32_t *ids, size_t n) {
    memset(out, 0, size);
    for (size_t i = 0; i < n;) {
        size_t word = (ids[i] - ids[0]) / WORD_BITS;
        uint64_t bits = 0;
        for (; i < n && (ids[i] - ids[0]) / WORD_BITS == word; i++) {
            bits |= UINT64_C(1) << (ids[i] - ids[0]) % WORD_BITS;
        }
        size_t left = size - word * sizeof bits;
        bits = htole64(bits);
        memcpy(out + word * sizeof bits, &bits, left < sizeof bits ? left : sizeof bits);
    }
}

static bool bits_read(const unsigned char *at, const unsigned char *end, uint64_t first, uint32_t *ids, size_t n) {
    size_t done = 0;
    for (uint64_t base = first; at < end; at += sizeof base, base += WORD_BITS) {
        size_t left = (size_t)(end - at);
        uint64_t bits = 0;
        memcpy(&bits, at, left < sizeof bits ? left : sizeof bits);
        bits = le64toh(bits);
        size_t count = (size_t)__builtin_popcountll(bits);
        if (count == 0) {
            continue;
        }
        if (count > n - done || base + WORD_BITS - 1 - (unsigned)__builtin_clzll(bits) > UINT32_MAX) {
            return false;
        }
        for (; bits != 0; bits &= bits - 1) {
            ids[done++] = (uint32_t)(base + (unsigned)__builtin_ctzll(bits));
        }
    }
    return done == n;
}

/* --- Sets --------------------------------------------------------------------------------------------------------- */

size_t ids_most(const uint32_t *ids, size_t n) {
    return ids_whole_units(bits_size(ids, n));
}

bool ids_write(id_bytes *out, const uint32_t *ids, size_t n) {
    size_t of_bits = bits_size(ids, n);
    size_t of_runs = runs_size(ids, n, of_bits);
    bool runs = of_runs < of_bits; /* else they were not all counted */
    size_t size = ids_whole_units(runs ? of_runs : of_bits);
    if (!ARRAY_FIT(out->bytes, out->capacity, size)) {
        return false;
    }
    out->size = size;
    ids_write_head(out, runs ? IDS_RUNS : IDS_BITS, n, runs ? 0 : ids[0]);
    if (runs) {
        runs_write(out->bytes + IDS_HEAD, out->bytes + size, ids, n);
    } else {
        bits_write(out->bytes + IDS_HEAD, size - IDS_HEAD, ids, n);
    }
    return true;
}

/* What is in one of two sets and not in the other; `out` has room for both. Returns how many. */
static size_t differ(uint32_t *out, const uint32_t *a, size_t n, const uint32_t *b, size_t m) {
    enum { ALIKE = 8 }; /* at a time */
    size_t i = 0;
    size_t j = 0;
    size_t k = 0;
    while (i < n && j < m) {
        while (i + ALIKE <= n && j + ALIKE <= m && memcmp(a + i, b + j, ALIKE * sizeof *a) == 0) {
            i += ALIKE;
            j += ALIKE;
        }
        if (i == n || j == m) {
            break;
        }
        if (a[i] == b[j]) {
            i++;
            j++;
        } else {
            out[k++] = a[i] < b[j] ? a[i++] : b[j++];
        }
    }
    while (i < n) {
        out[k++] = a[i++];
    }
    while (j < m) {
        out[k++] = b[j++];
    }
    return k;
}

/* The set that differs from `base` by `changes`; `out` has room for both. Returns how many it has. */
static size_t change(uint32_t *out, const uint32_t *changes, size_t n, const uint32_t *base, size_t m) {
    enum { PART = 8 }; /* of what stays, at a time */
    size_t j = 0;
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t id = changes[i];
        for (; j + PART <= m && base[j + PART - 1] < id; j += PART, k += PART) {
            memcpy(out + k, base + j, PART * sizeof *out);
        }
        while (j < m && base[j] < id) {
            out[k++] = base[j++];
        }
        if (j < m && base[j] == id) {
            j++;
        } else {
            out[k++] = id;
        }
    }
    memcpy(out + k, base + j, (m - j) * sizeof *out);
    return k + m - j;
}

bool ids_write_delta(id_bytes *out, const uint32_t *ids, size_t n, const id_set *base, uint64_t offset, size_t most,
                     id_set *scratch, bool *shorter) {
    if (!ARRAY_FIT(scratch->ids, scratch->capacity, n + base->n)) {
        return false;
    }
    scratch->n = differ(scratch->ids, ids, n, base->ids, base->n);
    size_t size = ids_whole_units(runs_size(scratch->ids, scratch->n, most));
    *shorter = size < most && runs_size(ids, n, size) >= size;
    if (!*shorter) {
        return true;
    }
    if (!ARRAY_FIT(out->bytes, out->capacity, size)) {
        return false;
    }
    out->size = size;
    ids_write_head(out, IDS_DELTA, scratch->n, offset);
    runs_write(out->bytes + IDS_HEAD, out->bytes + size, scratch->ids, scratch->n);
    return true;
}

bool ids_are_delta(const unsigned char *data, size_t size, uint64_t *offset) {
    if (size < IDS_HEAD || data[0] != IDS_DELTA) {
        return false;
    }
    *offset = get32(data + 8) | (uint64_t)get32(data + 12) << 32;
    return true;
}

static bool read_delta(const unsigned char *data, size_t size, const id_set *base, uint32_t *ids, size_t n) {
    size_t count = get32(data + 4);
    if (base == NULL || count > n + base->n) {
        return false;
    }
    uint32_t *changes = malloc((count + 1) * sizeof *changes);
    uint32_t *both = malloc((count + base->n + 1) * sizeof *both);
    bool right = changes != NULL && both != NULL && runs_read(data + IDS_HEAD, data + size, changes, count) &&
                 change(both, changes, count, base->ids, base->n) == n;
    if (right) {
        memcpy(ids, both, n * sizeof *ids);
    }
    free(changes);
    free(both);
    return right;
}

bool ids_read(const unsigned char *data, size_t size, const id_set *base, uint32_t *ids, size_t n) {
    if (size < IDS_HEAD || n == 0) {
        return false;
    }
    if (data[0] == IDS_DELTA) {
        return read_delta(data, size, base, ids, n);
    }
    if (get32(data + 4) != n) {
        return false;
    }
    return data[0] == IDS_RUNS   ? runs_read(data + IDS_HEAD, data + size, ids, n)
           : data[0] == IDS_BITS ? bits_read(data + IDS_HEAD, data + size, get32(data + 8), ids, n)
                                 : false;
}
