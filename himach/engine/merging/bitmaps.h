/*
 * Frames as bits: those of a rank, put among the frames of all ranks, counted, and written out as numbers.
 *
 * Ranks share the frames, so a rank's 64 neighbouring frames lie in a few words of the bitmap over all frames.
 * `bitmaps_plan` knows which of them go to which word there, and a word of a key's bits is put there by an instruction
 * a word (pdep), where the processor has it, else bit by bit.
 */
#ifndef HIMACH_ENGINE_BITMAPS_H
#define HIMACH_ENGINE_BITMAPS_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "bits.h"

enum {
    BITMAPS_MOVES = 8, /* words that 64 frames go to, at most: beyond, going bit by bit is as fast */
    BITMAPS_AHEAD = 8, /* numbers that are written beyond the last one */
};

/* Not 0: bit by bit on any processor. Tests set it. */
static int bitmaps_portable = 0;

/* From bit `shift` on, as many bits of a word as `mask` has go to these places of a word of the bitmap. */
struct bitmaps_move {
    uint64_t mask;
    uint32_t word, shift;
};

/* Where the frames of a rank go. `first` and `count` say which moves are those of the 64 frames from a frame on. */
struct bitmaps_plan {
    const uint32_t *places; /* frame of the rank -> number among the frames of all ranks */
    size_t frames;
    uint32_t *first; /* 0: not known yet; else one more than the first move */
    uint8_t *count;  /* 0: bit by bit */
    struct bitmaps_move *moves;
    size_t used, room;
};

static inline void bitmaps_plan_end(struct bitmaps_plan *plan) {
    free(plan->first);
    free(plan->count);
    free(plan->moves);
}

static inline int bitmaps_plan_begin(struct bitmaps_plan *plan, const uint32_t *places, size_t frames) {
    *plan = (struct bitmaps_plan){.places = places, .frames = frames};
    plan->first = calloc(frames + 1, sizeof(uint32_t));
    plan->count = calloc(frames + 1, sizeof(uint8_t));
    return plan->first != NULL && plan->count != NULL;
}

/* Find the moves of the 64 frames from `frame` on; return 0 if memory is out. */
static inline int bitmaps_plan_add(struct bitmaps_plan *plan, size_t frame) {
    if (plan->used + BITMAPS_MOVES > plan->room) {
        const size_t room = 2 * plan->room + (size_t)64 * BITMAPS_MOVES;
        struct bitmaps_move *moves = realloc(plan->moves, room * sizeof *moves);
        if (moves == NULL) {
            return 0;
        }
        plan->moves = moves;
        plan->room = room;
    }
    const uint32_t *places = plan->places + frame;
    const size_t n = plan->frames - frame < 64 ? plan->frames - frame : 64;
    struct bitmaps_move *moves = plan->moves + plan->used;
    uint8_t count = 0;
    for (size_t i = 0; i < n; i++) {
        const int joins = count && places[i] > places[i - 1] && places[i] >> 6 == moves[count - 1].word;
        if (!joins && count == BITMAPS_MOVES) {
            count = 0;
            break;
        }
        if (!joins) {
            moves[count++] = (struct bitmaps_move){.word = places[i] >> 6, .shift = (uint32_t)i};
        }
        moves[count - 1].mask |= UINT64_C(1) << (places[i] & 63);
    }
    plan->first[frame] = (uint32_t)plan->used + 1;
    plan->count[frame] = count;
    plan->used += count;
    return 1;
}

static inline void bitmaps_set(uint64_t *bitmap, uint32_t frame) {
    bitmap[frame >> 6] |= UINT64_C(1) << (frame & 63);
}

static inline void bitmaps_place_one(const struct bitmaps_plan *plan, size_t frame, uint64_t word, uint64_t *bitmap) {
    for (; word; word &= word - 1) {
        bitmaps_set(bitmap, plan->places[frame + (size_t)__builtin_ctzll(word)]);
    }
}

/*
 * Put n rows of `width` words, row i those of the frames from `at[i]` on, into the bitmaps (of `words` words each) of
 * their keys `ids[i]`. Return 0 if memory is out.
 */
static inline int bitmaps_place_plain(struct bitmaps_plan *plan, const uint32_t *ids, const uint32_t *at,
                                      const uint64_t *bits, size_t n, size_t width, uint64_t *bitmaps, size_t words) {
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < width; j++) {
            bitmaps_place_one(plan, at[i] + 64 * j, bits[i * width + j], bitmaps + ids[i] * words);
        }
    }
    return 1;
}

#ifdef BITS_PDEP
__attribute__((target("bmi2"))) static inline int bitmaps_place_pdep(struct bitmaps_plan *plan, const uint32_t *ids,
                                                                     const uint32_t *at, const uint64_t *bits, size_t n,
                                                                     size_t width, uint64_t *bitmaps, size_t words) {
    for (size_t i = 0; i < n; i++) {
        uint64_t *bitmap = bitmaps + ids[i] * words;
        for (size_t j = 0; j < width; j++) {
            const uint64_t word = bits[i * width + j];
            const size_t frame = at[i] + 64 * j;
            if (word == 0) {
                continue;
            }
            if (plan->first[frame] == 0 && !bitmaps_plan_add(plan, frame)) {
                return 0;
            }
            const struct bitmaps_move *moves = plan->moves + plan->first[frame] - 1;
            const uint8_t count = plan->count[frame];
            for (uint8_t move = 0; move < count; move++) {
                bitmap[moves[move].word] |= _pdep_u64(word >> moves[move].shift, moves[move].mask);
            }
            if (count == 0) {
                bitmaps_place_one(plan, frame, word, bitmap);
            }
        }
    }
    return 1;
}
#endif

static inline int bitmaps_place(struct bitmaps_plan *plan, const uint32_t *ids, const uint32_t *at,
                                const uint64_t *bits, size_t n, size_t width, uint64_t *bitmaps, size_t words) {
#ifdef BITS_PDEP
    /* AMD's first two Zens have the instruction in name only. */
    if (!bitmaps_portable && __builtin_cpu_supports("bmi2") && !__builtin_cpu_is("znver1") &&
        !__builtin_cpu_is("znver2")) {
        return bitmaps_place_pdep(plan, ids, at, bits, n, width, bitmaps, words);
    }
#endif
    return bitmaps_place_plain(plan, ids, at, bits, n, width, bitmaps, words);
}

/*
 * Write the numbers of the bits of a bitmap, and up to `BITMAPS_AHEAD` more behind them: the processor guesses how long
 * a loop of eight takes, but not how many bits a word has. Return how many numbers there are.
 */
BITS_CLONES static size_t bitmaps_write(const uint64_t *bitmap, size_t words, uint32_t *out) {
    uint32_t *next = out;
    for (size_t i = 0; i < words; i++) {
        uint64_t word = bitmap[i];
        const uint32_t base = (uint32_t)(64 * i);
        const uint32_t count = (uint32_t)__builtin_popcountll(word);
        for (uint32_t done = 0; done < count; done += 8) {
            for (uint32_t k = 0; k < 8; k++) {
                next[done + k] = base + (uint32_t)__builtin_ctzll(word | UINT64_C(1) << 63);
                word &= word - 1;
            }
        }
        next += count;
    }
    return (size_t)(next - out);
}

#endif
