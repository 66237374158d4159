"""Columns by shard, without comparisons: where rows belong, and columns moved accordingly.

`shard_pairs()` does it all for the pairs of a chunk. For others, `shard_rows()` says where rows belong.
`join_shards()` puts the same shards of many blocks behind one another. All are stable.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

import numpy as np


cdef extern from "shards.h" nogil:
    struct shards_columns:
        int64_t *keys
        uint32_t *at
        uint8_t *values
    uint16_t shards_of(const int64_t *key, size_t width, uint32_t shards)
    void shards_count(
        const int64_t *keys, size_t n, size_t width, uint32_t shards, uint16_t *shard, uint32_t *counts
    )
    void shards_place(
        const int64_t *keys, const uint8_t *values, size_t n, uint32_t row, size_t width, size_t size,
        const uint16_t *shard, uint32_t *cursor, shards_columns to
    )


def shard_pairs(
    const int64_t[:, ::1] keys, const int64_t[::1] counts, const int64_t[::1] rows, const uint8_t[::1] values,
    uint32_t shards, uint8_t[::1] target,
):
    """Order pairs by shard, those of a shard as they come; return the bounds of shards, int64 (shards + 1,).

    `keys` are int64 (n, k). `counts` and `rows`, int64 (frames,), say how many pairs a frame has, and its row in the
    table of frames. `values` has as many bytes a pair as there are, or none. `target` is room for the columns: keys
    (n, k), frames uint32 (n,), values.
    """
    cdef Py_ssize_t n = keys.shape[0], width = keys.shape[1], i, frame
    cdef size_t size = values.shape[0] // n, row = 0
    bounds_out = np.zeros(shards + 1, dtype=np.int64)
    cdef int64_t[::1] bounds = bounds_out
    cdef shards_columns to
    cdef const uint8_t *first = &values[0] if size else <const uint8_t *>&keys[0, 0]
    cdef uint16_t *shard = <uint16_t *>malloc(n * sizeof(uint16_t))
    cdef uint32_t *cursor = <uint32_t *>calloc(shards, sizeof(uint32_t))
    if shard == NULL or cursor == NULL:
        free(shard)
        free(cursor)
        raise MemoryError
    with nogil:
        to.keys = <int64_t *>&target[0]
        to.at = <uint32_t *>(to.keys + n * width)
        to.values = <uint8_t *>(to.at + n)
        shards_count(&keys[0, 0], n, width, shards, shard, cursor)
        for i in range(shards):
            bounds[i + 1] = bounds[i] + cursor[i]
            cursor[i] = <uint32_t>bounds[i]
        for frame in range(counts.shape[0]):
            shards_place(
                &keys[row, 0], first + row * size, counts[frame], <uint32_t>rows[frame], width, size, shard + row,
                cursor, to,
            )
            row += counts[frame]
    free(shard)
    free(cursor)
    return bounds_out


def shard_rows(const int64_t[:, ::1] keys, uint32_t shards):
    """Return uint16 (n,), the shard of each row of `keys` (n, k); it depends on nothing but the row."""
    cdef Py_ssize_t n = keys.shape[0], width = keys.shape[1], i
    out = np.empty(n, dtype=np.uint16)
    cdef uint16_t[::1] shard = out
    with nogil:
        for i in range(n):
            shard[i] = shards_of(&keys[i, 0], width, shards)
    return out


def join_shards(const uint64_t[::1] addresses, const int64_t[:, ::1] bounds, Py_ssize_t size, uint8_t[::1] target):
    """Put the shards of many columns behind one another: shard by shard, in each the columns in their order.

    Columns begin at `addresses`, uint64 (m,), in memory that the caller holds; shard j of column i is its rows
    ``bounds[i, j]:bounds[i, j + 1]``, of `size` bytes each. `target` has room for all.
    """
    cdef Py_ssize_t m = bounds.shape[0], shards = bounds.shape[1] - 1, i, j
    cdef size_t at = 0, length
    if target.shape[0] == 0:
        return
    with nogil:
        for j in range(shards):
            for i in range(m):
                length = (bounds[i, j + 1] - bounds[i, j]) * size
                memcpy(&target[at], <const uint8_t *><size_t>addresses[i] + bounds[i, j] * size, length)
                at += length
