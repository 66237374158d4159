"""The boundary to native/codec/xtc.h: `decode()` turns the compressed part of an XTC frame into positions."""

from libc.stdint cimport int32_t, uint8_t


cdef extern from "codec/xtc.h":
    enum:
        XTC_PAD
        XTC_SHORT
        XTC_MANY
    ctypedef struct xtc_frame:
        const uint8_t *bytes
        size_t n_bytes
        int32_t least[3]
        int32_t greatest[3]
        int index
    int xtc_decode(const xtc_frame *frame, float unit, float scale, size_t n_atoms, size_t needed, float *out,
                   size_t *used) nogil

#: Bytes that must lie behind a frame's data in its buffer.
PAD = XTC_PAD


def decode(coded, float[:, ::1] out, needed=None):
    """Decode a frame's coordinates; return how many of its bytes, from the first on, that took.

    Parameters
    ----------
    coded
        The frame as `himach.frame.Coded`, in memory with at least `PAD` bytes more behind it.
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
    cdef const uint8_t[::1] buffer = coded.memory
    cdef Py_ssize_t begin = coded.begin, n_bytes = coded.n_bytes
    cdef xtc_frame frame
    cdef size_t used
    cdef int axis, status
    cdef float unit = <float>(1.0 / coded.precision), scale = coded.scale
    cdef size_t n_atoms = out.shape[0]
    cdef size_t n_needed = n_atoms if needed is None else min(max(<Py_ssize_t>needed, 0), out.shape[0])
    if begin < 0 or n_bytes < 0 or begin + n_bytes + XTC_PAD > buffer.shape[0] or out.shape[1] != 3 or n_atoms == 0:
        raise ValueError("the buffers do not fit the frame")
    frame.bytes, frame.n_bytes, frame.index = &buffer[begin], n_bytes, coded.index
    for axis in range(3):
        frame.least[axis], frame.greatest[axis] = coded.ends[axis], coded.ends[3 + axis]
    with nogil:
        status = xtc_decode(&frame, unit, scale, n_atoms, n_needed, &out[0, 0], &used)
    if status == XTC_SHORT:
        raise ValueError("its coordinates are damaged: they end too early")
    if status == XTC_MANY:
        raise ValueError("its coordinates are damaged: they go on after the last atom")
    if status != 0:
        raise ValueError("its coordinates are damaged: they have senseless sizes")
    return used
