/* Telling the atoms of slices; see slice.h. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "segments/slice.h"

void ids_encoder_forget(ids_encoder *t) {
    t->base.set.n = 0;
    t->n_words = 0;
}

void ids_encoder_free(ids_encoder *t) {
    free(t->told.bytes);
    free(t->words);
    id_set_free(&t->differing);
    slice_base_free(&t->base);
}

size_t slice_told_most(slice_atoms atoms) {
    return atoms.bits.words != NULL ? id_bits_most(atoms.bits) : ids_most(atoms.ids, atoms.n);
}

/* Tell by what differs from the base, if that is shorter. False: memory is out. */
static bool encode_delta(ids_encoder *t, slice_atoms atoms, const segment_key *key, size_t most, bool *shorter) {
    bool here = memcmp(&t->base.of, key, sizeof *key) == 0 && t->n_deltas < IDS_MOST_DELTAS;
    *shorter = false;
    if (here && atoms.bits.words != NULL && t->n_words == atoms.bits.n_words) {
        id_bits base = {.words = t->words, .n_words = t->n_words};
        return id_bits_write_delta(&t->told, atoms.bits, base, t->base.offset, most, shorter);
    }
    if (here && atoms.bits.words == NULL && t->base.set.n > 0) {
        return ids_write_delta(&t->told, atoms.ids, atoms.n, &t->base.set, t->base.offset, most, &t->differing,
                               shorter);
    }
    return true;
}

/* Have the atoms for the base; if memory is out there is none. */
static void set_base(ids_encoder *t, slice_atoms atoms, const segment_key *key, uint64_t offset) {
    ids_encoder_forget(t);
    t->base.of = *key;
    t->base.offset = offset;
    t->n_deltas = 0;
    if (atoms.bits.words == NULL) {
        (void)id_set_copy(&t->base.set, atoms.ids, atoms.n);
        return;
    }
    size_t n_words = atoms.bits.n_words;
    if (ARRAY_FIT(t->words, t->capacity, n_words)) {
        memcpy(t->words, atoms.bits.words, n_words * sizeof *t->words);
        t->n_words = n_words;
    }
}

bool ids_encode(ids_encoder *t, slice_atoms atoms, const segment_key *key, uint64_t offset, size_t most) {
    bool shorter;
    if (!encode_delta(t, atoms, key, most, &shorter)) {
        return false;
    }
    if (shorter) {
        t->n_deltas++;
        return true;
    }
    if (!(atoms.bits.words != NULL ? id_bits_write(&t->told, atoms.bits, atoms.n)
                                   : ids_write(&t->told, atoms.ids, atoms.n))) {
        return false;
    }
    set_base(t, atoms, key, offset);
    return true;
}
