/*
 * Words of 64 bits, one a frame: their first bit, and the intervals that they make.
 */
#ifndef HIMACH_ENGINE_BITS_H
#define HIMACH_ENGINE_BITS_H

#include <stddef.h>
#include <stdint.h>

#define BITS_CLONES
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__has_attribute)
#if __has_attribute(target_clones)
#include <immintrin.h>
#define BITS_PDEP
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

#endif
