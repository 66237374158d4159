"""Rows of vectors by atom index: `gather()`, in one loop that checks each index.

`rows()` and `mean_row()` are numpy's own answers to the last bit, sooner.
"""

import numpy as np

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

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
    """Return the rows of some atoms, or the first index that may not be had.

    Parameters
    ----------
    vectors
        float32 (n_atoms, 3), C-contiguous.
    requested
        bool (n_atoms,), C-contiguous: the atoms that may be had.
    indices
        int64 (n,), C-contiguous; negative ones count from the end.

    Returns
    -------
    ndarray or int
        float32 (n, 3), a copy; else the first index of an atom that is not there or not requested.
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
    """Return the first of some atoms, or of all, whose vector is nan or infinite; -1: there is none.

    Parameters
    ----------
    vectors
        float32 (n_atoms, 3), C-contiguous.
    indices
        int64 (n,), C-contiguous, from 0 to n_atoms - 1; None: all.
    """
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


cdef bint follow(const int64_t *indices, Py_ssize_t n) noexcept nogil:
    """Tell whether each of these is one more than the one before."""
    cdef int64_t differ = 0
    cdef Py_ssize_t i
    for i in range(n):
        differ |= indices[i] - indices[0] - i
    return differ == 0


cdef bint within(const int64_t *indices, Py_ssize_t n, Py_ssize_t n_atoms) noexcept nogil:
    """Tell whether all of these are from 0 to n_atoms - 1."""
    cdef bint outside = False
    cdef Py_ssize_t i
    for i in range(n):
        outside |= indices[i] < 0 or indices[i] >= n_atoms
    return not outside


cdef bint plain(vectors, indices):
    """Tell whether these are arrays as MDAnalysis has them for positions and atoms, which the loops here read."""
    if type(vectors) is not cnp.ndarray or type(indices) is not cnp.ndarray:
        return False
    cdef cnp.ndarray source = vectors, atom_indices = indices
    return (
        cnp.PyArray_ISCARRAY_RO(source) and cnp.PyArray_TYPE(source) == cnp.NPY_FLOAT32
        and source.ndim == 2 and source.shape[1] == 3
        and cnp.PyArray_ISCARRAY_RO(atom_indices) and cnp.PyArray_TYPE(atom_indices) == cnp.NPY_INT64
        and atom_indices.ndim == 1
    )


def rows(vectors, indices):
    """Return ``vectors[indices]``, a copy.

    Parameters
    ----------
    vectors
        Any array; it is soon done for float32 (n_atoms, 3), C-contiguous.
    indices
        Any index; it is soon done for int64 (n,), C-contiguous.
    """
    if not plain(vectors, indices):
        return vectors[indices]
    cdef cnp.ndarray source = vectors, atom_indices = indices
    cdef const float *read = <const float *>cnp.PyArray_DATA(source)
    cdef const int64_t *atoms = <const int64_t *>cnp.PyArray_DATA(atom_indices)
    cdef Py_ssize_t i, n = atom_indices.shape[0]
    if not n or not within(atoms, n, source.shape[0]):
        return vectors[indices]
    cdef cnp.npy_intp[2] shape = [n, 3]
    cdef cnp.ndarray rows = cnp.PyArray_EMPTY(2, shape, cnp.NPY_FLOAT32, 0)
    cdef float *target = <float *>cnp.PyArray_DATA(rows)
    with nogil:
        if follow(atoms, n):
            memcpy(target, read + 3 * atoms[0], 3 * n * sizeof(float))
        else:
            for i in range(n):
                memcpy(target + 3 * i, read + 3 * atoms[i], 3 * sizeof(float))
    return rows


def mean_row(vectors, indices):
    """Return ``vectors[indices].astype(float).mean(axis=0)`` where each index is one more than the one before.

    Numpy adds up such rows one after the other, and so does this.

    Parameters
    ----------
    vectors
        Any array; it is done for float32 (n_atoms, 3), C-contiguous.
    indices
        Any index; it is done for int64 (n,), C-contiguous.

    Returns
    -------
    ndarray or None
        float64 (3,); None where it is not done: other arrays, other indices, fewer than two rows.
    """
    if not plain(vectors, indices):
        return None
    cdef cnp.ndarray source = vectors, atom_indices = indices
    cdef const int64_t *atoms = <const int64_t *>cnp.PyArray_DATA(atom_indices)
    cdef Py_ssize_t i, n = atom_indices.shape[0]
    if n < 2 or not follow(atoms, n) or not within(atoms, n, source.shape[0]):
        return None
    cdef const float *row = <const float *>cnp.PyArray_DATA(source) + 3 * atoms[0]
    cdef double x = 0, y = 0, z = 0
    cdef cnp.npy_intp[1] shape = [3]
    cdef cnp.ndarray rows = cnp.PyArray_EMPTY(1, shape, cnp.NPY_FLOAT64, 0)
    cdef double *mean = <double *>cnp.PyArray_DATA(rows)
    with nogil:
        for i in range(n):
            x += row[3 * i]
            y += row[3 * i + 1]
            z += row[3 * i + 2]
        mean[0] = x / n
        mean[1] = y / n
        mean[2] = z / n
    return rows
