"""Presence of all ranks as frames: by `Bitmaps`, over the frames of all ranks, or row by row with `expand_*()`.

`Bitmaps` give the frames of a key in order, each once. `expand_*()` are for few frames among many, or a key that is at
a frame twice.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

import numpy as np


cdef extern from "bits.h" nogil:
    uint32_t bits_first(uint64_t word)

cdef extern from "bitmaps.h" nogil:
    enum:
        BITMAPS_AHEAD
    struct bitmaps_plan:
        const uint32_t *places
    int bitmaps_portable
    bint bitmaps_plan_begin(bitmaps_plan *plan, const uint32_t *places, size_t frames)
    void bitmaps_plan_end(bitmaps_plan *plan)
    bint bitmaps_place(
        bitmaps_plan *plan, const uint32_t *ids, const uint32_t *at, const uint64_t *bits, size_t n, size_t width,
        uint64_t *bitmaps, size_t words
    )
    void bitmaps_set(uint64_t *bitmap, uint32_t frame)
    size_t bitmaps_write(const uint64_t *bitmap, size_t words, uint32_t *out)


def use_portable(bint portable):
    """Let bits be placed one by one, as on any processor, or by what this one has, for tests of both."""
    global bitmaps_portable
    bitmaps_portable = portable


cdef class Plan:
    """Where the frames of a rank are among those of all ranks, as bits.

    Parameters
    ----------
    places
        uint32 (n,): where each of the rank's frames is among those of all ranks.
    """

    cdef bitmaps_plan plan
    cdef const uint32_t[::1] places

    def __cinit__(self, const uint32_t[::1] places):
        self.places = places
        if not bitmaps_plan_begin(&self.plan, &places[0] if places.shape[0] else NULL, places.shape[0]):
            raise MemoryError

    def __dealloc__(self):
        bitmaps_plan_end(&self.plan)


cdef class Bitmaps:
    """The frames of some keys as bits, over the frames of all ranks; no key is at a frame twice.

    Parameters
    ----------
    keys
        How many.
    frames
        How many there are on all ranks.
    """

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

    def place_bits(self, Plan plan, const uint32_t[::1] ids, const uint32_t[::1] at, const uint64_t[:, ::1] bits):
        """Set the frames of rows of bits (n, w) of keys `ids`, which begin at frame ``at[i]`` of their rank."""
        cdef bint enough = True
        if ids.shape[0]:
            with nogil:
                enough = bitmaps_place(
                    &plan.plan, &ids[0], &at[0], &bits[0, 0], ids.shape[0], bits.shape[1], self.bitmaps, self.words
                )
        if not enough:
            raise MemoryError

    def place_intervals(
        self, Plan plan, const uint32_t[::1] ids, const uint32_t[::1] at, const uint32_t[::1] lengths
    ):
        """Set the frames of intervals of keys `ids`: ``lengths[i]`` frames from frame ``at[i]`` of the rank on."""
        cdef Py_ssize_t i
        cdef uint32_t j
        with nogil:
            for i in range(ids.shape[0]):
                for j in range(lengths[i]):
                    bitmaps_set(self.bitmaps + ids[i] * self.words, plan.places[at[i] + j])

    def frames(self, const int64_t[::1] bounds):
        """Return uint32 (n,), the frames of key after key, ascending; key k's are ``bounds[k]:bounds[k + 1]``."""
        cdef Py_ssize_t total = bounds[self.keys], i
        out = np.empty(total + BITMAPS_AHEAD, dtype=np.uint32)
        cdef uint32_t[::1] frames = out
        with nogil:
            for i in range(self.keys):
                bitmaps_write(self.bitmaps + i * self.words, self.words, &frames[bounds[i]])
        return out[:total]


# The three below put row i's frames behind those that its key ``ids[i]`` has already: at ``cursor[ids[i]]`` (int64),
# which moves on. A row begins at frame ``at[i]`` of its rank, and ``places`` (uint32) says
# where that rank's frames are among those of all ranks.

def expand_bits(
    const uint32_t[::1] ids, const uint32_t[::1] at, const uint64_t[:, ::1] bits, const uint32_t[::1] places,
    int64_t[::1] cursor, uint32_t[::1] out,
):
    """Write the frames of rows of bits (n, w)."""
    cdef Py_ssize_t i, j
    cdef int64_t place
    cdef uint64_t word
    cdef uint32_t frame
    with nogil:
        for i in range(ids.shape[0]):
            place = cursor[ids[i]]
            for j in range(bits.shape[1]):
                word = bits[i, j]
                frame = at[i] + <uint32_t>(64 * j)
                while word:
                    out[place] = places[frame + bits_first(word)]
                    place += 1
                    word &= word - 1
            cursor[ids[i]] = place


def expand_intervals(
    const uint32_t[::1] ids, const uint32_t[::1] at, const uint32_t[::1] lengths, const uint32_t[::1] places,
    int64_t[::1] cursor, uint32_t[::1] out,
):
    """Write the frames of intervals of ``lengths[i]`` frames."""
    cdef Py_ssize_t i
    cdef uint32_t j
    cdef int64_t place
    with nogil:
        for i in range(ids.shape[0]):
            place = cursor[ids[i]]
            for j in range(lengths[i]):
                out[place + j] = places[at[i] + j]
            cursor[ids[i]] = place + lengths[i]


def expand_rows(
    const uint32_t[::1] ids, const uint32_t[::1] at, const uint32_t[::1] places, int64_t[::1] cursor, uint32_t[::1] out
):
    """Write the frames of rows of one frame each."""
    cdef Py_ssize_t i
    with nogil:
        for i in range(ids.shape[0]):
            out[cursor[ids[i]]] = places[at[i]]
            cursor[ids[i]] += 1
