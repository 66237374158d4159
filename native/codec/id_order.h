/* Ids of a slice, which come in any order, put in order. No I/O. */
#ifndef BODHI_ID_ORDER_H
#define BODHI_ID_ORDER_H

#include "codec/id_bits.h"

enum { ID_ORDER_FIRST = 64 };

/* All zeros at first; what was found of some ids holds until the next. */
typedef struct {
    size_t n;
    bool ascends;     /* the ids did, and `places` says nothing */
    uint32_t *places; /* that which is k-th in order stood at places[k] */
    bool dense;       /* the ids are a good part of all: they are in `bits`, else in `sorted` */
    id_bits bits;
    uint32_t *sorted;
    /* Scratch: */
    uint64_t *words, *pairs;
    uint32_t *before; /* how many are in the words before each */
    size_t capacity, n_words;
    int64_t first[ID_ORDER_FIRST], *last; /* ids of the last time: the first of them; all of them, if `keeps` */
    size_t last_capacity;
    int64_t n_atoms;
    bool keeps;
    float *near; /* rows, where they are found quickly */
    size_t near_bytes;
} id_order;

void id_order_free(id_order *o);

enum ids_order { IDS_SORTED, IDS_WRONG /* one is not in 0..n_atoms-1, or there twice */, IDS_NO_MEMORY };

/* Put `n` ids in order, n > 0. *wrong is one that is wrong. Quick where they are those of the last time. */
enum ids_order ids_sort(id_order *o, const int64_t *ids, size_t n, int64_t n_atoms, int64_t *wrong);

/* The ids in order, in `sorted`, wherever they are. */
uint32_t *id_order_ids(id_order *o);

/* Put rows of three, which come as the ids did, in order. */
void id_order_rows(id_order *o, const float *rows, float *out);

#endif
