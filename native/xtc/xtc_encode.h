/* Whole XTC frames, encoded: the bytes that GROMACS's library and MDAnalysis's writer give for the same positions. */
#ifndef BODHI_XTC_ENCODE_H
#define BODHI_XTC_ENCODE_H

#include <stddef.h>
#include <stdint.h>

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

#endif
