"""Rows of vectors by atom index: `gather()`, in one loop that checks each index; `first_lost()`, `mean_row()`.

Vectors are float32 (n_atoms, 3), indices int64 (n,), both C-contiguous.
"""

import numpy as np

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t

cnp.import_array()


cdef const float *floats(cnp.ndarray vectors, Py_ssize_t n_atoms) except NULL:
    if not (cnp.PyArray_ISCARRAY_RO(vectors) and cnp.PyArray_TYPE(vectors) == cnp.NPY_FLOAT32 and vectors.ndim == 2
            and vectors.shape[0] == n_atoms and vectors.shape[1] == 3):
        raise ValueError(f"vectors must be a C-contiguous float32 array of shape ({n_atoms}, 3)")
    return <const float *>cnp.PyArray_DATA(vectors)


cdef const int64_t *integers(cnp.ndarray indices) except NULL:
    if not (cnp.PyArray_ISCARRAY_RO(indices) and cnp.PyArray_TYPE(indices) == cnp.NPY_INT64 and indices.ndim == 1):
        raise ValueError("indices must be a C-contiguous int64 array of one dimension")
    return <const int64_t *>cnp.PyArray_DATA(indices)


def gather(cnp.ndarray vectors not None, cnp.ndarray requested not None, cnp.ndarray indices not None):
    """Return a copy of the rows of some atoms, or else the first index that is missing or not requested, an int.

    Negative indices count from the end; `requested` is bool (n_atoms,), C-contiguous.
    """
    cdef Py_ssize_t n_atoms = requested.shape[0]
    cdef const float *source = floats(vectors, n_atoms)
    cdef const int64_t *atom_indices = integers(indices)
    cdef const uint8_t *allowed = <const uint8_t *>cnp.PyArray_DATA(requested)
    cdef cnp.npy_intp[2] shape
    cdef cnp.ndarray rows
    cdef float *target
    cdef const float *row
    cdef int64_t atom
    cdef Py_ssize_t i, n = indices.shape[0]
    cdef bint refused = False
    if not (cnp.PyArray_ISCARRAY_RO(requested) and cnp.PyArray_TYPE(requested) == cnp.NPY_BOOL and requested.ndim == 1):
        raise ValueError("requested must be a C-contiguous bool array of one dimension")
    shape[0] = n
    shape[1] = 3
    rows = cnp.PyArray_EMPTY(2, shape, cnp.NPY_FLOAT32, 0)
    target = <float *>cnp.PyArray_DATA(rows)
    with nogil:
        for i in range(n):
            atom = atom_indices[i]
            if atom < 0:
                atom += n_atoms
            if atom < 0 or atom >= n_atoms or not allowed[atom]:
                refused = True
                break
            row = source + 3 * atom
            target[3 * i] = row[0]
            target[3 * i + 1] = row[1]
            target[3 * i + 2] = row[2]
    return atom_indices[i] if refused else rows


def first_lost(cnp.ndarray vectors not None, indices):
    """Return the first of these atoms, from 0 to n_atoms - 1 (None: of all), with a nan or infinite vector; else -1."""
    cdef Py_ssize_t n_atoms = vectors.shape[0]
    cdef const float *read = floats(vectors, n_atoms)
    cdef const int64_t *atom_indices = NULL if indices is None else integers(indices)
    cdef Py_ssize_t i, n = n_atoms if indices is None else len(indices)
    cdef const float *row
    cdef float differences = 0
    with nogil:
        for i in range(n):
            row = read + 3 * (i if atom_indices == NULL else atom_indices[i])
            differences += (row[0] - row[0]) + (row[1] - row[1]) + (row[2] - row[2])
    if differences == 0:
        return -1
    rows = vectors if indices is None else vectors[indices]
    place = int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
    return place if indices is None else int(indices[place])


def mean_row(vectors, indices):
    """Return ``vectors[indices].astype(float).mean(axis=0)`` if each index is one more than the one before, else None.

    Numpy adds up such rows one after the other, and so does this, to the last bit. None for a single row, too.
    """
    cdef const float *row
    cdef const int64_t *atoms
    cdef int64_t differences = 0
    cdef Py_ssize_t i, n
    try:
        n, row, atoms = len(indices), floats(vectors, len(vectors)), integers(indices)
    except (TypeError, ValueError):
        return None
    for i in range(n):
        differences |= atoms[i] - atoms[0] - i
    if n < 2 or differences or atoms[0] < 0 or atoms[n - 1] >= len(vectors):
        return None
    cdef double x = 0, y = 0, z = 0
    row += 3 * atoms[0]
    with nogil:
        for i in range(n):
            x += row[3 * i]
            y += row[3 * i + 1]
            z += row[3 * i + 2]
    return np.array([x / n, y / n, z / n])
