"""Reads the portable serialization of roaring bitmaps straight into bitmap words.

The format (https://github.com/RoaringBitmap/RoaringFormatSpec) stores values in containers of 65,536 by their upper
bits: sorted arrays, bitsets or runs. `mark()` takes a whole serialization and sets the bits of those frames that are in
range of frames, without a Python object per frame. Every read is checked against the end of the data.
"""

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

__all__ = ["mark"]

cdef enum:
    COOKIE = 12346       # no run containers; the number of containers follows
    COOKIE_RUNS = 12347  # with run containers; the number of containers less one is in the upper half
    NO_OFFSETS = 4       # fewer containers than this carry no offsets if there are runs
    ARRAY_MAX = 4096     # larger containers are bitsets of 1,024 words
    BITSET_BYTES = 8192

cdef struct Cursor:
    const unsigned char *at
    const unsigned char *end

cdef struct Target:
    uint64_t *words
    int64_t n_bits
    int64_t start
    int64_t step


def mark(uint64_t[::1] words, int64_t n_bits, int64_t start, int64_t step, const unsigned char[::1] data,
         bint wide) -> None:
    """Set bit p for every p below `n_bits` whose frame ``start + p * step`` is in a serialized roaring bitmap.

    Parameters
    ----------
    words
        uint64 (n,): bit b of word w is position 64 w + b; set bits stay.
    n_bits
        Positions, at most ``64 n``.
    start, step
        Frame number of position 0, and what the next one's is greater by (negative: less).
    data
        What ``BitMap.serialize()`` or, if `wide`, ``BitMap64.serialize()`` returned.

    Raises
    ------
    ValueError
        If `data` is no such serialization: cut short, too long, or not in order.
    """
    cdef Cursor cursor
    cdef Target target
    cdef uint64_t buckets = 1, i, high = 0
    cdef int64_t last = -1
    cdef int status = 0
    if n_bits > 64 * words.shape[0]:
        raise ValueError(f"{n_bits} positions do not fit into {words.shape[0]} words")
    if step == 0:
        raise ValueError("step must not be 0")
    if n_bits <= 0:
        return
    if data.shape[0] == 0:
        raise ValueError("not a roaring bitmap: no data")
    cursor.at = &data[0]
    cursor.end = cursor.at + data.shape[0]
    target.words = &words[0]
    target.n_bits = n_bits
    target.start = start
    target.step = step
    with nogil:
        if wide:
            status = take(&cursor, &buckets, 8)
        i = 0
        while status == 0 and i < buckets:
            if wide:
                high = 0
                status = take(&cursor, &high, 4)
                if status == 0 and (<int64_t>high <= last or high >> 30):
                    status = -1
                last = high
            if status == 0:
                status = read_bitmap(&cursor, high << 32, &target)
            i += 1
        if status == 0 and cursor.at != cursor.end:
            status = -1
    if status:
        raise ValueError(f"not a roaring bitmap: damaged at byte {cursor.at - &data[0]} of {data.shape[0]}")


cdef inline int take(Cursor *cursor, void *value, size_t n) noexcept nogil:
    """Move `n` little-endian bytes to `value`, or return -1 at the end of the data."""
    if <size_t>(cursor.end - cursor.at) < n:
        return -1
    memcpy(value, cursor.at, n)
    cursor.at += n
    return 0


cdef int read_bitmap(Cursor *cursor, int64_t base, Target *target) noexcept nogil:
    """Read one 32-bit bitmap whose values are greater by `base` than written."""
    cdef uint32_t cookie = 0, n = 0, i
    cdef uint16_t key = 0, less_one = 0
    cdef int64_t last = -1
    cdef const unsigned char *run_flags = NULL
    cdef const unsigned char *headers
    cdef size_t size
    if take(cursor, &cookie, 4):
        return -1
    if cookie & 0xFFFF == COOKIE_RUNS:
        n = (cookie >> 16) + 1
        run_flags = cursor.at
        size = (n + 7) // 8
        if <size_t>(cursor.end - cursor.at) < size:
            return -1
        cursor.at += size
    elif cookie == COOKIE:
        if take(cursor, &n, 4) or n > 65536:
            return -1
    else:
        return -1
    headers = cursor.at
    size = 4 * <size_t>n
    if run_flags == NULL or n >= NO_OFFSETS:
        size += 4 * <size_t>n  # offsets are for those who skip; containers follow one another without gaps
    if <size_t>(cursor.end - cursor.at) < size:
        return -1
    cursor.at += size
    for i in range(n):
        memcpy(&key, headers + 4 * i, 2)
        memcpy(&less_one, headers + 4 * i + 2, 2)
        if key <= last:
            return -1
        last = key
        if run_flags != NULL and run_flags[i >> 3] >> (i & 7) & 1:
            if read_runs(cursor, base + (<int64_t>key << 16), target):
                return -1
        elif less_one < ARRAY_MAX:
            if read_array(cursor, less_one + 1, base + (<int64_t>key << 16), target):
                return -1
        elif read_bitset(cursor, base + (<int64_t>key << 16), target):
            return -1
    return 0


cdef int read_array(Cursor *cursor, int n, int64_t base, Target *target) noexcept nogil:
    """Read a container of `n` ascending values."""
    cdef uint64_t bits[1024]
    cdef const unsigned char *at = cursor.at
    cdef uint16_t value = 0
    cdef int last = -1, i
    cdef int64_t position
    if cursor.end - cursor.at < 2 * n:
        return -1
    cursor.at += 2 * n
    if target.step != 1:
        memset(bits, 0, BITSET_BYTES)
    for i in range(n):
        memcpy(&value, at + 2 * i, 2)
        if value <= last:
            return -1
        last = value
        if target.step == 1:
            position = base + value - target.start
            if 0 <= position < target.n_bits:
                target.words[position >> 6] |= <uint64_t>1 << (position & 63)
        else:
            bits[value >> 6] |= <uint64_t>1 << (value & 63)
    if target.step != 1:
        mark_strided(bits, base, target)
    return 0


cdef int read_runs(Cursor *cursor, int64_t base, Target *target) noexcept nogil:
    """Read a container of runs: first value and length less one, ascending and apart."""
    cdef uint64_t bits[1024]
    cdef uint16_t n = 0, first = 0, length = 0
    cdef int last = -1, _, value
    if take(cursor, &n, 2):
        return -1
    memset(bits, 0, BITSET_BYTES)
    for _ in range(n):
        if take(cursor, &first, 2) or take(cursor, &length, 2):
            return -1
        if first <= last or <int>first + length > 65535:
            return -1
        last = <int>first + length
        value = first
        while value <= last:
            if value & 63 == 0 and value + 63 <= last:
                bits[value >> 6] = ~(<uint64_t>0)
                value += 64
            else:
                bits[value >> 6] |= <uint64_t>1 << (value & 63)
                value += 1
    mark_bits(bits, base, target)
    return 0


cdef int read_bitset(Cursor *cursor, int64_t base, Target *target) noexcept nogil:
    """Read a container of 65,536 bits."""
    cdef uint64_t bits[1024]
    if take(cursor, bits, BITSET_BYTES):
        return -1
    mark_bits(bits, base, target)
    return 0


cdef inline void mark_bits(const uint64_t *bits, int64_t base, Target *target) noexcept nogil:
    if target.step == 1:
        mark_shifted(bits, base - target.start, target)
    else:
        mark_strided(bits, base, target)


cdef void mark_shifted(const uint64_t *bits, int64_t position, Target *target) noexcept nogil:
    """Set the container's bits from `position` (maybe negative) on, those inside the target."""
    cdef int64_t n_words = (target.n_bits + 63) >> 6
    cdef int64_t w = position >> 6  # rounds down, also below 0
    cdef int shift = position & 63
    cdef int64_t i, first = max(0, -w), end = min(1024, n_words - w)
    if shift == 0:
        for i in range(first, end):
            target.words[w + i] |= bits[i]
    else:
        for i in range(max(0, -w - 1), min(1024, n_words - w)):
            if w + i >= 0:
                target.words[w + i] |= bits[i] << shift
            if w + i + 1 < n_words:
                target.words[w + i + 1] |= bits[i] >> (64 - shift)
    if target.n_bits & 63:
        target.words[n_words - 1] &= ~(<uint64_t>0) >> (64 - (target.n_bits & 63))


cdef void mark_strided(const uint64_t *bits, int64_t base, Target *target) noexcept nogil:
    """Look up in the container every frame of the selection that falls into it."""
    cdef int64_t step = target.step, p, end, value
    if step > 0:
        p = ceiling(base - target.start, step)
        end = ceiling(base + 65536 - target.start, step)
    else:
        p = ceiling(target.start - base - 65535, -step)
        end = ceiling(target.start - base + 1, -step)
    p = max(p, 0)
    end = min(end, target.n_bits)
    value = target.start + p * step - base
    while p < end:
        target.words[p >> 6] |= (bits[value >> 6] >> (value & 63) & 1) << (p & 63)
        value += step
        p += 1


cdef inline int64_t ceiling(int64_t a, int64_t b) noexcept nogil:
    """Return a / b rounded up, for b > 0 (C division rounds towards 0)."""
    return a // b + (1 if a % b > 0 else 0)
