/* The format, from what its writers do. Coordinates are integers: position times precision, rounded, less the least of
 * each axis. Bits are taken from each byte the most significant first. Three integers below given sizes are one number
 * of mixed radix, (a * size_b + b) * size_c + c, in as many bits as the product of the sizes needs; its bytes come with
 * the least significant first, a last byte of fewer than 8 bits being the most significant. An atom is followed by a
 * flag bit; if that is set, by 5 bits that change the run and step the index of the small sizes down, keep it, or step
 * it up. A run says how many atoms follow as small differences to the atom before, two for the price of a water: the
 * first of a run changes places with the atom that it follows. */
#include "xtc/xtc.h"

#include <stdbool.h>
#include <string.h>

enum {
    SCALED_AT_ONCE = 1024, /* atoms, which stay in a core's own cache */
    MOST_OF_RUN = 11,      /* atoms of a run, with the one that it follows */
    BITS_AT_ONCE = 57      /* that one load gives, wherever they begin */
};

const uint32_t xtc_small_sizes[XTC_LAST_INDEX + 1] = {
    0,       0,       0,       0,       0,        0,        0,        0,       0,       8,       10,
    12,      16,      20,      25,      32,       40,       50,       64,      80,      101,     128,
    161,     203,     256,     322,     406,      512,      645,      812,     1024,    1290,    1625,
    2048,    2580,    3250,    4096,    5060,     6501,     8192,     10321,   13003,   16384,   20642,
    26007,   32768,   41285,   52015,   65536,    82570,    104031,   131072,  165140,  208063,  262144,
    330280,  416127,  524287,  660561,  832255,   1048576,  1321122,  1664510, 2097152, 2642245, 3329021,
    4194304, 5284491, 6658042, 8388607, 10568983, 13316085, 16777216, 0};

/* --- Bits -------------------------------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *bytes;
    uint64_t at; /* in bits */
} bit_reader;

static inline uint64_t load(const uint8_t *from) {
    uint64_t word;
    memcpy(&word, from, sizeof word);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* The next 64 bits, the first of them on top. */
static inline uint64_t peek(const bit_reader *in) {
    const uint8_t *from = in->bytes + (in->at >> 3);
    const unsigned skip = (unsigned)(in->at & 7);
    return skip == 0 ? load(from) : load(from) << skip | from[8] >> (8 - skip);
}

/* The next BITS_AT_ONCE bits, the first of them on top. */
static inline uint64_t glance(const bit_reader *in) {
    return load(in->bytes + (in->at >> 3)) << (in->at & 7);
}

/* A number of 0 to 64 bits. */
static inline uint64_t take(bit_reader *in, unsigned bits) {
    const uint64_t word = bits == 0 ? 0 : peek(in) >> (64 - bits);
    in->at += bits;
    return word;
}

/* A number of 1 to 64 bits whose bytes come with the least significant first. */
static inline uint64_t take_swapped(bit_reader *in, unsigned bits) {
    const uint64_t bytes = __builtin_bswap64(peek(in));
    const unsigned whole = bits & ~7U;
    const unsigned rest = bits & 7U;
    in->at += bits;
    if (rest == 0) {
        return whole == 64 ? bytes : bytes & ((UINT64_C(1) << whole) - 1);
    }
    return (bytes & ((UINT64_C(1) << whole) - 1)) | (bytes >> whole & 0xff) >> (8 - rest) << whole;
}

/* --- Three integers as one number -------------------------------------------------------------------------------- */

/* Three sizes, with what takes and divides a number quickly where it is short enough. */
typedef struct {
    uint64_t inverse[3]; /* 2 ** 64 / size, rounded up; exact for numbers below 2 ** 64 / size */
    uint64_t mask;       /* of whole bytes */
    uint32_t size[3];
    unsigned bits;
    unsigned whole, unused; /* bits in whole bytes; those of the last byte that are not the number's */
    bool quick;
} radix;

static inline void set_radix(radix *r, const uint32_t size[3], unsigned bits) {
    unsigned widest = 0;
    for (int k = 0; k < 3; k++) {
        const unsigned width = xtc_length_of(size[k]);
        r->size[k] = size[k];
        r->inverse[k] = size[k] > 1 ? UINT64_MAX / size[k] + 1 : 0;
        widest = width > widest ? width : widest;
    }
    r->bits = bits;
    r->whole = bits & ~7U;
    r->unused = 8 - (bits & 7U);
    r->mask = r->whole < 64 ? (UINT64_C(1) << r->whole) - 1 : UINT64_MAX;
    r->quick = bits <= BITS_AT_ONCE && bits + widest <= 64 && size[1] > 1 && size[2] > 1;
}

/* That of small sizes, made when it is first used: frames go back and forth between some. */
static inline const radix *small_radix(radix *radixes, int index) {
    if (radixes[index].bits == 0) {
        const uint32_t size = xtc_small_sizes[index];
        set_radix(&radixes[index], (const uint32_t[3]){size, size, size}, (unsigned)index);
    }
    return &radixes[index];
}

static inline void take_three_quickly(bit_reader *in, const radix *r, uint32_t out[3]) {
    const uint64_t bytes = __builtin_bswap64(glance(in));
    const uint64_t last = (bytes >> r->whole & 0xff) >> r->unused;
    uint64_t number = (bytes & r->mask) | last << r->whole;
    in->at += r->bits;
    for (int k = 2; k > 0; k--) {
        const uint64_t quotient = (uint64_t)((unsigned __int128)number * r->inverse[k] >> 64);
        out[k] = (uint32_t)(number - quotient * r->size[k]);
        number = quotient;
    }
    out[0] = (uint32_t)number;
}

static inline void take_three(bit_reader *in, const radix *r, uint32_t out[3]) {
    if (r->quick) {
        take_three_quickly(in, r, out);
        return;
    }
    unsigned __int128 number = take_swapped(in, r->bits > 64 ? 64 : r->bits);
    if (r->bits > 64) {
        number |= (unsigned __int128)take_swapped(in, r->bits - 64) << 64;
    }
    for (int k = 2; k > 0; k--) {
        out[k] = (uint32_t)(number % r->size[k]);
        number /= r->size[k];
    }
    out[0] = (uint32_t)number;
}

/* --- Atoms ------------------------------------------------------------------------------------------------------- */

/* How a frame's whole coordinates are written. */
typedef struct {
    const int32_t *least;
    bool apart; /* the sizes are too large for one number */
    radix radix;
} frame_sizes;

/* False: no writer uses such sizes. */
static inline bool set_sizes(frame_sizes *sizes, const int32_t least[3], const int32_t greatest[3]) {
    uint32_t size[3];
    for (int k = 0; k < 3; k++) {
        size[k] = (uint32_t)greatest[k] - (uint32_t)least[k] + 1;
        if (greatest[k] < least[k] || size[k] == 0) {
            return false;
        }
    }
    sizes->least = least;
    sizes->apart = (size[0] | size[1] | size[2]) > 0xffffff;
    const unsigned bits = sizes->apart ? 0 : xtc_length_of((unsigned __int128)size[0] * size[1] * size[2]);
    set_radix(&sizes->radix, size, bits);
    return true;
}

static inline void take_whole(bit_reader *in, const frame_sizes *sizes, uint32_t coordinate[3]) {
    if (sizes->apart) {
        for (int k = 0; k < 3; k++) {
            coordinate[k] = (uint32_t)take(in, xtc_length_of(sizes->radix.size[k]));
        }
    } else {
        take_three(in, &sizes->radix, coordinate);
    }
    for (int k = 0; k < 3; k++) {
        coordinate[k] += (uint32_t)sizes->least[k];
    }
}

/* The flag and what follows it; returns the step of the index of the small sizes. */
static inline int take_run(bit_reader *in, unsigned *run) {
    const unsigned flag_and_code = (unsigned)(glance(in) >> 58);
    in->at += 1;
    if (flag_and_code >> 5 == 0) {
        return 0;
    }
    const unsigned code = flag_and_code & 31;
    in->at += 5;
    *run = code / 3;
    return (int)(code % 3) - 1;
}

/* Put an atom's coordinates; one by one, as they come from registers. */
static inline void put(int32_t *out, const uint32_t coordinate[3]) {
    for (int k = 0; k < 3; k++) {
        out[k] = (int32_t)coordinate[k];
    }
}

/* Put an atom and the run that follows it. */
static inline void put_run(bit_reader *in, const radix *small, uint32_t coordinate[3], unsigned run, int32_t *out) {
    const uint32_t half = small->size[0] / 2;
    put(run == 0 ? out : out + 3, coordinate);
    for (unsigned k = 0; k < run; k++) {
        uint32_t delta[3];
        take_three(in, small, delta);
        for (int axis = 0; axis < 3; axis++) {
            coordinate[axis] += delta[axis] - half;
        }
        put(k == 0 ? out : out + 3 * ((size_t)k + 1), coordinate);
    }
}

/* Make positions of n coordinates, in the two roundings that other readers make too, so that every bit agrees. */
static inline void scale_coordinates(const int32_t *steps, size_t n, float unit, float scale, float *positions) {
    for (size_t i = 0; i < n; i++) {
        const float position = (float)steps[i] * unit;
        positions[i] = position * scale;
    }
}

static inline bool is_index(int index) {
    return index >= XTC_FIRST_INDEX && index <= XTC_LAST_INDEX;
}

/* A frame being decoded, some atoms at a time. */
typedef struct {
    frame_sizes sizes;
    radix smalls[XTC_LAST_INDEX + 1];
    bit_reader in;
    uint64_t end; /* of the bits */
    int index;
    unsigned run;
    size_t n_atoms, done;
} decoder;

static inline bool decoder_start(decoder *d, const xtc_frame *frame, size_t n_atoms) {
    if (!set_sizes(&d->sizes, frame->least, frame->greatest) || !is_index(frame->index)) {
        return false;
    }
    for (int k = XTC_FIRST_INDEX; k <= XTC_LAST_INDEX; k++) {
        d->smalls[k].bits = 0;
    }
    d->in = (bit_reader){frame->bytes, 0};
    d->end = (uint64_t)frame->n_bytes * 8;
    d->index = frame->index;
    d->run = 0;
    d->n_atoms = n_atoms;
    d->done = 0;
    return true;
}

/* Decode atoms up to number `until`, and some more where a run goes on; `steps` is of the first that is not done. */
static inline enum xtc_status go_on(decoder *d, size_t until, int32_t *steps) {
    bit_reader in = d->in;
    const radix *small = small_radix(d->smalls, d->index);
    int index = d->index;
    unsigned run = d->run;
    size_t i = d->done;
    const size_t first = i;
    while (i < until) {
        if (in.at > d->end) {
            return XTC_SHORT;
        }
        uint32_t coordinate[3];
        take_whole(&in, &d->sizes, coordinate);
        const int step = take_run(&in, &run);
        if (run + 1 > d->n_atoms - i) {
            return XTC_MANY;
        }
        if (run > 0 && small->size[0] == 0) {
            return XTC_SENSELESS;
        }
        put_run(&in, small, coordinate, run, steps + 3 * (i - first));
        i += run + 1;
        index += step;
        if (!is_index(index)) {
            return XTC_SENSELESS;
        }
        small = step == 0 ? small : small_radix(d->smalls, index);
    }
    d->in = in;
    d->index = index;
    d->run = run;
    d->done = i;
    return in.at > d->end ? XTC_SHORT : XTC_OK;
}

enum xtc_status xtc_decode(const xtc_frame *frame, float unit, float scale, size_t n_atoms, size_t needed, float *out,
                           size_t *used) {
    int32_t steps[3 * (SCALED_AT_ONCE + MOST_OF_RUN)] = {0};
    decoder d;
    enum xtc_status status = decoder_start(&d, frame, n_atoms) ? XTC_OK : XTC_SENSELESS;
    while (status == XTC_OK && d.done < needed) {
        const size_t first = d.done;
        status = go_on(&d, needed - first < SCALED_AT_ONCE ? needed : first + SCALED_AT_ONCE, steps);
        if (status == XTC_OK) {
            scale_coordinates(steps, 3 * (d.done - first), unit, scale, out + 3 * first);
        }
    }
    *used = status == XTC_OK ? (size_t)(d.in.at + 7) / 8 : 0;
    return status;
}
