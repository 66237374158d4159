/* XTC frames as bytes: the decoder of a compressed part, which stays within the given bounds, whatever the bytes are;
 * and whole frames, encoded to the bytes that GROMACS's library and MDAnalysis's writer give for the same positions. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Bytes behind the data that must be readable: the most that an atom with its run takes, rounded up. */
enum { XTC_PAD = 128 };

enum xtc_status {
    XTC_OK = 0,
    XTC_SHORT = 1,    /* the atoms take more bits than there are */
    XTC_MANY = 2,     /* a run goes on beyond the last atom */
    XTC_SENSELESS = 3 /* sizes that no writer uses */
};

/* Writers give the index behind the last one where atoms lie too far apart for any small size; no run may use it. */
enum { XTC_FIRST_INDEX = 9, XTC_LAST_INDEX = 73 };

/* Size number i is the greatest whose cube fits into i bits, nearly 2 ** (i / 3); the last stands for none. */
extern const uint32_t xtc_small_sizes[XTC_LAST_INDEX + 1];

/* How many bits a number takes. */
static inline unsigned xtc_length_of(unsigned __int128 number) {
    unsigned bits = 0;
    for (; number != 0; number >>= 1) {
        bits++;
    }
    return bits;
}

/* A frame's compressed part, and what its header says of it. */
typedef struct {
    const uint8_t *bytes;
    size_t n_bytes;                /* XTC_PAD readable ones lie behind */
    int32_t least[3], greatest[3]; /* coordinates of each axis */
    int index;                     /* of the small sizes */
} xtc_frame;

/* Decode `needed` of n_atoms atoms or more to out, 3 * n_atoms floats. unit: 1 / precision. `used`: bytes it took. */
enum xtc_status xtc_decode(const xtc_frame *frame, float unit, float scale, size_t n_atoms, size_t needed, float *out,
                           size_t *used);

/* --- xtc_encode.c ------------------------------------------------------------------------------------------------- */

enum xtc_written {
    XTC_WRITTEN = 0,
    XTC_FAR = 1, /* a coordinate, or the extent of all, does not fit into 31 bits at this precision, or is none */
};

/* What a frame's header says, and its positions. */
typedef struct {
    const float *positions; /* (n_atoms, 3) */
    size_t n_atoms;         /* at most XTC_MOST_ATOMS */
    float scale;            /* from positions to nm */
    float precision;        /* steps in a nm */
    int32_t step;
    float time;   /* ps */
    float box[9]; /* vectors, nm */
} xtc_written_frame;

/* Of more atoms there is another format, which few tools read. */
enum { XTC_MOST_ATOMS = 298261617 };

/* The most bytes of a frame. */
size_t xtc_most_bytes(size_t n_atoms);

/* Encode a frame to `out`, of xtc_most_bytes(). `steps` is scratch for 3 * n_atoms; `n_bytes` becomes its length. */
enum xtc_written xtc_encode(const xtc_written_frame *frame, int32_t *steps, uint8_t *out, size_t *n_bytes);
