/* Fuzz target: the compressed coordinates of an XTC frame with any content. They are decoded whole and in part, to
 * positions and to integers, and by a decoder that takes bit after bit; all must agree.
 *
 * The input: the number of atoms less one and how many of them are needed (two bytes each), the index of the small
 * sizes (one byte), the least and the greatest coordinate of each axis (six 32-bit integers), and the coordinates. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "target.h"
#include "xtc/xtc.h"

enum { HEAD = 29, MOST_ATOMS = 1 << 12 };

static const float unit = 0.001F, scale = 10;

/* A frame, its data in memory of just the right size, so that any byte beyond is noticed. */
typedef struct {
    size_t n_atoms, needed, n_bytes;
    int index;
    int32_t least[3], greatest[3];
    uint8_t *bytes; /* and XTC_PAD behind */
} frame;

static void *allocate(size_t size) {
    void *memory = calloc(size, 1);
    if (memory == NULL) {
        abort();
    }
    return memory;
}

static frame parse(const uint8_t *data, size_t size) {
    frame in = {
        .n_atoms = (data[0] | (size_t)data[1] << 8) % MOST_ATOMS + 1,
        .n_bytes = size - HEAD,
        .index = data[4],
    };
    in.needed = (data[2] | (size_t)data[3] << 8) % (in.n_atoms + 1);
    memcpy(in.least, data + 5, sizeof in.least);
    memcpy(in.greatest, data + 17, sizeof in.greatest);
    in.bytes = allocate(in.n_bytes + XTC_PAD);
    memcpy(in.bytes, data + HEAD, in.n_bytes);
    return in;
}

typedef struct {
    const uint8_t *bytes;
    uint64_t at; /* in bits */
} bit_reader;

static unsigned length_of(unsigned __int128 number) {
    return number == 0 ? 0 : 1 + length_of(number >> 1);
}

/* The next bits as a number, the first of them on top. */
static uint32_t take(bit_reader *in, unsigned bits) {
    uint32_t number = 0;
    for (; bits > 0; bits--, in->at++) {
        number = number << 1 | (in->bytes[in->at / 8] >> (7 - in->at % 8) & 1);
    }
    return number;
}

/* Three numbers below `size` that are one of `bits` bits, whose bytes come with the least significant first. */
static void take_three(bit_reader *in, const uint32_t size[3], unsigned bits, uint32_t out[3]) {
    unsigned __int128 number = 0;
    for (unsigned done = 0; done < bits; done += 8) {
        number |= (unsigned __int128)take(in, bits - done < 8 ? bits - done : 8) << done;
    }
    out[2] = (uint32_t)(number % size[2]);
    out[1] = (uint32_t)(number / size[2] % size[1]);
    out[0] = (uint32_t)(number / size[2] / size[1]);
}

static void put(float *out, const uint32_t coordinate[3]) {
    for (int k = 0; k < 3; k++) {
        out[k] = (float)(int32_t)coordinate[k] * unit;
        out[k] *= scale;
    }
}

/* Decode all atoms, bit after bit; the sizes are known to make sense. */
static enum xtc_status decode_plainly(const frame *f, float *out) {
    bit_reader in = {f->bytes, 0};
    const uint64_t end = (uint64_t)f->n_bytes * 8;
    uint32_t size[3], atom[3], delta[3];
    unsigned bits[3];
    int index = f->index;
    unsigned run = 0;
    for (int k = 0; k < 3; k++) {
        size[k] = (uint32_t)f->greatest[k] - (uint32_t)f->least[k] + 1;
        bits[k] = length_of(size[k]);
    }
    for (size_t i = 0; i < f->n_atoms;) {
        if (in.at > end) {
            return XTC_SHORT;
        }
        if (bits[0] > 24 || bits[1] > 24 || bits[2] > 24) {
            for (int k = 0; k < 3; k++) {
                atom[k] = take(&in, bits[k]);
            }
        } else {
            take_three(&in, size, length_of((unsigned __int128)size[0] * size[1] * size[2]), atom);
        }
        unsigned code = take(&in, 1) != 0 ? take(&in, 5) : run * 3 + 1;
        run = code / 3;
        if (run >= f->n_atoms - i) {
            return XTC_MANY;
        }
        const uint32_t small[3] = {xtc_small_sizes[index], xtc_small_sizes[index], xtc_small_sizes[index]};
        if (run > 0 && small[0] == 0) {
            return XTC_SENSELESS;
        }
        for (int k = 0; k < 3; k++) {
            atom[k] += (uint32_t)f->least[k];
        }
        put(&out[3 * (run > 0 ? i + 1 : i)], atom);
        for (unsigned next = 0; next < run; next++) {
            take_three(&in, small, (unsigned)index, delta);
            for (int k = 0; k < 3; k++) {
                atom[k] += delta[k] - small[k] / 2;
            }
            put(&out[3 * (next == 0 ? i : i + next + 1)], atom);
        }
        i += run + 1;
        index += (int)(code % 3) - 1;
        if (index < XTC_FIRST_INDEX || index > XTC_LAST_INDEX) {
            return XTC_SENSELESS;
        }
    }
    return in.at > end ? XTC_SHORT : XTC_OK;
}

static xtc_frame coded(const frame *f) {
    xtc_frame whole = {.bytes = f->bytes, .n_bytes = f->n_bytes, .index = f->index};
    memcpy(whole.least, f->least, sizeof f->least);
    memcpy(whole.greatest, f->greatest, sizeof f->greatest);
    return whole;
}

static enum xtc_status decode(const frame *f, size_t needed, float *out) {
    const xtc_frame whole = coded(f);
    size_t used = 0;
    enum xtc_status status = xtc_decode(&whole, unit, scale, f->n_atoms, needed, out, &used);
    if (used > whole.n_bytes) {
        abort();
    }
    return status;
}

/* Decode to integers, and make positions of those of the needed atoms. */
static enum xtc_status decode_steps(const frame *f, size_t needed, float *out) {
    const xtc_frame whole = coded(f);
    int32_t *steps = allocate(3 * f->n_atoms * sizeof *steps);
    const enum xtc_status status = xtc_decode_steps(&whole, f->n_atoms, needed, steps);
    for (size_t i = 0; i < needed; i++) {
        put(&out[3 * i], (const uint32_t *)&steps[3 * i]);
    }
    free(steps);
    return status;
}

static bool makes_sense(const frame *f) {
    bool sense = f->index >= XTC_FIRST_INDEX && f->index <= XTC_LAST_INDEX;
    for (int k = 0; k < 3; k++) {
        const int64_t range = (int64_t)f->greatest[k] - f->least[k];
        sense = sense && range >= 0 && range < UINT32_MAX;
    }
    return sense;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < HEAD) {
        return 0;
    }
    frame f = parse(data, size);
    const size_t out_bytes = 3 * f.n_atoms * sizeof(float);
    float *whole = allocate(out_bytes), *part = allocate(out_bytes), *plain = allocate(out_bytes);
    const enum xtc_status status = decode(&f, f.n_atoms, whole);
    const enum xtc_status part_status = decode(&f, f.needed, part);
    const enum xtc_status expected = makes_sense(&f) ? decode_plainly(&f, plain) : XTC_SENSELESS;
    if (status != expected || (status == XTC_OK && memcmp(whole, plain, out_bytes) != 0)) {
        abort();
    }
    if (status == XTC_OK && (part_status != XTC_OK || memcmp(part, plain, 3 * f.needed * sizeof(float)) != 0)) {
        abort();
    }
    if (decode_steps(&f, f.n_atoms, part) != status || (status == XTC_OK && memcmp(part, plain, out_bytes) != 0)) {
        abort();
    }
    free(whole);
    free(part);
    free(plain);
    free(f.bytes);
    return 0;
}
