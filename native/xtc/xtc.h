/* The decoder of a frame's compressed part, which stays within the given bounds, whatever the bytes are. */
#ifndef BODHI_XTC_H
#define BODHI_XTC_H

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

/* The same to integers: position i is at (float)steps[i] * unit * scale, two roundings. */
enum xtc_status xtc_decode_steps(const xtc_frame *frame, size_t n_atoms, size_t needed, int32_t *steps);

#endif
