/* Where frames lie, and descriptors to read them: by a dataset's table (lookup.c), or a server (net/served.c). */
#pragma once

#include "bodhi.h"
#include "store/dataset.h"

/* A frame asked for and the copy of it to be read. */
typedef struct {
    place place;
    int8_t kind;    /* -1: there is none */
    uint8_t reason; /* then: enum bodhi_reason */
} target;

/* Bytes of a segment to be brought from another machine. */
typedef struct {
    uint32_t segment; /* as in a place */
    uint64_t offset, size;
    unsigned char *to;
    size_t first, last; /* the reader's own */
    int error;          /* 0: they are there; -1: the segment ends before; else errno */
} fetched;

typedef struct locator locator;
struct locator {
    /* Find the copies to be read of the first of `n` frames, whose numbers are in the list; *count is of how many it
     * was asked, at least one. What was found by the last call is let go of. Errors: MEMORY, INTERRUPTED. */
    int (*locate)(locator *l, target *list, size_t n, size_t *count);

    /* A descriptor for reading a segment, which is not evicted before unpin(); -1 and errno. From any thread. */
    int (*pin)(locator *l, uint32_t ordinal, bool direct);
    void (*unpin)(locator *l, uint32_t ordinal);

    /* Bring bytes of segments that are on another machine; from any thread. NULL: pin() gives descriptors. */
    void (*fetch)(locator *l, fetched *list, size_t n);

    /* Pass over a copy that is damaged, and choose another. */
    void (*pass_over)(locator *l, target *w);

    /* What was located has been read: it is the next reader's turn. NULL: readers take no turns. */
    void (*end_turn)(locator *l);

    void (*close)(locator *l);

    const segment_key *keys; /* by a place's segment */
    bool exceeds_memory;     /* the dataset is larger than half of the memory: the page cache would only be spoilt */
    bool direct;             /* set by the reader: descriptors may be wanted that bypass the page cache */
};

bool exceeds_memory(uint64_t bytes);

/* Looks frames up in a dataset's own table. NULL: memory is out. */
locator *lookup_open(bodhi_dataset *dataset);
