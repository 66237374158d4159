"""`UsedRows`: which frames of a rank some pairs are of, and their numbers among these."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

import numpy as np


cdef extern from "bits.h" nogil:
    uint32_t bits_first(uint64_t word)
    uint32_t bits_count(uint64_t word)


cdef class UsedRows:
    """Rows of a table of `rows` rows, a bit each.

    `mark` and `mark_intervals` mark some, then `close` returns them, and `renumber` says which of them a row is.
    """

    cdef uint64_t *words
    cdef uint32_t *before  # marked rows before each word
    cdef Py_ssize_t rows, n

    def __cinit__(self, Py_ssize_t rows):
        self.rows = rows
        self.n = rows // 64 + 1
        self.words = <uint64_t *>calloc(self.n, sizeof(uint64_t))
        self.before = <uint32_t *>calloc(self.n, sizeof(uint32_t))
        if self.words == NULL or self.before == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.words)
        free(self.before)

    cdef inline void mark_one(self, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
        """Mark the rows from `start` to `stop`, as far as there are any."""
        cdef Py_ssize_t word
        cdef uint64_t bits
        stop = min(stop, self.rows)
        while start < stop:
            word = start >> 6
            bits = ~<uint64_t>0 << (start & 63)
            if stop < 64 * (word + 1):
                bits &= ~(~<uint64_t>0 << (stop & 63))
            self.words[word] |= bits
            start = 64 * (word + 1)

    def mark(self, const uint32_t[::1] at, Py_ssize_t span):
        """Mark `span` rows from each of `at` on, as far as there are so many."""
        cdef Py_ssize_t i
        cdef int64_t last = -1
        with nogil:
            for i in range(at.shape[0]):
                if at[i] != last:  # as a rule many pairs are of one frame, or begin at one
                    last = at[i]
                    self.mark_one(at[i], at[i] + span)

    def mark_intervals(self, const uint32_t[::1] at, const uint32_t[::1] lengths):
        """Mark ``lengths[i]`` rows from ``at[i]`` on."""
        cdef Py_ssize_t i
        with nogil:
            for i in range(at.shape[0]):
                self.mark_one(at[i], <Py_ssize_t>at[i] + lengths[i])

    def close(self):
        """Return the marked rows, int64 (n,), ascending."""
        cdef Py_ssize_t word, done = 0
        cdef uint64_t bits
        with nogil:
            for word in range(self.n):
                self.before[word] = <uint32_t>done
                done += bits_count(self.words[word])
        out = np.empty(done, dtype=np.int64)
        cdef int64_t[::1] rows = out
        done = 0
        with nogil:
            for word in range(self.n):
                bits = self.words[word]
                while bits:
                    rows[done] = 64 * word + bits_first(bits)
                    done += 1
                    bits &= bits - 1
        return out

    def renumber(self, const uint32_t[::1] at):
        """Return uint32 (n,): which of the marked rows each is."""
        cdef Py_ssize_t i
        out = np.empty(at.shape[0], dtype=np.uint32)
        cdef uint32_t[::1] numbers = out
        cdef uint64_t below
        with nogil:
            for i in range(at.shape[0]):
                below = self.words[at[i] >> 6] & ~(~<uint64_t>0 << (at[i] & 63))
                numbers[i] = self.before[at[i] >> 6] + bits_count(below)
        return out
