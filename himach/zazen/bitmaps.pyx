"""Bitmaps of positions as uint64 words: counts of holders, decisions, priorities, decoding.

Bit b of word w stands for position 64 w + b of a selection. The loops are C over whole words (``words.h``) and run
without the GIL; this module checks shapes and calls them.
"""

import numpy as np

from libc.stdint cimport int64_t, uint64_t

cdef extern from "words.h" nogil:
    ctypedef struct words_claims:
        int64_t claimed
        int64_t residue
        uint64_t more
        uint64_t surplus

    int words_widest
    int64_t words_popcount(const uint64_t *words, size_t n)
    void words_add_counts(const uint64_t *a, uint64_t *b, size_t n)
    int64_t words_open_counts(const uint64_t *taken, const uint64_t *mine, uint64_t *counts, size_t n)
    words_claims words_claim(const uint64_t *taken, const uint64_t *counts, const uint64_t *mine, uint64_t *share,
                             uint64_t *residue, size_t n)
    void words_contested(const uint64_t *counts, uint64_t *more, size_t n)
    void words_copy_some(const uint64_t *source, uint64_t *target, size_t n, int64_t skip, int64_t count)
    int64_t words_decode(const uint64_t *words, size_t n, int64_t first, int64_t skip, int64_t *out, int64_t count)


cdef size_t same(str name, Py_ssize_t got, Py_ssize_t expected) except? 0:
    """Return `got`, or refuse an array of another length than the rest."""
    if got != expected:
        raise ValueError(f"{name} has {got} words, expected {expected}")
    return got


def use_registers(int widest) -> None:
    """Let the loops use registers no wider than a word's (0), AVX2's (1), or AVX-512's (2), for tests of all three."""
    global words_widest
    words_widest = widest


def popcount(const uint64_t[::1] words) -> int:
    """Return the number of set bits."""
    cdef int64_t count
    with nogil:
        count = words_popcount(&words[0], words.shape[0]) if words.shape[0] else 0
    return count


def block_counts(const uint64_t[::1] words, Py_ssize_t block, int64_t[::1] counts) -> None:
    """Write to `counts` the number of set bits in every `block` words (the last block may be shorter)."""
    cdef Py_ssize_t n = words.shape[0], i
    same("counts", counts.shape[0], (n + block - 1) // block)
    with nogil:
        for i in range(counts.shape[0]):
            counts[i] = words_popcount(&words[i * block], min(block, n - i * block))


def merge_counts(inbuf, inoutbuf, datatype) -> None:
    """Add two-bit counts as an MPI reduction does: over the addresses of its buffers."""
    cdef size_t source = inbuf.address, target = inoutbuf.address, n = inoutbuf.nbytes // 8
    with nogil:
        words_add_counts(<const uint64_t *>source, <uint64_t *>target, n)


def open_counts(const uint64_t[::1] taken, const uint64_t[::1] mine, uint64_t[::1] counts) -> int:
    """Write the counts (none or one) of the bits of `mine` that `taken` lacks; return how many there are."""
    cdef size_t n = same("mine", mine.shape[0], taken.shape[0])
    cdef int64_t claims = 0
    same("counts", counts.shape[0], 2 * n)
    if n:
        with nogil:
            claims = words_open_counts(&taken[0], &mine[0], &counts[0], n)
    return claims


def claim(const uint64_t[::1] taken, const uint64_t[::1] counts, const uint64_t[::1] mine, uint64_t[::1] share,
          uint64_t[::1] residue) -> tuple:
    """Claim for `share` what is in `mine`, not `taken` and counted once; write what nobody holds to `residue`.

    Returns
    -------
    tuple of int, int, bool, bool
        Bits claimed; bits of residue; whether a position has several holders; whether a bit of `mine` was taken.
    """
    cdef size_t n = same("mine", mine.shape[0], taken.shape[0])
    cdef words_claims claims
    same("counts", counts.shape[0], 2 * n)
    same("share", share.shape[0], n)
    same("residue", residue.shape[0], n)
    if n == 0:
        return 0, 0, False, False
    with nogil:
        claims = words_claim(&taken[0], &counts[0], &mine[0], &share[0], &residue[0], n)
    return claims.claimed, claims.residue, claims.more != 0, claims.surplus != 0


def contested(const uint64_t[::1] counts, uint64_t[::1] more) -> None:
    """Write to `more` the positions that more than one holder counts."""
    cdef size_t n = more.shape[0]
    same("counts", counts.shape[0], 2 * n)
    if n:
        with nogil:
            words_contested(&counts[0], &more[0], n)


def copy_some(const uint64_t[::1] source, uint64_t[::1] target, int64_t skip, int64_t count) -> None:
    """Set in `target` the set bits of `source` number `skip` to `skip + count`, in order of position."""
    cdef size_t n = same("target", target.shape[0], source.shape[0])
    if n:
        with nogil:
            words_copy_some(&source[0], &target[0], n, skip, count)


def decode(const uint64_t[::1] words, int64_t first, int64_t skip, int64_t count):
    """Return the positions of set bits number `skip` to `skip + count`, ascending.

    Parameters
    ----------
    words
        uint64 (n,).
    first
        Position of bit 0 of the first word.
    skip, count
        Set bits to pass over, and at most how many to return.

    Returns
    -------
    ndarray
        int64 (at most `count`,).
    """
    out = np.empty(count, dtype=np.int64)
    cdef int64_t[::1] positions = out
    cdef int64_t done = 0
    if words.shape[0] and count > 0:
        with nogil:
            done = words_decode(&words[0], words.shape[0], first, skip, &positions[0], count)
    return out[:done]


cdef inline uint64_t mixed(uint64_t x) noexcept nogil:
    """Finaliser of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014)."""
    x += 0x9E3779B97F4A7C15ULL
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL
    return x ^ (x >> 31)


cdef inline uint64_t priority(uint64_t block, uint64_t node, uint64_t prime) noexcept nogil:
    cdef uint64_t drawn = mixed(block)
    return ((1 + (drawn & 0xFFFFFFFFULL) % (prime - 1)) * node + (drawn >> 32)) % prime


def priority_plane(const int64_t[::1] word_numbers, uint64_t[::1] plane, int shift, uint64_t node, uint64_t prime,
                   int bit) -> None:
    """Write where one bit of a node's priority is clear.

    In every block of ``1 << shift`` positions the nodes have another order: node i has priority (a i + b) mod p, with a
    and b drawn by hash from the block's number and p a prime no smaller than the number of nodes. All nodes compute
    the same order; two nodes never have one priority.

    Parameters
    ----------
    word_numbers
        int64 (n,): which words of the selection's bitmap.
    plane
        uint64 (n,): bits set where bit `bit` of the priority is 0.
    """
    cdef Py_ssize_t i
    cdef int64_t position, end, width = 1 << min(shift, 6)
    cdef uint64_t word, run
    same("plane", plane.shape[0], word_numbers.shape[0])
    # ``width`` low bits set; a shift by 64 would be undefined.
    run = ~(<uint64_t>0) >> (64 - width)
    with nogil:
        for i in range(word_numbers.shape[0]):
            position = 64 * word_numbers[i]
            end = position + 64
            word = 0
            while position < end:
                if not (priority(position >> shift, node, prime) >> bit) & 1:
                    word |= run << (position & 63)
                position += width
            plane[i] = word
