"""Vectors of frames as the bytes of files: `big_endian()` and `columns()`, the boundary to `bytes.c`."""

cimport numpy as cnp
from libc.stdint cimport uint8_t

cnp.import_array()

cdef extern from "bytes.h" nogil:
    void put_big_endian(const float *from_, size_t n, float divisor, float factor, uint8_t *to)
    void put_columns(const float *from_, size_t n, uint8_t *to, size_t stride)


cdef const float *floats(cnp.ndarray vectors) except NULL:
    if not (cnp.PyArray_ISCARRAY_RO(vectors) and cnp.PyArray_TYPE(vectors) == cnp.NPY_FLOAT32 and vectors.ndim == 2
            and vectors.shape[1] == 3 and vectors.shape[0] > 0):
        raise ValueError("vectors must be a C-contiguous float32 array of shape (n, 3)")
    return <const float *>cnp.PyArray_DATA(vectors)


cdef uint8_t *room(cnp.ndarray into, Py_ssize_t at, Py_ssize_t n_bytes) except NULL:
    if not (cnp.PyArray_ISCARRAY(into) and cnp.PyArray_TYPE(into) == cnp.NPY_UINT8 and into.ndim == 1):
        raise ValueError("into must be a writable C-contiguous uint8 array")
    if at < 0 or n_bytes > into.shape[0] - at:
        raise ValueError(f"{n_bytes} bytes at {at} do not fit into {into.shape[0]}")
    return <uint8_t *>cnp.PyArray_DATA(into) + at


def big_endian(cnp.ndarray vectors not None, cnp.ndarray into not None, Py_ssize_t at, float divisor=1, float factor=1):
    """Write vectors as big-endian floats.

    Parameters
    ----------
    vectors
        float32 (n, 3), C-contiguous.
    into
        uint8 (m,), C-contiguous.
    at
        Where in it the first of the 12 n bytes goes.
    divisor, factor
        What each number is divided by, and then multiplied by, in single precision.

    Raises
    ------
    ValueError
        An array is not like that, or the bytes do not fit.
    """
    cdef const float *read = floats(vectors)
    cdef size_t n = 3 * vectors.shape[0]
    cdef uint8_t *written = room(into, at, 4 * n)
    with nogil:
        put_big_endian(read, n, divisor, factor, written)


def columns(cnp.ndarray vectors not None, cnp.ndarray into not None, Py_ssize_t at, Py_ssize_t stride):
    """Write vectors as three columns of little-endian floats: all x, all y, all z.

    Parameters
    ----------
    vectors, into
        As of `big_endian`.
    at, stride
        Where the first column begins, and how many bytes behind it the next one does, 4 n at least.

    Raises
    ------
    ValueError
        As in `big_endian`.
    """
    cdef const float *read = floats(vectors)
    cdef size_t n = vectors.shape[0]
    cdef uint8_t *written
    if stride < <Py_ssize_t>(4 * n):
        raise ValueError(f"columns of {4 * n} bytes do not lie {stride} apart")
    written = room(into, at, 2 * stride + 4 * n)
    with nogil:
        put_columns(read, n, written, stride)
