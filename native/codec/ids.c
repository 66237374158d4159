/* Coding of sets of atoms; see ids.h. */
#include "codec/ids.h"

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
