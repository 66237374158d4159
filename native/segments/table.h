/* The index in memory: where the frames of one kind lie, by frame number. 24 bytes a frame. */
#pragma once

#include <stddef.h>

#include "segments/selection.h"

/* Offset and lengths are in units of 64 bytes (record.h: UNIT), so that segments may reach 256 GiB. */
typedef struct {
    uint64_t number;
    uint32_t offset;
    uint32_t length;
    uint32_t segment; /* position in the dataset's list of segments */
    uint16_t head;    /* header and block table; 0xFFFF: that or more */
    uint8_t fields;   /* the low four bits; the high four are the encoding */
    uint8_t dead;     /* 1: dropped, or found damaged by this process; it stays in place, passed over */
} place;

/* Sort by number, and copies of a frame by offset. */
void places_sort(place *places, size_t n);

/* The first of `n` sorted places that is not below `number`; `places + n`: there is none. */
place *places_from(place *places, size_t n, uint64_t number);

/* Set the bits of the living ones. */
void places_mark(const place *places, size_t n, const frame_selection *chosen, uint64_t *words);

/* The first `n_old` places are sorted by number, and so are the recent ones behind them: few that came out of order,
 * as to merge each alone would take time that grows with all. */
typedef struct {
    place *places;
    size_t n_old, count, capacity;
} table;

void table_free(table *t);

/* Add places in any order; they are sorted in place. False if memory is out, and nothing was added. */
bool table_add(table *t, place *places, size_t n);

/* The next copy of frame `number`, living or not, or NULL; *state is 0 at first and then as the last call left it.
 * Pointers hold until the table is changed. */
place *table_find(const table *t, uint64_t number, size_t *state);

/* The first number of a living frame that is not below `from`; false and UINT64_MAX: there is none. */
bool table_next(const table *t, uint64_t from, uint64_t *number);

/* Set the bits of the living ones. */
void table_mark(const table *t, const frame_selection *chosen, uint64_t *words);

/* Take away the places in `segment` that lie before `offset`, in units of 64 bytes (UINT32_MAX: all). Returns how many
 * of them lived. */
size_t table_remove(table *t, uint32_t segment, uint32_t offset);
