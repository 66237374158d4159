/* The index in memory: where the frames of one kind lie, by frame number. 24 bytes a frame. */
#ifndef BODHI_TABLE_H
#define BODHI_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bodhi.h"
#include "segments/selection.h"

/* Offset and lengths are in units of 64 bytes (record.h: UNIT), so that segments may reach 256 GiB. */
typedef struct {
    uint64_t number;
    uint32_t offset;
    uint32_t length;
    uint32_t segment; /* position in the dataset's list of segments; in a sealed run that of the run */
    uint16_t head;    /* header and block table; 0xFFFF: that or more */
    uint8_t fields;   /* the low four bits; the high four are the encoding */
    uint8_t dead;     /* enum place_state; other than 0 it stays in place, passed over */
} place;

enum place_state { PLACE_LIVING, PLACE_DROPPED, PLACE_PASSED_OVER /* found damaged by this process */ };

/* The places of a sealed segment, sorted, each number once, in a private mapping of its table (frame_table.h). */
typedef struct {
    place *places;
    size_t n, n_dead; /* n 0: it is gone */
    uint64_t step;    /* between numbers; 0: they are not evenly apart */
    uint32_t segment;
    void *mapping;
    size_t bytes;
} sealed_run;

/* Places are sorted by number: copies of a frame lie side by side. */
typedef struct {
    place *places;
    size_t count, capacity;
    sealed_run *runs;
    size_t n_runs, run_capacity;
} table;

void table_free(table *t);
void run_close(sealed_run *run);

/* Add places in any order; they are sorted in place. False if memory is out, and nothing was added. */
bool table_add(table *t, place *places, size_t n);

/* Add a run, in place of an earlier one of its segment. False if memory is out, and nothing was added. */
bool table_add_run(table *t, const sealed_run *run);

/* How far the copies of a frame were looked through; zeros at first. */
typedef struct {
    size_t run, copy;
} copy_cursor;

/* The next living copy of frame `number`; false: there is none. */
bool table_next_copy(const table *t, uint64_t number, copy_cursor *at, place *copy);

/* Take the living copy of this number, segment and offset for dead; false: there is none. */
bool table_kill(table *t, const place *copy, enum place_state state);

/* Living frame numbers >= `from`, each once, up to `capacity` of them. */
size_t table_numbers(const table *t, uint64_t from, uint64_t *numbers, size_t capacity);

/* Number of living frames, each counted once. */
uint64_t table_living(const table *t);

/* Mark all places in `segment` dead. */
void table_forget_segment(table *t, uint32_t segment);

/* Take away the places in `segment` that are in no run. */
void table_remove(table *t, uint32_t segment);

/* The places in `segment` that were not dropped, each number once, to be freed. NULL: no memory, or passed over. */
place *table_collect(const table *t, uint32_t segment, size_t *n);

/* How far apart the numbers of sorted places are; 0: not evenly. */
uint64_t even_step(const place *places, size_t n);

/* Set the bits of the living frames. */
void table_mark(const table *t, const frame_selection *chosen, uint64_t *words);

/* The living frames between `low` and `high` as runs that ascend and are apart; -1: there is no room for them. */
int64_t table_runs(const table *t, uint64_t low, uint64_t high, bodhi_run *runs, int64_t capacity);

size_t table_memory(const table *t);

#endif
