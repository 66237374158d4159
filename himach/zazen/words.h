/*
 * Kernels over bitmap words: bit b of word w stands for position 64 w + b.
 *
 * Counts of a position's holders are two bits wide and saturate: 00 none, 01 one, 10 more. A word of counts holds 32
 * positions, their low bits in its low half and their high bits in its high half, so that one element of an MPI buffer
 * is complete in itself and 32 positions are added at once. Counts of bitmap word w are count words 2 w and 2 w + 1.
 *
 * Pointers may be equal (in place), never overlap otherwise. Sizes are in bitmap words unless stated.
 */
#ifndef HIMACH_ZAZEN_WORDS_H
#define HIMACH_ZAZEN_WORDS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The widest registers that are used: 0 a word's, 1 AVX2's, 2 AVX-512's. Tests lower it. */
static int words_widest = 2;

/*
 * One wheel runs on every x86-64. WORDS_KERNEL() makes of name_loop() a function that runs it as compiled for wide
 * registers, and for counting bits in them, where the processor has these. (target_clones cannot name the latter.)
 */
#if defined(__x86_64__) && defined(__GNUC__)
#define WORDS_LOOP   static inline __attribute__((always_inline))
#define WORDS_AVX2   __attribute__((target("avx2,popcnt")))
#define WORDS_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vpopcntdq")))
#define WORDS_KERNEL(returned, name, parameters, arguments)                                                            \
    WORDS_AVX512 static returned name##_avx512 parameters {                                                            \
        return name##_loop arguments;                                                                                  \
    }                                                                                                                  \
    WORDS_AVX2 static returned name##_avx2 parameters {                                                                \
        return name##_loop arguments;                                                                                  \
    }                                                                                                                  \
    static returned name parameters {                                                                                  \
        switch (words_registers()) {                                                                                   \
        case 2:                                                                                                        \
            return name##_avx512 arguments;                                                                            \
        case 1:                                                                                                        \
            return name##_avx2 arguments;                                                                              \
        default:                                                                                                       \
            return name##_loop arguments;                                                                              \
        }                                                                                                              \
    }

static inline int words_registers(void) {
    if (words_widest >= 2 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vpopcntdq")) {
        return 2;
    }
    return words_widest >= 1 && __builtin_cpu_supports("avx2");
}
#else
#define WORDS_LOOP static inline
#define WORDS_KERNEL(returned, name, parameters, arguments)                                                            \
    static returned name parameters {                                                                                  \
        return name##_loop arguments;                                                                                  \
    }
#endif

#define WORDS_LOW UINT64_C(0x00000000FFFFFFFF)

/* Number of set bits. */
WORDS_LOOP int64_t words_popcount_loop(const uint64_t *words, size_t n) {
    int64_t count = 0;
    for (size_t i = 0; i < n; i++) {
        count += __builtin_popcountll(words[i]);
    }
    return count;
}

WORDS_KERNEL(int64_t, words_popcount, (const uint64_t *words, size_t n), (words, n))

/* Adds the counts of `in` to those of `inout`; n is in count words. */
WORDS_LOOP void words_add_counts_loop(const uint64_t *in, uint64_t *inout, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint64_t a = in[i], b = inout[i];
        uint64_t sum = a | b | ((a & b) << 32);
        inout[i] = sum & ~(sum >> 32); /* "more" is 10: the low bit goes where the high bit is set */
    }
}

WORDS_KERNEL(void, words_add_counts, (const uint64_t *in, uint64_t *inout, size_t n), (in, inout, n))

/* Counts (none or one) of the bits of `mine` that `taken` lacks, and how many there are. */
WORDS_LOOP int64_t words_open_counts_loop(const uint64_t *taken, const uint64_t *mine, uint64_t *counts, size_t n) {
    int64_t open = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t word = mine[i] & ~taken[i];
        counts[2 * i] = word & WORDS_LOW;
        counts[2 * i + 1] = word >> 32;
        open += __builtin_popcountll(word);
    }
    return open;
}

WORDS_KERNEL(int64_t, words_open_counts, (const uint64_t *taken, const uint64_t *mine, uint64_t *counts, size_t n),
             (taken, mine, counts, n))

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
WORDS_LOOP words_claims words_claim_loop(const uint64_t *taken, const uint64_t *counts, const uint64_t *mine,
                                         uint64_t *share, uint64_t *residue, size_t n) {
    words_claims claims = {0, 0, 0, 0};
    for (size_t i = 0; i < n; i++) {
        uint64_t low = counts[2 * i], high = counts[2 * i + 1];
        uint64_t single = (low & WORDS_LOW) | (high << 32);
        uint64_t more = (low >> 32) | (high & ~WORDS_LOW);
        uint64_t used = taken[i];
        uint64_t claim = mine[i] & single & ~used;
        uint64_t rest = ~(used | single | more);
        claims.claimed += __builtin_popcountll(claim);
        claims.residue += __builtin_popcountll(rest);
        claims.more |= more;
        claims.surplus |= mine[i] & used;
        share[i] |= claim;
        residue[i] = rest;
    }
    return claims;
}

WORDS_KERNEL(words_claims, words_claim,
             (const uint64_t *taken, const uint64_t *counts, const uint64_t *mine, uint64_t *share, uint64_t *residue,
              size_t n),
             (taken, counts, mine, share, residue, n))

/* The positions that more than one holder counts. */
WORDS_LOOP void words_contested_loop(const uint64_t *counts, uint64_t *more, size_t n) {
    for (size_t i = 0; i < n; i++) {
        more[i] = (counts[2 * i] >> 32) | (counts[2 * i + 1] & ~WORDS_LOW);
    }
}

WORDS_KERNEL(void, words_contested, (const uint64_t *counts, uint64_t *more, size_t n), (counts, more, n))

/* Copies bits `skip` to `skip + count` (counted among the set bits of `from`) to `to`, which keeps its other bits. */
static void words_copy_some(const uint64_t *from, uint64_t *to, size_t n, int64_t skip, int64_t count) {
    for (size_t i = 0; i < n && count > 0; i++) {
        uint64_t word = from[i];
        int64_t bits = __builtin_popcountll(word);
        if (skip >= bits) {
            skip -= bits;
            continue;
        }
        for (; skip > 0; skip--, bits--) {
            word &= word - 1;
        }
        if (bits <= count) {
            to[i] |= word;
            count -= bits;
            continue;
        }
        for (; count > 0; count--) {
            to[i] |= word & (~word + 1);
            word &= word - 1;
        }
    }
}

/* Writes to `out` the positions of set bits `skip` to `skip + count`; returns how many there were. */
WORDS_LOOP int64_t words_decode_loop(const uint64_t *words, size_t n, int64_t first, int64_t skip, int64_t *out,
                                     int64_t count) {
    int64_t done = 0;
    for (size_t i = 0; i < n && done < count; i++) {
        uint64_t word = words[i];
        int64_t bits = __builtin_popcountll(word);
        if (skip >= bits) {
            skip -= bits;
            continue;
        }
        for (; skip > 0; skip--) {
            word &= word - 1;
        }
        for (; word != 0 && done < count; word &= word - 1) {
            out[done++] = first + 64 * (int64_t)i + __builtin_ctzll(word);
        }
    }
    return done;
}

WORDS_KERNEL(int64_t, words_decode,
             (const uint64_t *words, size_t n, int64_t first, int64_t skip, int64_t *out, int64_t count),
             (words, n, first, skip, out, count))

#endif
