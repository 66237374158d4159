"""Finds patterns in bitmaps: intervals in which bits repeat with a period, and exceptions to them.

A `Finder` is fed a bitmap window by window and compares each word with what the interval so far predicts. Few
mismatches far from one another are exceptions; many that are close end the interval, and the period is sought anew from
the first of them on. It gives up when a description by bits would be smaller.
"""

import numpy as np

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

cdef extern from *:
    int __builtin_ctzll(unsigned long long) nogil

cdef enum:
    LONGEST = 4096                  # positions of a period at most: as many nodes can be told apart
    SAMPLE = 3 * LONGEST            # positions that are looked at for a period
    SAMPLE_WORDS = SAMPLE // 64 + 2
    CLOSE = LONGEST                 # mismatches no farther apart, or than four periods, belong together
    MANY = 16                       # as many that belong together are exceptions still
    PIECE = 512                     # words that are compared at a time
    SLACK = 64                      # intervals beside those that the positions so far allow

cdef enum Verdict:
    GOES_ON
    ENDS
    TOO_LARGE

MAX_PERIOD = LONGEST


cdef class Finder:
    """Describes a bitmap of `n_positions` bits in at most `budget` intervals, bits of periods, and exceptions."""

    cdef int64_t n_positions, budget, position
    cdef int64_t n_intervals, n_exceptions, n_bits, n_pending
    cdef int64_t pending[MANY + 1]
    cdef int64_t tile_start, tile_words
    cdef uint64_t tile[LONGEST + PIECE]
    cdef int64_t[::1] starts, periods, exceptions
    cdef uint8_t[::1] bits

    def __init__(self, int64_t n_positions, int64_t budget) -> None:
        self.n_positions = n_positions
        self.budget = budget
        self.starts = np.empty(budget, dtype=np.int64)
        self.periods = np.empty(budget, dtype=np.int64)
        self.exceptions = np.empty(budget, dtype=np.int64)
        self.bits = np.empty(budget, dtype=np.uint8)

    def feed(self, const uint64_t[::1] words, int64_t n_bits) -> bool:
        """Take in the next `n_bits` bits, a multiple of 64 except at the end; False: the description is too large."""
        cdef bint fits
        if n_bits > 64 * words.shape[0] or n_bits > self.n_positions - self.position or self.position & 63:
            raise ValueError(f"{n_bits} bits do not follow {self.position} of {self.n_positions}")
        with nogil:
            fits = n_bits == 0 or follow(self, &words[0], n_bits)
            self.position += n_bits
        return fits

    def found(self) -> tuple:
        """Return the description.

        Returns
        -------
        starts, periods : ndarray
            int64: first position and period of each interval, ascending; the first starts at 0.
        bits : ndarray
            uint8: the bits of one period from the interval's start on, of all intervals one after another.
        exceptions : ndarray
            int64, ascending: positions whose bit is another than the interval's.
        """
        return (np.array(self.starts[: self.n_intervals]), np.array(self.periods[: self.n_intervals]),
                np.array(self.bits[: self.n_bits]), np.array(self.exceptions[: self.n_exceptions]))


cdef bint follow(Finder self, const uint64_t *words, int64_t n_bits) noexcept nogil:
    """Compare a window with what its intervals predict."""
    cdef int64_t base = self.position, n_words = (n_bits + 63) >> 6, w = 0, n, i, t, start
    cdef uint64_t differ
    cdef Verdict verdict
    if self.n_intervals == 0 and not begin(self, words, base, base, base + n_bits):
        return False
    while w < n_words:
        # The tile is longer by a piece than its period, so that a piece lies in it in one run.
        t = ((base >> 6) + w - self.tile_start) % self.tile_words
        n = min(PIECE, n_words - w)
        if memcmp(words + w, self.tile + t, 8 * n) == 0:
            w += n
            continue
        start = w
        w += n
        for i in range(start, start + n):
            differ = words[i] ^ self.tile[t + i - start]
            differ &= inside(self, base + 64 * i, base + n_bits)
            verdict = mismatches(self, differ, base + 64 * i)
            if verdict == TOO_LARGE:
                return False
            if verdict == ENDS:
                if not begin(self, words, base, self.pending[0], base + n_bits):
                    return False
                w = (self.pending[0] - base) >> 6
                self.n_pending = 0
                break
    return make_exceptions(self)  # the next window does not show these bits again


cdef inline uint64_t inside(Finder self, int64_t position, int64_t end) noexcept nogil:
    """Return the bits of the word at `position` that are the current interval's, and before `end`."""
    cdef uint64_t bits = ~(<uint64_t>0)
    cdef int64_t before = self.starts[self.n_intervals - 1] - position, after = end - position
    if before > 0:
        bits &= bits << before if before < 64 else 0
    if after < 64:
        bits &= ~(<uint64_t>0) >> (64 - after)
    return bits


cdef Verdict mismatches(Finder self, uint64_t differ, int64_t position) noexcept nogil:
    """Note the mismatches of one word; if too many belong together, the interval ends before the first of them."""
    cdef int64_t close = max(<int64_t>CLOSE, 4 * self.periods[self.n_intervals - 1]), at
    while differ:
        at = position + __builtin_ctzll(differ)
        differ &= differ - 1
        if self.n_pending and at - self.pending[self.n_pending - 1] > close and not make_exceptions(self):
            return TOO_LARGE
        self.pending[self.n_pending] = at
        self.n_pending += 1
        if self.n_pending > MANY:
            return ENDS
    return GOES_ON


cdef bint make_exceptions(Finder self) noexcept nogil:
    """Make exceptions of the mismatches so far; return False if there are too many of them."""
    if self.n_exceptions + self.n_pending + self.n_bits + self.n_intervals > self.budget:
        return False
    memcpy(&self.exceptions[self.n_exceptions], self.pending, 8 * self.n_pending)
    self.n_exceptions += self.n_pending
    self.n_pending = 0
    return True


cdef bint begin(Finder self, const uint64_t *words, int64_t base, int64_t start, int64_t end) noexcept nogil:
    """Begin an interval at `start`, in a window of bits from `base` to `end`; return False if there are too many."""
    cdef uint64_t sample[SAMPLE_WORDS]
    cdef int64_t n = min(<int64_t>SAMPLE, end - start), period, i
    cut_out(words, start - base, n, sample)
    period = find_period(sample, n)
    if self.n_exceptions + self.n_bits + self.n_intervals + period + 1 > self.budget:
        return False
    if self.n_intervals > SLACK + self.budget * (<double>start / self.n_positions):
        return False
    self.starts[self.n_intervals] = start
    self.periods[self.n_intervals] = period
    self.n_intervals += 1
    for i in range(period):
        self.bits[self.n_bits + i] = sample[i >> 6] >> (i & 63) & 1
    make_tile(self, start, period, &self.bits[self.n_bits])
    self.n_bits += period
    return True


cdef void cut_out(const uint64_t *words, int64_t first, int64_t n, uint64_t *sample) noexcept nogil:
    """Copy `n` bits from bit `first` on; zeros follow them."""
    cdef int64_t i, word = first >> 6, n_words = (n + 63) >> 6, last = (first + n - 1) >> 6
    cdef int shift = first & 63
    for i in range(n_words):
        sample[i] = words[word + i] >> shift
        if shift and word + i < last:
            sample[i] |= words[word + i + 1] << (64 - shift)
    if n & 63:
        sample[n_words - 1] &= ~(<uint64_t>0) >> (64 - (n & 63))
    sample[n_words] = 0


cdef int64_t find_period(const uint64_t *sample, int64_t n) noexcept nogil:
    """Return the period that explains most of `n` bits from the first on; 1 if none shows itself twice.

    A period leads from the first set bit to another set bit, which leaves few to try.
    """
    cdef int64_t run = repeated(sample, n, 1), best = 1, length = run, first = -1, i, period, found
    cdef uint64_t word
    if run == n:
        return 1
    for i in range((n + 63) >> 6):
        word = sample[i]
        while word:
            period = 64 * i + __builtin_ctzll(word)
            word &= word - 1
            if first < 0:
                first = period
                continue
            period -= first
            if period > LONGEST or 2 * period > n:
                return best
            found = repeated(sample, n, period)
            if found > length and found >= 2 * period and found >= 64:
                best = period
                length = found
                if found == n:
                    return best
    return best


cdef int64_t repeated(const uint64_t *sample, int64_t n, int64_t period) noexcept nogil:
    """Return how many bits from the first on repeat with `period`."""
    cdef int64_t i, n_compared = n - period, word = period >> 6
    cdef int shift = period & 63
    cdef uint64_t differ
    for i in range((n_compared + 63) >> 6):
        differ = sample[word + i] >> shift
        if shift:
            differ |= sample[word + i + 1] << (64 - shift)
        differ ^= sample[i]
        if differ:
            return min(n, period + 64 * i + __builtin_ctzll(differ))
    return n


cdef void make_tile(Finder self, int64_t start, int64_t period, const uint8_t *bits) noexcept nogil:
    """Write the words that repeat: from the word of `start` on, and backwards within it."""
    cdef int64_t n, w, b, r
    cdef uint64_t word
    self.tile_start = start >> 6
    n = 64
    while n % period:
        n += 64
    self.tile_words = n >> 6
    r = (period - (start & 63) % period) % period
    for w in range(self.tile_words):
        word = 0
        for b in range(64):
            word |= <uint64_t>bits[r] << b
            r += 1
            if r == period:
                r = 0
        self.tile[w] = word
    for w in range(PIECE):
        self.tile[self.tile_words + w] = self.tile[w]
