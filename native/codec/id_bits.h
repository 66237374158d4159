/* Sets of atoms as bits, one for each atom of a frame: what is quick where a set has a good part of them. They are told
 * by the same bytes as in ids.h, whose functions are the twins of these. No I/O. */
#ifndef BODHI_ID_BITS_H
#define BODHI_ID_BITS_H

#include "codec/ids.h"

/* Bit i % 64 of words[i / 64] says whether atom i is in the set, in which there is one at least. Of two sets that are
 * compared, `n_words` are as many. */
typedef struct {
    const uint64_t *words;
    size_t n_words;
} id_bits;

size_t id_bits_most(id_bits set);

/* As ids_write(); the set has `n` atoms. */
bool id_bits_write(id_bytes *out, id_bits set, size_t n);

/* As ids_write_delta(). */
bool id_bits_write_delta(id_bytes *out, id_bits set, id_bits base, uint64_t offset, size_t most, bool *shorter);

#endif
