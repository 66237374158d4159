"""Presence as bits and intervals: `Presence` takes in which keys are at which frames.

A key's frames are kept as a row of bits, one a frame, over up to `FRAMES` frames. `Presence.take()` gives them out as
bits or as intervals of frames, whichever is smaller for the key.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

import numpy as np


cdef extern from "key_ids.h" nogil:
    struct key_ids:
        size_t groups, room
        int64_t *keys
    bint key_ids_begin(key_ids *table, size_t width)
    void key_ids_end(key_ids *table)
    void key_ids_clear(key_ids *table)
    bint key_ids_add(key_ids *table, const int64_t *row)
    bint key_ids_number(key_ids *table, const int64_t *rows, size_t n, uint32_t *ids)

cdef extern from "bits.h" nogil:
    uint32_t bits_first(uint64_t word)
    uint32_t bits_intervals(const uint64_t *words, size_t n, size_t stride)

cdef enum:
    WORDS = 8  # of 64 frames
    FRAMES = 64 * WORDS
    AS_BITS = 0xFFFFFFFF
    DIRECT = 1 << 17  # single keys from 0 up to here are found without hashing: atoms, as a rule


cdef class Presence:
    """Which keys are present at which of up to `FRAMES` frames; a key is a row of `width` integers."""

    cdef readonly Py_ssize_t pairs  # keys that were added, over all frames
    cdef Py_ssize_t width, capacity
    cdef readonly uint32_t first  # row of the first frame
    cdef uint32_t last  # after the first
    cdef key_ids slots  # of keys
    cdef uint64_t *words  # WORDS columns of `capacity`, so that what 64 frames touch lies together
    cdef uint32_t *direct  # key -> slot + 1

    def __cinit__(self, Py_ssize_t width):
        self.width = width
        self.direct = <uint32_t *>calloc(DIRECT if width == 1 else 1, sizeof(uint32_t))
        if not key_ids_begin(&self.slots, width) or not self.grow() or self.direct == NULL:
            raise MemoryError

    def __dealloc__(self):
        key_ids_end(&self.slots)
        free(self.words)
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

    cdef inline Py_ssize_t set_known(
        self, const int64_t *keys, Py_ssize_t n, uint64_t bit, Py_ssize_t column
    ) noexcept nogil:
        """Set a bit of each key, up to one that is large, not known, or has it already; return how many were set."""
        cdef uint64_t *words = self.words + column * self.capacity
        cdef const uint32_t *direct = self.direct
        cdef uint64_t key, word
        cdef Py_ssize_t i
        for i in range(n):
            key = <uint64_t>keys[i]
            if key >= DIRECT or direct[key] == 0:
                return i
            word = words[direct[key] - 1]
            if word & bit:
                return i
            words[direct[key] - 1] = word | bit
        return n

    cdef inline Py_ssize_t find(self, const int64_t *key) noexcept nogil:
        """Return the slot of a key, a new one if it is not known; -1 if memory is out."""
        cdef uint32_t slot
        if self.width == 1 and 0 <= key[0] < DIRECT:
            if self.direct[key[0]] == 0:
                if not key_ids_add(&self.slots, key):
                    return -1
                self.direct[key[0]] = <uint32_t>self.slots.groups
            slot = self.direct[key[0]] - 1
        elif not key_ids_number(&self.slots, key, 1, &slot):
            return -1
        if slot >= self.capacity and not self.grow():
            return -1
        return slot

    cdef bint grow(self) noexcept nogil:
        """Make room for the bits of as many slots as there is room for."""
        cdef Py_ssize_t capacity = self.slots.room, i
        cdef uint64_t *words = <uint64_t *>calloc(WORDS * capacity, sizeof(uint64_t))
        if words == NULL:
            return False
        for i in range(WORDS if self.capacity else 0):
            memcpy(words + i * capacity, self.words + i * self.capacity, self.capacity * sizeof(uint64_t))
        free(self.words)
        self.words = words
        self.capacity = capacity
        return True

    def take(self):
        """Give out all that was added, as bits and as intervals, and begin anew.

        Return the keys of bits, int64 (n, width), and these, uint64 (n, w), of which bit b of word j stands for the
        frame 64 j + b after the first; w is 1, 2, 4 or 8. Then the keys of intervals, int64 (m, width), how many frames
        after the first each begins, and how many it has, uint32 (m,).
        """
        cdef Py_ssize_t used = 1, i, j, n_bits = 0, n_intervals = 0, bit_row = 0, interval_row = 0
        while 64 * used <= self.last:
            used *= 2
        # What a row takes beside the key: the frame where it begins, and the bits or the length.
        cdef Py_ssize_t bits_size = 8 * self.width + 4 + 8 * used, interval_size = 8 * self.width + 8
        cdef Py_ssize_t slots = self.slots.groups
        cdef const int64_t *keys = self.slots.keys
        counts_out = np.empty(slots, dtype=np.uint32)
        cdef uint32_t[::1] counts = counts_out
        with nogil:
            for i in range(slots):
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
            for i in range(slots):
                if counts[i] == 0:  # the frame that made this slot was taken back
                    continue
                if counts[i] == AS_BITS:
                    memcpy(&bit_keys[bit_row, 0], keys + i * self.width, key_size)
                    for j in range(used):
                        bits[bit_row, j] = self.words[j * self.capacity + i]
                    bit_row += 1
                    continue
                for j in range(counts[i]):
                    memcpy(&interval_keys[interval_row + j, 0], keys + i * self.width, key_size)
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
            for i in range(<Py_ssize_t>self.slots.groups):
                if 0 <= self.slots.keys[i] < DIRECT:
                    self.direct[self.slots.keys[i]] = 0
        for i in range(WORDS):
            memset(self.words + i * self.capacity, 0, self.slots.groups * sizeof(uint64_t))
        key_ids_clear(&self.slots)
        self.pairs = self.last = 0
