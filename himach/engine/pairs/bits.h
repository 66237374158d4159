/*
 * Words of 64 bits, one a frame: their first bit, the intervals that they make, and their frames as numbers.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define BITS_CLONES
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__has_attribute)
#if __has_attribute(target_clones)
#undef BITS_CLONES
#define BITS_CLONES __attribute__((target_clones("popcnt", "default")))
#endif
#endif

/* Return the place of the first bit of a word that is not 0. */
static inline uint32_t bits_first(uint64_t word) {
    return (uint32_t)__builtin_ctzll(word);
}

/* Return how many intervals the bits of n words make, of which one comes each `stride` words. */
BITS_CLONES static uint32_t bits_intervals(const uint64_t *words, size_t n, size_t stride) {
    uint32_t count = 0;
    uint64_t before = 0;
    for (size_t i = 0; i < n; i++) {
        const uint64_t word = words[i * stride];
        count += (uint32_t)__builtin_popcountll(word & ~(word << 1 | before));
        before = word >> 63;
    }
    return count;
}

enum { BITS_AHEAD = 8 }; /* numbers that `bits_write` writes beyond the last one */

/*
 * Write the numbers of the bits of a bitmap, and up to `BITS_AHEAD` more behind them: the processor guesses how long a
 * loop of eight takes, but not how many bits a word has.
 */
BITS_CLONES static void bits_write(const uint64_t *bitmap, size_t words, uint32_t *out) {
    for (size_t i = 0; i < words; i++) {
        uint64_t word = bitmap[i];
        const uint32_t base = (uint32_t)(64 * i);
        const uint32_t count = (uint32_t)__builtin_popcountll(word);
        for (uint32_t done = 0; done < count; done += 8) {
            for (uint32_t k = 0; k < 8; k++) {
                out[done + k] = base + (uint32_t)__builtin_ctzll(word | UINT64_C(1) << 63);
                word &= word - 1;
            }
        }
        out += count;
    }
}
