/* The format is told in xtc.c. Where a writer may choose, this one does as GROMACS's: small sizes begin with the least
 * that the nearest two neighbours in the list need, and step down after a run whose differences would all fit into the
 * next smaller size, up where the atom is near its predecessor; a run goes on for as long as atoms are near, up to
 * eight. */
#include "xtc/xtc.h"

#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAGIC = 1995,
    PLAIN = 9,          /* so few atoms are written as they are */
    HEADER = 13 * 4,    /* magic, atoms, step, time, box */
    COMPRESSED = 9 * 4, /* atoms, precision, least and greatest, index of the small sizes; then bytes */
    MOST_OF_ATOM = 13,  /* bytes: three whole coordinates of 32 bits, and the flag and what follows it */
    TAIL = 64,          /* bytes that may be written behind the last */
    MOST_IN_RUN = 8,
    STEPS_UP = 8, /* of the index, from where it begins */
    BITS_AT_ONCE = 56,
    WHOLE_BITS = 24 /* larger sizes are written one by one */
};

/* --- Bytes and bits ---------------------------------------------------------------------------------------------- */

static uint8_t *put_int(uint8_t *out, int32_t value) {
    const uint32_t word = (uint32_t)value;
    const uint8_t bytes[4] = {(uint8_t)(word >> 24), (uint8_t)(word >> 16), (uint8_t)(word >> 8), (uint8_t)word};
    memcpy(out, bytes, sizeof bytes);
    return out + sizeof bytes;
}

static uint8_t *put_float(uint8_t *out, float value) {
    int32_t word;
    memcpy(&word, &value, sizeof word);
    return put_int(out, word);
}

typedef struct {
    uint8_t *at;
    uint64_t word;   /* what is not written yet, on top */
    unsigned filled; /* bits of it, fewer than 8 */
} bit_writer;

/* A number of 1 to BITS_AT_ONCE bits, the most significant first. */
static inline void put_bits(bit_writer *w, uint64_t value, unsigned bits) {
    w->word |= value << (64 - w->filled - bits);
    uint64_t word = w->word;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    memcpy(w->at, &word, sizeof word);
    w->filled += bits;
    const unsigned bytes = w->filled >> 3;
    w->at += bytes;
    w->word <<= 8 * bytes;
    w->filled &= 7;
}

/* A number of 1 to BITS_AT_ONCE bits whose bytes come with the least significant first. */
static inline void put_swapped(bit_writer *w, uint64_t number, unsigned bits) {
    const unsigned whole = bits & ~7U, rest = bits & 7U;
    const uint64_t bytes = whole == 0 ? 0 : __builtin_bswap64(number) >> (64 - whole);
    put_bits(w, rest == 0 ? bytes : bytes << rest | number >> whole, bits);
}

/* Three integers below `size` each, as one number. */
static inline void put_three(bit_writer *w, const uint32_t value[3], const uint32_t size[3], unsigned bits) {
    if (bits <= BITS_AT_ONCE) {
        put_swapped(w, ((uint64_t)value[0] * size[1] + value[1]) * size[2] + value[2], bits);
        return;
    }
    const unsigned __int128 number = ((unsigned __int128)value[0] * size[1] + value[1]) * size[2] + value[2];
    put_swapped(w, (uint64_t)number & ((UINT64_C(1) << BITS_AT_ONCE) - 1), BITS_AT_ONCE);
    put_swapped(w, (uint64_t)(number >> BITS_AT_ONCE), bits - BITS_AT_ONCE);
}

/* --- Coordinates ------------------------------------------------------------------------------------------------- */

/* All coordinates as integers; what they have in common. */
typedef struct {
    int32_t *steps;
    size_t n_atoms;
    int32_t least[3], greatest[3];
    int64_t nearest; /* the least sum of differences between an atom and the one before */
    uint32_t size[3];
    unsigned bits; /* of three as one number; 0: they are written one by one */
    unsigned each[3];
} coordinates;

/* False: one does not fit. The roundings are those of other writers. */
static bool round_all(const xtc_written_frame *frame, int32_t *steps) {
    bool fits = true;
    for (size_t i = 0; i < 3 * frame->n_atoms; i++) {
        const float position = frame->positions[i] * frame->scale;
        const float scaled = position * frame->precision;
        const float rounded = (float)((double)scaled + (position >= 0 ? 0.5 : -0.5));
        const bool good = fabsf(rounded) <= (float)(INT_MAX - 128); /* the greatest float below the integers' end */
        fits &= good;
        steps[i] = good ? (int32_t)rounded : 0;
    }
    return fits;
}

static bool survey(coordinates *c) {
    const int32_t *p = c->steps;
    memcpy(c->least, p, sizeof c->least);
    memcpy(c->greatest, p, sizeof c->greatest);
    c->nearest = INT_MAX;
    for (size_t i = 1; i < c->n_atoms; i++) {
        int64_t apart = 0;
        for (int k = 0; k < 3; k++) {
            const int32_t here = p[3 * i + (size_t)k], before = p[3 * i + (size_t)k - 3];
            c->least[k] = here < c->least[k] ? here : c->least[k];
            c->greatest[k] = here > c->greatest[k] ? here : c->greatest[k];
            apart += llabs((int64_t)here - before);
        }
        c->nearest = apart < c->nearest ? apart : c->nearest;
    }
    uint32_t together = 0;
    for (int k = 0; k < 3; k++) {
        if ((int64_t)c->greatest[k] - c->least[k] >= INT_MAX - 2) {
            return false;
        }
        c->size[k] = (uint32_t)(c->greatest[k] - c->least[k]) + 1;
        c->each[k] = xtc_length_of(c->size[k]);
        together |= c->size[k];
    }
    c->bits = together >> WHOLE_BITS != 0 ? 0 : xtc_length_of((unsigned __int128)c->size[0] * c->size[1] * c->size[2]);
    return true;
}

static inline void put_whole(bit_writer *w, const coordinates *c, const int32_t *atom) {
    uint32_t value[3];
    for (int k = 0; k < 3; k++) {
        value[k] = (uint32_t)atom[k] - (uint32_t)c->least[k];
    }
    if (c->bits != 0) {
        put_three(w, value, c->size, c->bits);
        return;
    }
    for (int k = 0; k < 3; k++) {
        put_bits(w, value[k], c->each[k]);
    }
}

/* Whether two atoms differ by less than `most` on each axis. */
static inline bool near(const int32_t *a, const int32_t *b, int64_t most) {
    return llabs((int64_t)a[0] - b[0]) < most && llabs((int64_t)a[1] - b[1]) < most &&
           llabs((int64_t)a[2] - b[2]) < most;
}

/* Sums of squares overflow where atoms are 50 nm apart, as those of other writers do: their choices are the same. */
static inline int32_t square(const int32_t *a, const int32_t *b) {
    uint32_t sum = 0;
    for (int k = 0; k < 3; k++) {
        const uint32_t apart = (uint32_t)a[k] - (uint32_t)b[k];
        sum += apart * apart;
    }
    return (int32_t)sum;
}

static inline void swap(int32_t *a, int32_t *b) {
    int32_t kept[3];
    memcpy(kept, a, sizeof kept);
    memcpy(a, b, sizeof kept);
    memcpy(b, kept, sizeof kept);
}

static inline uint32_t half(int index) {
    return xtc_small_sizes[index] / 2;
}

/* The index of the small sizes, and the bounds that it keeps. */
typedef struct {
    int now, least, greatest;
} small_index;

static small_index first_index(int64_t nearest) {
    int index = XTC_FIRST_INDEX;
    while (index < XTC_LAST_INDEX && xtc_small_sizes[index] < nearest) {
        index++;
    }
    const int greatest = index + STEPS_UP < XTC_LAST_INDEX ? index + STEPS_UP : XTC_LAST_INDEX;
    return (small_index){index, greatest - STEPS_UP, greatest};
}

/* An atom and the run that follows it, from number i on; returns how many atoms that are. */
static inline size_t put_run(bit_writer *w, const coordinates *c, size_t i, small_index *index, unsigned *last_run) {
    int32_t *atom = &c->steps[3 * i];
    const int64_t small = half(index->now);
    const uint32_t smaller = half(index->now > XTC_FIRST_INDEX ? index->now - 1 : XTC_FIRST_INDEX);
    int change = index->now > index->least ? -1 : 0;
    if (index->now < index->greatest && i > 0 && near(atom, atom - 3, half(index->greatest))) {
        change = 1;
    }
    const bool follows = i + 1 < c->n_atoms && near(atom, atom + 3, small);
    if (follows) {
        swap(atom, atom + 3); /* of a water, the oxygen in the middle: so both differences are short */
    } else if (change < 0) {
        change = 0;
    }
    put_whole(w, c, atom);
    unsigned run = 0;
    const int32_t *before = atom;
    for (bool goes_on = follows; goes_on && run < MOST_IN_RUN; run++) {
        const int32_t *next = before + 3;
        if (change < 0 && square(next, before) >= (int32_t)(smaller * smaller)) {
            change = 0;
        }
        before = next;
        goes_on = i + run + 2 < c->n_atoms && near(before + 3, before, small);
    }
    if (run != *last_run || change != 0) {
        *last_run = run;
        put_bits(w, 32 | (3 * run + (unsigned)(change + 1)), 6);
    } else {
        put_bits(w, 0, 1);
    }
    const uint32_t size = xtc_small_sizes[index->now];
    for (unsigned r = 0; r < run; r++) {
        uint32_t apart[3];
        for (unsigned k = 0; k < 3; k++) {
            apart[k] = (uint32_t)(atom[3 * r + 3 + k] - atom[3 * r + k] + (int32_t)small);
        }
        put_three(w, apart, (const uint32_t[3]){size, size, size}, (unsigned)index->now);
    }
    index->now += change;
    return run + 1;
}

/* --- Frames ------------------------------------------------------------------------------------------------------ */

static uint8_t *put_header(uint8_t *out, const xtc_written_frame *frame) {
    out = put_int(out, MAGIC);
    out = put_int(out, (int32_t)frame->n_atoms);
    out = put_int(out, frame->step);
    out = put_float(out, frame->time);
    for (int k = 0; k < 9; k++) {
        out = put_float(out, frame->box[k]);
    }
    return put_int(out, (int32_t)frame->n_atoms);
}

size_t xtc_most_bytes(size_t n_atoms) {
    return HEADER + COMPRESSED + 4 + MOST_OF_ATOM * n_atoms + TAIL;
}

enum xtc_written xtc_encode(const xtc_written_frame *frame, int32_t *steps, uint8_t *out, size_t *n_bytes) {
    uint8_t *at = put_header(out, frame);
    if (frame->n_atoms <= PLAIN) {
        for (size_t i = 0; i < 3 * frame->n_atoms; i++) {
            at = put_float(at, frame->positions[i] * frame->scale);
        }
        *n_bytes = (size_t)(at - out);
        return XTC_WRITTEN;
    }
    coordinates c = {.steps = steps, .n_atoms = frame->n_atoms};
    if (!round_all(frame, steps) || !survey(&c)) {
        return XTC_FAR;
    }
    small_index index = first_index(c.nearest);
    at = put_float(at, frame->precision);
    const int32_t *const bounds[] = {c.least, c.greatest};
    for (int k = 0; k < 6; k++) {
        at = put_int(at, bounds[k / 3][k % 3]);
    }
    at = put_int(at, index.now);
    bit_writer w = {.at = at + 4};
    unsigned last_run = UINT_MAX;
    for (size_t i = 0; i < c.n_atoms;) {
        i += put_run(&w, &c, i, &index, &last_run);
    }
    uint8_t *end = w.at + (w.filled > 0);
    put_int(at, (int32_t)(end - at - 4));
    for (; (end - out) % 4 != 0; end++) {
        *end = 0;
    }
    *n_bytes = (size_t)(end - out);
    return XTC_WRITTEN;
}
