"""Bitmaps of positions as uint64 words: counts of holders, and decisions.

Bit b of word w stands for position 64 w + b of a selection. The loops are C over whole words (``words.h``) and run
without the GIL; this module checks shapes and calls them.
"""

from libc.stdint cimport int64_t, uint64_t

cdef extern from "words.h" nogil:
    ctypedef struct words_claims:
        int64_t claimed
        int64_t residue
        uint64_t more
        uint64_t surplus

    int64_t words_popcount(const uint64_t *words, size_t n)
    void words_add_counts(const uint64_t *a, uint64_t *b, size_t n)
    int64_t words_open_counts(const uint64_t *taken, const uint64_t *mine, uint64_t *counts, size_t n)
    words_claims words_claim(const uint64_t *taken, const uint64_t *counts, const uint64_t *mine, uint64_t *share,
                             uint64_t *residue, size_t n)


cdef size_t same(str name, Py_ssize_t got, Py_ssize_t expected) except? 0:
    """Return `got`, or refuse an array of another length than the rest."""
    if got != expected:
        raise ValueError(f"{name} has {got} words, expected {expected}")
    return got


def popcount(const uint64_t[::1] words) -> int:
    """Return the number of set bits."""
    cdef int64_t count = 0
    if words.shape[0]:
        with nogil:
            count = words_popcount(&words[0], words.shape[0])
    return count


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
