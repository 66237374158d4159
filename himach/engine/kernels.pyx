"""Columns in order without comparisons: rows by shard, rows by key, and columns moved accordingly.

`shard_rows()` and `group_rows()` say where rows belong, `count_places()` turns that into places by a counting sort,
`scatter()` moves a column there and `join()` puts slices of many blocks behind one another. All are stable.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

import numpy as np


cdef inline uint64_t mix(uint64_t x) noexcept nogil:
    # The finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
    x = (x ^ (x >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * <uint64_t>0x94D049BB133111EB
    return x ^ (x >> 31)


cdef inline uint64_t hash_row(const int64_t *row, Py_ssize_t width) noexcept nogil:
    cdef uint64_t h = <uint64_t>width * <uint64_t>0x9E3779B97F4A7C15
    cdef Py_ssize_t i
    for i in range(width):
        h = mix(h + <uint64_t>row[i] + <uint64_t>0x9E3779B97F4A7C15)
    return h


def shard_rows(const int64_t[:, ::1] keys, uint32_t shards):
    """Return uint16 (n,), the shard of each row of `keys` (n, k); it depends on nothing but the row."""
    cdef Py_ssize_t n = keys.shape[0], width = keys.shape[1], i
    out = np.empty(n, dtype=np.uint16)
    cdef uint16_t[::1] shard = out
    with nogil:
        for i in range(n):
            # The high bits choose the shard, group_rows() uses the low ones.
            shard[i] = <uint16_t>(((hash_row(&keys[i, 0], width) >> 32) * shards) >> 32)
    return out


def count_places(ids, Py_ssize_t groups):
    """Return (places, bounds) of a stable counting sort of `ids` (uint16 or uint32, all below `groups`).

    Row i belongs at ``places[i]`` (uint32), and group g fills the rows ``bounds[g]:bounds[g + 1]`` (int64).
    """
    cdef Py_ssize_t n = ids.shape[0]
    places = np.empty(n, dtype=np.uint32)
    bounds = np.zeros(groups + 1, dtype=np.int64)
    if ids.dtype == np.uint16:
        _count[uint16_t](ids, places, bounds)
    else:
        _count[uint32_t](ids, places, bounds)
    return places, bounds


ctypedef fused group_id:
    uint16_t
    uint32_t


cdef int _count(const group_id[::1] ids, uint32_t[::1] places, int64_t[::1] bounds) except -1:
    cdef Py_ssize_t n = ids.shape[0], groups = bounds.shape[0] - 1, i
    cdef uint32_t *cursor = <uint32_t *>calloc(groups + 1, sizeof(uint32_t))
    if cursor == NULL:
        raise MemoryError
    with nogil:
        for i in range(n):
            cursor[ids[i] + 1] += 1
        for i in range(groups):
            cursor[i + 1] += cursor[i]
            bounds[i + 1] = cursor[i + 1]
        for i in range(n):
            places[i] = cursor[ids[i]]
            cursor[ids[i]] += 1
    free(cursor)
    return 0


def group_rows(const int64_t[:, ::1] keys):
    """Number the different rows of `keys` (n, k) in the order of their first appearance.

    Returns
    -------
    ids
        uint32 (n,), the number of each row.
    first
        int64 (groups,), where each group appears first.
    """
    cdef Py_ssize_t n = keys.shape[0], width = keys.shape[1], i
    cdef uint64_t size = 64, mask, slot
    cdef uint32_t groups = 0, known, g
    ids_out = np.empty(n, dtype=np.uint32)
    cdef uint32_t[::1] ids = ids_out
    cdef uint32_t *table = <uint32_t *>calloc(size, sizeof(uint32_t))
    cdef uint32_t *larger
    cdef int64_t *first = <int64_t *>malloc((n + 1) * sizeof(int64_t))
    cdef bint failed = table == NULL or first == NULL
    mask = size - 1
    with nogil:
        for i in range(n):
            if failed:
                break
            slot = hash_row(&keys[i, 0], width) & mask
            while True:
                known = table[slot]
                if known == 0:
                    first[groups] = i
                    ids[i] = groups
                    groups += 1
                    table[slot] = groups
                    if <uint64_t>groups * 2 > size:
                        size *= 4
                        mask = size - 1
                        larger = <uint32_t *>calloc(size, sizeof(uint32_t))
                        failed = larger == NULL
                        if failed:
                            break
                        for g in range(groups):
                            slot = hash_row(&keys[first[g], 0], width) & mask
                            while larger[slot]:
                                slot = (slot + 1) & mask
                            larger[slot] = g + 1
                        free(table)
                        table = larger
                    break
                if same(&keys[first[known - 1], 0], &keys[i, 0], width):
                    ids[i] = known - 1
                    break
                slot = (slot + 1) & mask
    free(table)
    if failed:
        free(first)
        raise MemoryError
    first_out = np.empty(groups, dtype=np.int64)
    cdef int64_t[::1] copied = first_out
    for i in range(groups):
        copied[i] = first[i]
    free(first)
    return ids_out, first_out


cdef inline bint same(const int64_t *a, const int64_t *b, Py_ssize_t width) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(width):
        if a[i] != b[i]:
            return False
    return True


def scatter(const uint8_t[::1] source, const uint32_t[::1] places, uint8_t[::1] target):
    """Move row i of `source` to row ``places[i]`` of `target`; both are columns seen as bytes."""
    cdef Py_ssize_t n = places.shape[0], i, size
    if n == 0 or source.shape[0] == 0:
        return
    size = source.shape[0] // n
    cdef const uint8_t *src = &source[0]
    cdef uint8_t *dst = &target[0]
    with nogil:
        if size == 8:
            for i in range(n):
                (<uint64_t *>dst)[places[i]] = (<const uint64_t *>src)[i]
        elif size == 4:
            for i in range(n):
                (<uint32_t *>dst)[places[i]] = (<const uint32_t *>src)[i]
        else:
            for i in range(n):
                memcpy(dst + places[i] * <size_t>size, src + i * size, size)


def join(const uint64_t[::1] addresses, const int64_t[::1] starts, const int64_t[::1] stops, uint8_t[::1] target):
    """Put rows of many columns behind one another.

    Parameters
    ----------
    addresses
        uint64 (m,): where each column begins in memory; its owner must hold it.
    starts, stops
        int64 (m,): from which byte to which to copy of each.
    target
        uint8, as many bytes as that is in all.
    """
    cdef Py_ssize_t i, at = 0
    if target.shape[0] == 0:
        return
    with nogil:
        for i in range(addresses.shape[0]):
            memcpy(&target[at], <const uint8_t *><size_t>addresses[i] + starts[i], stops[i] - starts[i])
            at += stops[i] - starts[i]


def order_places(const uint32_t[::1] rows, uint32_t limit):
    """Return uint32 (n,): the places of a stable sort of `rows`, all below `limit` (radix sort, 11 bits at a time)."""
    cdef Py_ssize_t n = rows.shape[0], i
    cdef uint32_t shift = 0, total, count, bucket
    cdef uint32_t[2048] cursor
    places = np.empty(n, dtype=np.uint32)
    order, spare = np.arange(n, dtype=np.uint32), np.empty(n, dtype=np.uint32)
    cdef uint32_t[::1] source = order, target = spare, swap, out = places
    with nogil:
        while shift < 32 and (limit - 1) >> shift:
            for bucket in range(2048):
                cursor[bucket] = 0
            for i in range(n):
                cursor[(rows[i] >> shift) & 2047] += 1
            total = 0
            for bucket in range(2048):
                count = cursor[bucket]
                cursor[bucket] = total
                total += count
            for i in range(n):
                bucket = (rows[source[i]] >> shift) & 2047
                target[cursor[bucket]] = source[i]
                cursor[bucket] += 1
            swap = source
            source = target
            target = swap
            shift += 11
        for i in range(n):
            out[source[i]] = <uint32_t>i
    return places
