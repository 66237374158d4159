/* Frames of a selection as bits of words: which bit is which frame. */
#pragma once

#include <stdbool.h>
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
