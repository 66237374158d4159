"""Rows of vectors to their places, in one loop that checks each: `own()` and `scatter()`."""

cimport numpy as cnp
from libc.stdint cimport uint32_t

cnp.import_array()


cdef const uint32_t *numbers(cnp.ndarray ids) except NULL:
    if not (cnp.PyArray_ISCARRAY_RO(ids) and cnp.PyArray_TYPE(ids) == cnp.NPY_UINT32 and ids.ndim == 1):
        raise ValueError("ids must be a C-contiguous uint32 array of one dimension")
    return <const uint32_t *>cnp.PyArray_DATA(ids)


def own(cnp.ndarray owners not None, cnp.ndarray ids not None, int owner):
    """Say whose some atoms are; return the place of the first that is another's already, or is none; else -1.

    Parameters
    ----------
    owners
        int32 (n_atoms,), C-contiguous and writable: below 0 where an atom is nobody's.
    ids
        uint32 (n,), C-contiguous.
    owner
        Not below 0.
    """
    cdef const uint32_t *atoms = numbers(ids)
    cdef Py_ssize_t i, n = ids.shape[0], n_atoms = owners.shape[0]
    cdef int *of
    if not (cnp.PyArray_ISCARRAY(owners) and cnp.PyArray_TYPE(owners) == cnp.NPY_INT32 and owners.ndim == 1):
        raise ValueError("owners must be a writable C-contiguous int32 array of one dimension")
    of = <int *>cnp.PyArray_DATA(owners)
    with nogil:
        for i in range(n):
            if atoms[i] >= <size_t>n_atoms or of[atoms[i]] >= 0:
                break
            of[atoms[i]] = owner
        else:
            i = n
    return -1 if i == n else i


def scatter(cnp.ndarray out not None, cnp.ndarray ids not None, cnp.ndarray vectors not None):
    """Put row i of `vectors` at row ids[i] of `out`.

    Parameters
    ----------
    out
        float32 (n_atoms, 3), C-contiguous and writable.
    ids
        uint32 (n,), C-contiguous, all below n_atoms (IndexError).
    vectors
        float32 (n, 3), C-contiguous.
    """
    cdef const uint32_t *atoms = numbers(ids)
    cdef Py_ssize_t i, n = ids.shape[0], n_atoms = out.shape[0]
    cdef const float *row
    cdef float *rows
    cdef float *target
    cdef bint wrong = False
    if not (cnp.PyArray_ISCARRAY(out) and cnp.PyArray_TYPE(out) == cnp.NPY_FLOAT32 and out.ndim == 2
            and out.shape[1] == 3):
        raise ValueError("out must be a writable C-contiguous float32 array of shape (n, 3)")
    if not (cnp.PyArray_ISCARRAY_RO(vectors) and cnp.PyArray_TYPE(vectors) == cnp.NPY_FLOAT32 and vectors.ndim == 2
            and vectors.shape[0] == n and vectors.shape[1] == 3):
        raise ValueError(f"vectors must be a C-contiguous float32 array of shape ({n}, 3)")
    rows = <float *>cnp.PyArray_DATA(out)
    row = <const float *>cnp.PyArray_DATA(vectors)
    with nogil:
        for i in range(n):
            if atoms[i] >= <size_t>n_atoms:
                wrong = True
                break
            target = rows + 3 * <size_t>atoms[i]
            target[0] = row[0]
            target[1] = row[1]
            target[2] = row[2]
            row += 3
    if wrong:
        raise IndexError(f"atom {atoms[i]} of {n_atoms}")
