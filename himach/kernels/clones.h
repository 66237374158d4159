/* CLONES before a function: compiled for any processor and again for AVX2; the loader takes what the processor has.
 *
 * Vectors of eight floats are the compiler's (GCC and clang), so that the same source serves both and other processors.
 * Nothing here is contracted to fused multiply-adds, hence every version gives the same bits. */
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__has_attribute) && !defined(HIMACH_PORTABLE)
#if __has_attribute(target_clones)
#define CLONES __attribute__((target_clones("avx2", "default")))
#endif
#endif
#ifndef CLONES
#define CLONES
#endif

#define INLINE static inline __attribute__((always_inline))

enum { LANES = 8 };

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));

INLINE floats load(const float *from) {
    floats lanes;
    memcpy(&lanes, from, sizeof lanes);
    return lanes;
}

/* Whether a comparison is true in any lane. */
INLINE int any_of(ints truth) {
    uint64_t words[LANES / 2];
    memcpy(words, &truth, sizeof words);
    return (words[0] | words[1] | words[2] | words[3]) != 0;
}

/* A bit for each lane of a comparison's result. */
INLINE unsigned bits_of(ints truth) {
    const ints weights = {1, 2, 4, 8, 16, 32, 64, 128};
    uint64_t words[LANES / 2];
    truth &= weights;
    memcpy(words, &truth, sizeof words);
    const uint64_t folded = words[0] | words[1] | words[2] | words[3];
    return (unsigned)(folded | folded >> 32);
}
