"""Bitmaps of positions as uint64 words: counts of holders, and decisions.

Bit b of word w stands for position 64 w + b of a selection. The loops are C over whole words (``words.h``) and run
without the GIL. Arrays have a word for each 64 positions, counts have two.
"""

from libc.stdint cimport int64_t, uint64_t

cdef extern from "words.h" nogil:
    ctypedef struct words_claims:
        int64_t claimed
        int64_t residue
        uint64_t more
        uint64_t surplus

    void words_add_counts(const uint64_t *a, uint64_t *b, size_t n)
    int64_t words_open_counts(const uint64_t *taken, const uint64_t *mine, uint64_t *counts, size_t n)
    words_claims words_claim(const uint64_t *taken, const uint64_t *counts, const uint64_t *mine, uint64_t *share,
                             uint64_t *residue, size_t n)


def merge_counts(inbuf, inoutbuf, datatype) -> None:
    """Add two-bit counts as an MPI reduction does: over the addresses of its buffers."""
    cdef size_t source = inbuf.address, target = inoutbuf.address, n = inoutbuf.nbytes // 8
    with nogil:
        words_add_counts(<const uint64_t *>source, <uint64_t *>target, n)


def open_counts(const uint64_t[::1] taken, const uint64_t[::1] mine, uint64_t[::1] counts) -> int:
    """Write the counts (none or one) of the bits of `mine` that `taken` lacks; return how many there are."""
    cdef size_t n = taken.shape[0]
    cdef int64_t claims = 0
    if n:
        with nogil:
            claims = words_open_counts(&taken[0], &mine[0], &counts[0], n)
    return claims


def claim(const uint64_t[::1] taken, const uint64_t[::1] counts, const uint64_t[::1] mine, uint64_t[::1] share,
          uint64_t[::1] residue) -> tuple:
    """Claim for `share` what is in `mine`, not `taken` and counted once; write what nobody holds to `residue`.

    Return the bits claimed, those of residue, whether a position has several holders, and a bit of `mine` was taken.
    """
    cdef size_t n = taken.shape[0]
    cdef words_claims claims
    if n == 0:
        return 0, 0, False, False
    with nogil:
        claims = words_claim(&taken[0], &counts[0], &mine[0], &share[0], &residue[0], n)
    return claims.claimed, claims.residue, claims.more != 0, claims.surplus != 0
