"""The boundary to native/xtc: `decode()` makes positions of the compressed part of a frame, `encode()` makes frames."""

from libc.stdint cimport int32_t, uint8_t

import numpy as np


cdef extern from "xtc/xtc.h":
    enum:
        XTC_PAD
        XTC_SHORT
        XTC_MANY
        XTC_MOST_ATOMS
    ctypedef struct xtc_frame:
        const uint8_t *bytes
        size_t n_bytes
        int32_t least[3]
        int32_t greatest[3]
        int index
    int xtc_decode(const xtc_frame *frame, float unit, float scale, size_t n_atoms, size_t needed, float *out,
                   size_t *used) nogil
    ctypedef struct xtc_written_frame:
        const float *positions
        size_t n_atoms
        float scale
        float precision
        int32_t step
        float time
        float box[9]
    size_t xtc_most_bytes(size_t n_atoms)
    int xtc_encode(const xtc_written_frame *frame, int32_t *steps, uint8_t *out, size_t *n_bytes) nogil

#: Bytes that must lie behind a frame's data in its buffer.
PAD = XTC_PAD


def decode(coded, float[:, ::1] out, needed=None):
    """Decode a `himach.frame.Coded`, with `PAD` more bytes behind it; return how many of its bytes that took.

    Only the first `needed` atoms are certain to be decoded (None: all), and damage behind them is not noticed. Raises
    ValueError if bytes cannot be a frame of as many atoms; `out`, float32 (n_atoms, 3), is then partly filled.
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


def encode(const float[:, ::1] positions, const float[:, ::1] box, int step, float time, float precision=1000,
           float scale=0.1):
    """Return a whole frame, header and coordinates, as uint8 (n_bytes,): the bytes that MDAnalysis's writer gives.

    Positions, float32 (n, 3), times `scale` are in nm, the vectors of the box, float32 (3, 3), in nm, time in ps,
    precision in steps a nm. Raises ValueError for too many atoms, and a coordinate that is no number or too large.
    """
    cdef xtc_written_frame frame
    cdef size_t n_bytes, n_atoms = positions.shape[0]
    cdef int status, k
    if positions.shape[1] != 3 or box.shape[0] != 3 or box.shape[1] != 3:
        raise ValueError("positions must have the shape (n, 3) and the box (3, 3)")
    if not 0 < n_atoms <= XTC_MOST_ATOMS:
        raise ValueError(f"an XTC file has 1 to {XTC_MOST_ATOMS} atoms, not {n_atoms}")
    steps, out = np.empty(3 * n_atoms, np.int32), np.empty(xtc_most_bytes(n_atoms), np.uint8)
    cdef int32_t[::1] to_steps = steps
    cdef uint8_t[::1] to_out = out
    frame.positions, frame.n_atoms, frame.scale, frame.precision = &positions[0, 0], n_atoms, scale, precision
    frame.step, frame.time = step, time
    for k in range(9):
        frame.box[k] = box[k // 3, k % 3]
    with nogil:
        status = xtc_encode(&frame, &to_steps[0], &to_out[0], &n_bytes)
    if status != 0:
        raise ValueError(f"a coordinate is no number, or too large for an XTC file of precision {precision:g}")
    return out[:n_bytes]
