"""Presence of all ranks as frames: by `Bitmaps`, over the frames of all ranks, or row by row with `expand_bits()`.

`Bitmaps` give the frames of a key in order, each once. Going by rows is for few frames among many, or a key that is at
a frame twice. A row begins at frame ``at[i]`` of its rank, and ``places`` (uint32) says where that rank's frames are
among those of all ranks.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

import numpy as np


cdef extern from "bits.h" nogil:
    enum:
        BITS_AHEAD
    uint32_t bits_first(uint64_t word)
    void bits_write(const uint64_t *bitmap, size_t words, uint32_t *out)


cdef class Bitmaps:
    """The frames of some keys as bits, over the frames of all ranks; no key is at a frame twice."""

    cdef uint64_t *bitmaps
    cdef Py_ssize_t keys, words

    def __cinit__(self, Py_ssize_t keys, Py_ssize_t frames):
        self.keys = keys
        self.words = (frames + 63) // 64
        self.bitmaps = <uint64_t *>calloc(keys * self.words + 1, sizeof(uint64_t))
        if self.bitmaps == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.bitmaps)

    cdef inline void set(self, uint32_t key, uint32_t frame) noexcept nogil:
        self.bitmaps[key * self.words + (frame >> 6)] |= <uint64_t>1 << (frame & 63)

    def place_bits(
        self, const uint32_t[::1] ids, const uint32_t[::1] at, const uint64_t[:, ::1] bits, const uint32_t[::1] places
    ):
        """Set the frames of rows of bits (n, w) of keys `ids`."""
        cdef Py_ssize_t i, j
        cdef uint64_t word
        cdef uint32_t frame
        with nogil:
            for i in range(ids.shape[0]):
                for j in range(bits.shape[1]):
                    word = bits[i, j]
                    frame = at[i] + <uint32_t>(64 * j)
                    while word:
                        self.set(ids[i], places[frame + bits_first(word)])
                        word &= word - 1

    def place_intervals(
        self, const uint32_t[::1] ids, const uint32_t[::1] at, const uint32_t[::1] lengths, const uint32_t[::1] places
    ):
        """Set the frames of intervals of ``lengths[i]`` frames of keys `ids`."""
        cdef Py_ssize_t i
        cdef uint32_t j
        with nogil:
            for i in range(ids.shape[0]):
                for j in range(lengths[i]):
                    self.set(ids[i], places[at[i] + j])

    def frames(self, const int64_t[::1] bounds):
        """Return uint32 (n,), the frames of key after key, ascending; key k's are ``bounds[k]:bounds[k + 1]``."""
        cdef Py_ssize_t total = bounds[self.keys], i
        out = np.empty(total + BITS_AHEAD, dtype=np.uint32)
        cdef uint32_t[::1] frames = out
        with nogil:
            for i in range(self.keys):
                bits_write(self.bitmaps + i * self.words, self.words, &frames[bounds[i]])
        return out[:total]


def expand_bits(const uint32_t[::1] at, const uint64_t[:, ::1] bits, const uint32_t[::1] places, uint32_t[::1] out):
    """Write the frames of rows of bits (n, w), row by row."""
    cdef Py_ssize_t i, j, place = 0
    cdef uint64_t word
    cdef uint32_t frame
    with nogil:
        for i in range(at.shape[0]):
            for j in range(bits.shape[1]):
                word = bits[i, j]
                frame = at[i] + <uint32_t>(64 * j)
                while word:
                    out[place] = places[frame + bits_first(word)]
                    place += 1
                    word &= word - 1
