"""Rows by key: `group_rows()` numbers the keys, `order_rows()` puts each key's rows in the order of frames.

`gather()` and `picked()` then move columns there.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

import numpy as np


cdef extern from "rows.h" nogil:
    uint64_t rows_hash(const int64_t *row, size_t width)
    bint rows_same(const int64_t *a, const int64_t *b, size_t width)
    void rows_sort64(uint64_t *items, uint64_t *spare, size_t n)


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
            slot = rows_hash(&keys[i, 0], width) & mask
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
                            slot = rows_hash(&keys[first[g], 0], width) & mask
                            while larger[slot]:
                                slot = (slot + 1) & mask
                            larger[slot] = g + 1
                        free(table)
                        table = larger
                    break
                if rows_same(&keys[first[known - 1], 0], &keys[i, 0], width):
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


def order_rows(const uint32_t[::1] ids, const uint32_t[::1] at, Py_ssize_t groups):
    """Order rows by group, those of a group by `at`, and those of one frame as they came.

    Parameters
    ----------
    ids
        uint32 (n,), each row's group, below `groups`.
    at
        uint32 (n,), each row's frame.

    Returns
    -------
    bounds
        int64 (groups + 1,): group g is the rows ``bounds[g]:bounds[g + 1]``.
    at
        uint32 (n,), in that order.
    rows
        uint32 (n,): which row comes there.
    """
    cdef Py_ssize_t n = ids.shape[0], i, start
    bounds_out = np.zeros(groups + 1, dtype=np.int64)
    at_out, rows_out = np.empty(n, dtype=np.uint32), np.empty(n, dtype=np.uint32)
    cdef int64_t[::1] bounds = bounds_out
    cdef uint32_t[::1] ordered = at_out, rows = rows_out
    cdef int64_t *cursor = <int64_t *>calloc(groups + 1, sizeof(int64_t))
    cdef uint64_t *items = <uint64_t *>malloc((n + 1) * sizeof(uint64_t))
    cdef uint64_t *spare = <uint64_t *>malloc((n + 1) * sizeof(uint64_t))
    if cursor == NULL or items == NULL or spare == NULL:
        free(cursor)
        free(items)
        free(spare)
        raise MemoryError
    with nogil:
        for i in range(n):
            bounds[ids[i] + 1] += 1
        for i in range(groups):
            cursor[i] = bounds[i]
            bounds[i + 1] += bounds[i]
        for i in range(n):
            items[cursor[ids[i]]] = (<uint64_t>at[i] << 32) | <uint64_t>i
            cursor[ids[i]] += 1
        for i in range(groups):
            start = bounds[i]
            rows_sort64(items + start, spare, bounds[i + 1] - start)
        for i in range(n):
            ordered[i] = <uint32_t>(items[i] >> 32)
            rows[i] = <uint32_t>items[i]
    free(cursor)
    free(items)
    free(spare)
    return bounds_out, at_out, rows_out


ctypedef fused number:
    int64_t
    double


def picked(const number[::1] column, const uint32_t[::1] rows):
    """Return ``column[rows]``, int64 or float64 (n,)."""
    cdef Py_ssize_t n = rows.shape[0], i
    out = np.empty(n, dtype=np.int64 if number is int64_t else np.float64)
    cdef number[::1] target = out
    with nogil:
        for i in range(n):
            target[i] = column[rows[i]]
    return out


def gather(const uint8_t[::1] source, const uint32_t[::1] rows, uint8_t[::1] target, Py_ssize_t size):
    """Copy row ``rows[i]`` of `source` to row i of `target`; both are columns of `size` bytes a row, seen as bytes."""
    cdef Py_ssize_t n = rows.shape[0], i
    if n == 0 or size == 0:
        return
    cdef const uint8_t *src = &source[0]
    cdef uint8_t *dst = &target[0]
    with nogil:
        if size == 8:
            for i in range(n):
                (<uint64_t *>dst)[i] = (<const uint64_t *>src)[rows[i]]
        elif size == 4:
            for i in range(n):
                (<uint32_t *>dst)[i] = (<const uint32_t *>src)[rows[i]]
        else:
            for i in range(n):
                memcpy(dst + i * size, src + rows[i] * <size_t>size, size)
