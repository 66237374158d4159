"""Rows by key: `group_rows()` numbers the keys, `merge_rows()` puts each key's rows in the order of frames, too."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

import numpy as np


cdef extern from "key_ids.h" nogil:
    struct key_ids:
        size_t groups
        int64_t *keys
    bint key_ids_begin(key_ids *table, size_t width)
    void key_ids_end(key_ids *table)
    bint key_ids_number(key_ids *table, const int64_t *rows, size_t n, uint32_t *ids)

cdef extern from "sort.h" nogil:
    const uint64_t *sort_items(uint64_t *items, uint64_t *spare, size_t n)


def group_rows(const int64_t[:, ::1] keys):
    """Number the different rows of `keys` (n, k) by first appearance.

    Return the number of each row, uint32 (n,), and the different rows, int64 (groups, k).
    """
    ids_out = np.empty(keys.shape[0], dtype=np.uint32)
    return ids_out, numbered([keys], ids_out)


cdef numbered(list keys, uint32_t[::1] ids):
    """Number the rows of all `keys` (n, k), one behind the other; return the different rows."""
    cdef const int64_t[:, ::1] rows = keys[0]
    cdef key_ids table
    cdef Py_ssize_t width = rows.shape[1], row = 0
    cdef bint enough = key_ids_begin(&table, width)
    for rows in keys:
        if enough and rows.shape[0]:
            with nogil:
                enough = key_ids_number(&table, &rows[0, 0], rows.shape[0], &ids[row])
        row += rows.shape[0]
    if not enough:
        key_ids_end(&table)
        raise MemoryError
    out = np.empty((table.groups, width), dtype=np.int64)
    cdef int64_t[:, ::1] groups = out
    if table.groups:
        memcpy(&groups[0, 0], table.keys, table.groups * width * sizeof(int64_t))
    key_ids_end(&table)
    return out


def merge_rows(list keys, list at, list places, list carried):
    """Group the rows of several ranks by key, those of a key by frame, and those of one frame as they came.

    Of each rank there are the rows' `keys`, int64 (n, k), their frames `at`, uint32 (n,), what they carry along, uint32
    (n,), and the `places` of its frames among those of all ranks, uint32. Return the different keys in the order of
    first appearance, int64 (groups, k), the bounds of their rows, int64 (groups + 1,), and in that order the places of
    the frames and what is carried, uint32 (n,).
    """
    cdef Py_ssize_t n = sum(map(len, at)), groups, i, j, row = 0
    ids_out = np.empty(n, dtype=np.uint32)
    keys_out = numbered(keys, ids_out)
    groups = len(keys_out)
    bounds_out = np.zeros(groups + 1, dtype=np.int64)
    at_out, carried_out = np.empty(n, dtype=np.uint32), np.empty(n, dtype=np.uint32)
    cdef uint32_t[::1] ids = ids_out, ordered = at_out, moved = carried_out
    cdef int64_t[::1] bounds = bounds_out
    cdef const uint32_t[::1] frames, place, parts
    cdef const uint64_t *items_sorted
    # A row on its way: its frame above, what it carries below.
    cdef uint64_t *items = <uint64_t *>malloc((2 * n + 1) * sizeof(uint64_t))
    cdef int64_t *cursor = <int64_t *>malloc((groups + 1) * sizeof(int64_t))
    if items == NULL or cursor == NULL:
        free(items)
        free(cursor)
        raise MemoryError
    with nogil:
        for i in range(n):
            bounds[ids[i] + 1] += 1
        for i in range(groups):
            cursor[i] = bounds[i]
            bounds[i + 1] += bounds[i]
    for frames, place, parts in zip(at, places, carried, strict=True):
        with nogil:
            for i in range(frames.shape[0]):
                items[cursor[ids[row + i]]] = <uint64_t>place[frames[i]] << 32 | parts[i]
                cursor[ids[row + i]] += 1
        row += frames.shape[0]
    with nogil:
        for i in range(groups):
            row = bounds[i]
            items_sorted = sort_items(items + row, items + n, bounds[i + 1] - row)
            for j in range(bounds[i + 1] - row):
                ordered[row + j] = <uint32_t>(items_sorted[j] >> 32)
                moved[row + j] = <uint32_t>items_sorted[j]
    free(items)
    free(cursor)
    return keys_out, bounds_out, at_out, carried_out
