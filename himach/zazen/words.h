/*
 * Kernels over bitmap words: bit b of word w stands for position 64 w + b.
 *
 * Counts of a position's holders are two bits wide and saturate: 00 none, 01 one, 10 more. A word of counts holds 32
 * positions, their low bits in its low half and their high bits in its high half, so that one element of an MPI buffer
 * is complete in itself and 32 positions are added at once. Counts of bitmap word w are count words 2 w and 2 w + 1.
 *
 * Pointers may be equal (in place), never overlap otherwise. Sizes are in bitmap words unless stated.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Loops are also compiled for AVX-512 and AVX2; the loader chooses the best that the processor has. */
#define WORDS_CLONES
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__has_attribute)
#if __has_attribute(target_clones)
#undef WORDS_CLONES
#define WORDS_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#endif

#define WORDS_LOW UINT64_C(0x00000000FFFFFFFF)

/* Number of set bits, by shifts and masks alone, which compilers do for several words at once. */
static inline uint64_t words_ones(uint64_t x) {
    x -= (x >> 1) & UINT64_C(0x5555555555555555);
    x = (x & UINT64_C(0x3333333333333333)) + ((x >> 2) & UINT64_C(0x3333333333333333));
    x = (x + (x >> 4)) & UINT64_C(0x0F0F0F0F0F0F0F0F);
    x += x >> 8;
    x += x >> 16;
    return (x + (x >> 32)) & 0x7F;
}

/* Adds the counts of `in` to those of `inout`; n is in count words. */
WORDS_CLONES static void words_add_counts(const uint64_t *in, uint64_t *inout, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint64_t a = in[i], b = inout[i];
        uint64_t sum = a | b | ((a & b) << 32);
        inout[i] = sum & ~(sum >> 32); /* "more" is 10: the low bit goes where the high bit is set */
    }
}

/* Counts (none or one) of the bits of `mine` that `taken` lacks, and how many there are. */
WORDS_CLONES static int64_t words_open_counts(const uint64_t *taken, const uint64_t *mine, uint64_t *counts, size_t n) {
    int64_t open = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t word = mine[i] & ~taken[i];
        counts[2 * i] = word & WORDS_LOW;
        counts[2 * i + 1] = word >> 32;
        open += (int64_t)words_ones(word);
    }
    return open;
}

/* What one pass of words_claim() found. */
typedef struct {
    int64_t claimed;  /* bits added to `share` */
    int64_t residue;  /* bits of `residue` */
    uint64_t more;    /* not 0: some position has several holders */
    uint64_t surplus; /* not 0: some bit of `mine` is taken */
} words_claims;

/*
 * Claims for `share` the bits of `mine` that nobody has taken and that one holder counts, and writes to `residue`
 * the positions that are neither taken nor counted.
 */
WORDS_CLONES static words_claims words_claim(const uint64_t *taken, const uint64_t *counts, const uint64_t *mine,
                                             uint64_t *share, uint64_t *residue, size_t n) {
    words_claims claims = {0, 0, 0, 0};
    for (size_t i = 0; i < n; i++) {
        uint64_t low = counts[2 * i], high = counts[2 * i + 1];
        uint64_t single = (low & WORDS_LOW) | (high << 32);
        uint64_t more = (low >> 32) | (high & ~WORDS_LOW);
        uint64_t used = taken[i];
        uint64_t claim = mine[i] & single & ~used;
        uint64_t rest = ~(used | single | more);
        claims.claimed += (int64_t)words_ones(claim);
        claims.residue += (int64_t)words_ones(rest);
        claims.more |= more;
        claims.surplus |= mine[i] & used;
        share[i] |= claim;
        residue[i] = rest;
    }
    return claims;
}
