/* A frame that slices make, which come in any order: they have to cover its atoms once. No I/O. */
#pragma once

#include <stdbool.h>

#include "bodhi.h"

enum { COVER_FIELDS = 3 };

typedef struct {
    int64_t rank, atoms;
} cover_part;

/* Memory of covers: arrays of `n` frames each, one behind the other. It comes when it is needed, and stays. */
typedef struct {
    size_t n, n_atoms;
    uint32_t *owners;
    float *vectors[COVER_FIELDS];
} cover_memory;

/* Have memory for `n` frames. False: memory is out. */
bool cover_reserve(cover_memory *m, size_t n);
void cover_release(cover_memory *m);

/* Zeros are a cover; cover_begin() comes first, and from then on it must not move. */
typedef struct {
    bodhi_frame frame; /* whose arrays are there once a slice has them */
    float box[6];      /* where the frame's is */
    int64_t covered;   /* atoms */
    cover_part *parts;
    size_t n_parts, capacity;
    uint32_t *owners; /* of each atom: its part, counted from 1; 0: none */
    cover_memory *memory;
    size_t place; /* in it */
    bool no_memory;
    char why[160]; /* the first of what is wrong; "": nothing */
} cover;

/* Begin with no slice of frame `number`, whose arrays lie at `place` of the memory. */
void cover_begin(cover *c, int64_t number, cover_memory *memory, size_t place);

/* Put a slice in its place; the same slice of a rank may come twice. False: the frame will not be whole, see c->why. */
bool cover_add(cover *c, int64_t rank, const bodhi_frame *slice);

/* Whether the frame is whole, now that all slices were added; else see c->why. It may be asked again. */
bool cover_end(cover *c);

void cover_free(cover *c);
