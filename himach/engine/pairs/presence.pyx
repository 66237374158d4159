"""Presence as bits and intervals: `Presence` takes in which keys are at which frames.

A key's frames are kept as a row of bits, one a frame, over up to `FRAMES` frames. `Presence.take()` gives them out as
bits or as intervals of frames, whichever is smaller for the key.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

import numpy as np


cdef extern from "key_hash.h" nogil:
    uint64_t key_hash(const int64_t *key, size_t width)
    bint key_same(const int64_t *a, const int64_t *b, size_t width)

cdef extern from "bits.h" nogil:
    uint32_t bits_first(uint64_t word)
    uint32_t bits_intervals(const uint64_t *words, size_t n, size_t stride)

cdef enum:
    WORDS = 8  # of 64 frames
    FRAMES = 64 * WORDS
    AS_BITS = 0xFFFFFFFF
    DIRECT = 1 << 17  # single keys from 0 up to here are found without hashing: atoms, as a rule
    SPARSE = 16  # where the first frame has one of so many keys, all up to its highest have a slot of their number


cdef class Presence:
    """Which keys are present at which of up to `FRAMES` frames; a key is a row of `width` integers.

    Attributes
    ----------
    pairs
        How many keys were added, over all frames.
    first
        The row of the first frame.
    """

    cdef readonly Py_ssize_t pairs
    cdef Py_ssize_t width, slots, capacity
    cdef Py_ssize_t own  # keys below it are their own slots
    cdef readonly uint32_t first  # frame
    cdef uint32_t last  # after the first
    cdef int64_t *keys  # of each slot
    cdef uint64_t *words  # WORDS columns of `capacity`, so that what 64 frames touch lies together
    cdef uint32_t *direct  # key -> slot + 1
    cdef uint32_t *table  # hash -> slot + 1
    cdef uint64_t mask

    def __cinit__(self, Py_ssize_t width):
        self.width = width
        self.capacity = 1024
        self.mask = 2 * self.capacity - 1
        self.keys = <int64_t *>malloc(self.capacity * width * sizeof(int64_t))
        self.words = <uint64_t *>calloc(WORDS * self.capacity, sizeof(uint64_t))
        self.table = <uint32_t *>calloc(self.mask + 1, sizeof(uint32_t))
        self.direct = <uint32_t *>calloc(DIRECT if width == 1 else 1, sizeof(uint32_t))
        if self.keys == NULL or self.words == NULL or self.table == NULL or self.direct == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.keys)
        free(self.words)
        free(self.table)
        free(self.direct)

    def add(self, const int64_t[:] keys, uint32_t row):
        """Note that `keys` (n width,), key by key, are present at the frame of a row, which is no earlier one.

        Returns None, and notes nothing, if the row is not among `FRAMES` from the first on; False, and notes none of
        them, if one of them is twice at this frame; else True.
        """
        if not self.pairs:
            self.first = row
        elif row - self.first >= FRAMES:
            return None
        if keys.strides[0] != sizeof(int64_t) and keys.shape[0] > 1:
            keys = np.ascontiguousarray(keys)
        cdef Py_ssize_t width = self.width, n = keys.shape[0] // width, i, done = 0
        cdef uint32_t frame = row - self.first
        cdef uint64_t bit = <uint64_t>1 << (frame & 63)
        cdef uint64_t *word
        cdef Py_ssize_t slot = 0
        if n == 0:
            return True
        if not self.slots and width == 1 and not self.begin(&keys[0], n):
            raise MemoryError
        with nogil:
            while True:
                if width == 1:
                    done += self.set_known(&keys[done], n - done, bit, frame >> 6)
                if done == n:
                    break
                slot = self.find(&keys[done * width])
                if slot < 0:
                    break
                word = self.words + (frame >> 6) * self.capacity + slot
                if word[0] & bit:
                    break
                word[0] |= bit
                done += 1
            if done < n:
                for i in range(done):
                    self.words[(frame >> 6) * self.capacity + self.find(&keys[i * width])] &= ~bit
        if slot < 0:
            raise MemoryError
        if done < n:
            return False
        self.pairs += n
        self.last = frame
        return True

    cdef bint begin(self, const int64_t *keys, Py_ssize_t n) noexcept nogil:
        """Give all keys up to the highest of a first frame slots of their number, if it has many of them."""
        cdef Py_ssize_t i, own = 0
        for i in range(n):
            if <uint64_t>keys[i] >= <uint64_t>min(<Py_ssize_t>DIRECT, SPARSE * n):
                return True
            own = max(own, <Py_ssize_t>keys[i] + 1)
        while self.capacity < own:
            if not self.grow():
                return False
        for i in range(own):
            self.keys[i] = i
        self.own = self.slots = own
        return True

    cdef inline Py_ssize_t set_known(
        self, const int64_t *keys, Py_ssize_t n, uint64_t bit, Py_ssize_t column
    ) noexcept nogil:
        """Set a bit of each key, up to one that is large, not known, or has it already; return how many were set."""
        cdef uint64_t *words = self.words + column * self.capacity
        cdef const uint32_t *direct = self.direct
        cdef uint64_t own = <uint64_t>self.own, key, word
        cdef Py_ssize_t i
        for i in range(n):
            key = <uint64_t>keys[i]
            if key >= own:
                if key >= DIRECT or direct[key] == 0:
                    return i
                key = direct[key] - 1
            word = words[key]
            if word & bit:
                return i
            words[key] = word | bit
        return n

    cdef inline Py_ssize_t find(self, const int64_t *key) noexcept nogil:
        """Return the slot of a key, a new one if it is not known; -1 if memory is out."""
        if self.width == 1 and <uint64_t>key[0] < <uint64_t>self.own:
            return <Py_ssize_t>key[0]
        cdef uint32_t *place = self.place(key)
        if place[0]:
            return <Py_ssize_t>place[0] - 1
        if self.slots == self.capacity:
            if not self.grow():
                return -1
            place = self.place(key)
        memcpy(self.keys + self.slots * self.width, key, self.width * sizeof(int64_t))
        self.slots += 1
        place[0] = <uint32_t>self.slots
        return self.slots - 1

    cdef inline uint32_t *place(self, const int64_t *key) noexcept nogil:
        """Return where a key's slot is noted, or is to be noted."""
        cdef uint64_t at
        cdef uint32_t known
        if self.width == 1 and 0 <= key[0] < DIRECT:
            return self.direct + key[0]
        at = key_hash(key, self.width) & self.mask
        while True:
            known = self.table[at]
            if known == 0 or key_same(self.keys + (known - 1) * self.width, key, self.width):
                return self.table + at
            at = (at + 1) & self.mask

    cdef bint grow(self) noexcept nogil:
        cdef Py_ssize_t capacity = 4 * self.capacity, i
        cdef int64_t *keys = <int64_t *>realloc(self.keys, capacity * self.width * sizeof(int64_t))
        cdef uint64_t *words
        cdef uint32_t *table
        if keys == NULL:
            return False
        self.keys = keys
        words = <uint64_t *>calloc(WORDS * capacity, sizeof(uint64_t))
        table = <uint32_t *>calloc(2 * capacity, sizeof(uint32_t))
        if words == NULL or table == NULL:
            free(words)
            free(table)
            return False
        for i in range(WORDS):
            memcpy(words + i * capacity, self.words + i * self.capacity, self.slots * sizeof(uint64_t))
        free(self.words)
        free(self.table)
        self.words = words
        self.table = table
        self.capacity = capacity
        self.mask = 2 * capacity - 1
        for i in range(self.own, self.slots):
            self.place(self.keys + i * self.width)[0] = <uint32_t>(i + 1)
        return True

    def take(self):
        """Give out all that was added, and begin anew.

        Returns
        -------
        bit_keys, bits
            int64 (n, width) and uint64 (n, w): bit b of word j stands for the frame 64 j + b after the first; w is 1,
            2, 4 or 8.
        interval_keys, starts, lengths
            int64 (m, width), uint32 (m,), uint32 (m,): how many frames after the first each interval begins, and how
            many it has.
        """
        cdef Py_ssize_t used = 1, i, j, n_bits = 0, n_intervals = 0, bit_row = 0, interval_row = 0
        while 64 * used <= self.last:
            used *= 2
        # What a row takes beside the key: the frame where it begins, and the bits or the length.
        cdef Py_ssize_t bits_size = 8 * self.width + 4 + 8 * used, interval_size = 8 * self.width + 8
        counts_out = np.empty(self.slots, dtype=np.uint32)
        cdef uint32_t[::1] counts = counts_out
        with nogil:
            for i in range(self.slots):
                counts[i] = bits_intervals(self.words + i, used, self.capacity)
                if counts[i] * interval_size > bits_size:
                    counts[i] = AS_BITS
                    n_bits += 1
                else:
                    n_intervals += counts[i]
        bit_keys_out, bits_out = np.empty((n_bits, self.width), np.int64), np.empty((n_bits, used), np.uint64)
        interval_keys_out = np.empty((n_intervals, self.width), np.int64)
        starts_out, lengths_out = np.empty(n_intervals, np.uint32), np.empty(n_intervals, np.uint32)
        cdef int64_t[:, ::1] bit_keys = bit_keys_out, interval_keys = interval_keys_out
        cdef uint64_t[:, ::1] bits = bits_out
        cdef uint32_t[::1] starts = starts_out, lengths = lengths_out
        cdef size_t key_size = self.width * sizeof(int64_t)
        with nogil:
            for i in range(self.slots):
                if counts[i] == 0:  # a key that did not come, or the frame that made this slot was taken back
                    continue
                if counts[i] == AS_BITS:
                    memcpy(&bit_keys[bit_row, 0], self.keys + i * self.width, key_size)
                    for j in range(used):
                        bits[bit_row, j] = self.words[j * self.capacity + i]
                    bit_row += 1
                    continue
                for j in range(counts[i]):
                    memcpy(&interval_keys[interval_row + j, 0], self.keys + i * self.width, key_size)
                self.fill_intervals(i, used, &starts[interval_row], &lengths[interval_row])
                interval_row += counts[i]
        self.clear()
        return bit_keys_out, bits_out, interval_keys_out, starts_out, lengths_out

    cdef void fill_intervals(
        self, Py_ssize_t slot, Py_ssize_t used, uint32_t *starts, uint32_t *lengths
    ) noexcept nogil:
        cdef Py_ssize_t j, interval = -1
        cdef uint64_t word
        cdef uint32_t frame, end = 0
        for j in range(used):
            word = self.words[j * self.capacity + slot]
            while word:
                frame = <uint32_t>(64 * j) + bits_first(word)
                if interval >= 0 and frame == end:
                    lengths[interval] += 1
                else:
                    interval += 1
                    starts[interval] = frame
                    lengths[interval] = 1
                end = frame + 1
                word &= word - 1

    cdef void clear(self) noexcept:
        cdef Py_ssize_t i
        if self.width == 1:
            for i in range(self.own, self.slots):
                if 0 <= self.keys[i] < DIRECT:
                    self.direct[self.keys[i]] = 0
        memset(self.table, 0, (self.mask + 1) * sizeof(uint32_t))
        for i in range(WORDS):
            memset(self.words + i * self.capacity, 0, self.slots * sizeof(uint64_t))
        self.own = self.slots = self.pairs = self.last = 0
