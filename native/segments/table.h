/* The index in memory: where the frames of one kind lie, by frame number, 24 bytes a frame; selections as bits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Frames low, low + step, ...; bit 0 is the first of them, or the last if the selection goes backwards. */
typedef struct {
    uint64_t low, step, count; /* step, count > 0 */
    bool backwards;
} frame_selection;

/* The bit of the selection's frame number `turn`, counted from the lowest. */
static inline uint64_t selection_bit(const frame_selection *chosen, uint64_t turn) {
    return chosen->backwards ? chosen->count - 1 - turn : turn;
}

/* The first turn whose frame is not below `number`; maybe count or more. */
static inline uint64_t selection_turn(const frame_selection *chosen, uint64_t number) {
    if (number <= chosen->low) {
        return 0;
    }
    uint64_t offset = number - chosen->low;
    return chosen->step <= 1 ? offset : (offset - 1) / chosen->step + 1;
}

static inline uint64_t selection_last(const frame_selection *chosen) {
    return chosen->low + (chosen->count - 1) * chosen->step;
}

/* Set bits `from` up to before `to`. */
static inline void words_set(uint64_t *words, uint64_t from, uint64_t to) {
    if (from >= to) {
        return;
    }
    uint64_t head = ~UINT64_C(0) << (from % 64);
    uint64_t tail = ~UINT64_C(0) >> (63 - (to - 1) % 64);
    uint64_t first = from / 64;
    uint64_t last = (to - 1) / 64;
    if (first == last) {
        words[first] |= head & tail;
        return;
    }
    words[first] |= head;
    for (uint64_t word = first + 1; word < last; word++) {
        words[word] = ~UINT64_C(0);
    }
    words[last] |= tail;
}

/* Set the bits of the frames from number `first` up to before `end`. */
static inline void selection_set(const frame_selection *chosen, uint64_t first, uint64_t end, uint64_t *words) {
    uint64_t from = selection_turn(chosen, first);
    uint64_t to = selection_turn(chosen, end);
    to = to < chosen->count ? to : chosen->count;
    if (chosen->backwards && from < to) {
        words_set(words, chosen->count - to, chosen->count - from);
    } else {
        words_set(words, from, to);
    }
}

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
