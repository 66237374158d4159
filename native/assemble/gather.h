/* The frames of a round of assembling, as one process of several sees them. Memory is kept from round to round. */
#pragma once

#include "assemble/coverage.h"
#include "bodhi.h"
#include "codec/ids.h"

/* Slices packed one behind the other, for one process. */
typedef struct {
    unsigned char *bytes;
    size_t size, capacity;
} parcel;

typedef struct {
    int64_t number;
    int64_t cover;     /* -1: no slice of it has come */
    int32_t assembler; /* which process puts it together */
} round_frame;

typedef struct {
    int64_t n_atoms;
    int32_t n_processes, own;
    round_frame *frames; /* of all processes, ascending */
    size_t n, capacity;
    size_t at;       /* where the last slice was found */
    parcel *parcels; /* for each process */
    cover_memory memory;
    cover *covers;
    size_t n_covers, cover_capacity;
    size_t next;      /* frame to be written */
    id_bytes encoded; /* scratch, as is what follows */
    uint32_t *ids;
    size_t id_capacity;
} gather;

/* All return statuses as in bodhi.h. */

BODHI_CHECKED int gather_open(int64_t n_atoms, int32_t n_processes, int32_t own, gather **opened);
void gather_close(gather *g);

/* Begin a round: `n` frames, ascending, and the process of each. What was of the round before is forgotten. */
BODHI_CHECKED int gather_begin(gather *g, const int64_t *numbers, const int32_t *assembler, size_t n);

/* Take a slice of one of the frames. ARGUMENT: the frame is not of this round, or what is given is no slice. */
BODHI_CHECKED int gather_add(gather *g, int64_t rank, const bodhi_frame *slice);

/* Read slices of a rank until one is a miss, which is *missed. END: all were read. */
BODHI_CHECKED int gather_read(gather *g, int64_t rank, bodhi_reader *reader, int64_t *missed);

/* Take what another process has packed, aligned for floats. ARGUMENT: it is cut short, or of another round. */
BODHI_CHECKED int gather_take(gather *g, unsigned char *bytes, size_t size);

/* Write the next frame of this process, whose number is *number. OK, EXISTS: it was appended, or is there; MISS: it is
 * not whole, as gather_why() says; CONFLICT: another is there. END: none is left. After any other error the same frame
 * comes next. */
BODHI_CHECKED int gather_write(gather *g, bodhi_writer *writer, int64_t *number);

/* Why the frame is not whole of which gather_write() spoke last. */
const char *gather_why(const gather *g);
