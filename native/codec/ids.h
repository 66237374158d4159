/* Sets of atoms as bytes, and back: runs, or the ids themselves where those take less; see docs/formats.md. No I/O. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { IDS_HEAD = 16, IDS_UNIT = 4 };

enum ids_coding { IDS_RUNS = 1, IDS_RAW = 4 };

/* Bytes that tell a set; a multiple of IDS_UNIT. */
typedef struct {
    unsigned char *bytes;
    size_t size, capacity;
} id_bytes;

/* Tell a set of ids that ascend. False: memory is out. */
bool ids_write(id_bytes *out, const uint32_t *ids, size_t n);

/* Take a set of just `n` ids, of which there is room at `ids`. False: damaged. */
bool ids_read(const unsigned char *data, size_t size, uint32_t *ids, size_t n);

/* --- id_order.c: ids of a slice, which come in any order, put in order -------------------------------------------- */

/* All zeros at first; what was found of some ids holds until the next. */
typedef struct {
    size_t n, capacity;
    int64_t n_atoms;
    bool ascends;     /* the ids did */
    uint32_t *sorted; /* the ids in order */
    uint32_t *places; /* that which is k-th in order stood at places[k] */
    int64_t *last;    /* the ids as they came */
    uint64_t *pairs;  /* scratch */
} id_order;

void id_order_free(id_order *o);

enum ids_order { IDS_SORTED, IDS_WRONG /* one is not in 0..n_atoms-1, or there twice */, IDS_NO_MEMORY };

/* Put `n` ids in order, n > 0. *wrong is one that is wrong. Quick where they are those of the last time. */
enum ids_order ids_sort(id_order *o, const int64_t *ids, size_t n, int64_t n_atoms, int64_t *wrong);

/* Put rows of three, which come as the ids did, in order. */
void id_order_rows(const id_order *o, const float *rows, float *out);
