"""The boundary to native/codec/xtc.h: `decode()` turns the compressed part of an XTC frame into positions."""

from libc.stdint cimport int32_t, uint8_t


cdef extern from "codec/xtc.h":
    enum:
        XTC_PAD
        XTC_SHORT
        XTC_MANY
    int xtc_decode(const uint8_t *bytes, size_t n_bytes, const int32_t *least, const int32_t *greatest, int index,
                   float unit, float scale, size_t n_atoms, size_t needed, float *out) nogil

#: Bytes that must lie behind a frame's data in its buffer.
PAD = XTC_PAD


def decode(
    const uint8_t[::1] buffer, Py_ssize_t begin, Py_ssize_t n_bytes, ends, int index, float precision, float scale,
    float[:, ::1] out, needed=None,
):
    """Decode a frame's coordinates.

    Parameters
    ----------
    buffer
        Bytes that hold the compressed part and at least `PAD` more behind it.
    begin, n_bytes
        Where the compressed part lies in the buffer.
    ends
        The least and the greatest coordinate of each axis: six integers.
    index
        Number of the small sizes at the beginning.
    precision
        Steps per nm.
    scale
        What a position in nm is multiplied by.
    out
        float32 (n_atoms, 3), filled.
    needed
        Atoms from the first on that are decoded; None for all. The others' rows hold anything, and damage behind these
        atoms goes unnoticed.

    Raises
    ------
    ValueError
        If the bytes cannot be a frame of as many atoms; `out` is then partly filled.
    """
    cdef int32_t least[3]
    cdef int32_t greatest[3]
    cdef int axis, status
    cdef float unit = <float>(1.0 / precision)
    cdef size_t n_atoms = out.shape[0]
    cdef size_t n_needed = n_atoms if needed is None else min(max(<Py_ssize_t>needed, 0), out.shape[0])
    if begin < 0 or n_bytes < 0 or begin + n_bytes + XTC_PAD > buffer.shape[0] or out.shape[1] != 3 or n_atoms == 0:
        raise ValueError("the buffers do not fit the frame")
    for axis in range(3):
        least[axis] = ends[axis]
        greatest[axis] = ends[3 + axis]
    with nogil:
        status = xtc_decode(&buffer[begin], n_bytes, least, greatest, index, unit, scale, n_atoms, n_needed,
                            &out[0, 0])
    if status == XTC_SHORT:
        raise ValueError("its coordinates are damaged: they end too early")
    if status == XTC_MANY:
        raise ValueError("its coordinates are damaged: they go on after the last atom")
    if status != 0:
        raise ValueError("its coordinates are damaged: they have senseless sizes")
