"""The boundary to the C code of this folder: check, convert, release the GIL, call, raise."""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from numbers import Integral, Real

import numpy as np

from himach.errors import UsageError
from himach.kernels.arrays import MAX_ATOMS, as_box, as_direction, as_doubles, as_flags, as_groups, as_output
from himach.kernels.arrays import as_places, as_positions, as_radii, as_weights


cdef extern from "box/lattice.h":
    struct lattice:
        pass
    int lattice_set(lattice *cell, const float *box) nogil

cdef extern from "box/metric.h":
    struct group:
        const float *positions
        size_t n

cdef extern from "search/scratch.h":
    struct scratch:
        pass
    void scratch_free(scratch *memory) nogil


cdef int set_lattice(lattice *cell, const float[::1] box) except -1:
    """Set the lattice of a box, or of none for None."""
    if lattice_set(cell, NULL if box is None else &box[0]) != 0:
        raise UsageError(
            f"box {np.asarray(box).tolist()} is none: lengths must be positive and angles must fit together; "
            "None means no box"
        )
    return 0


cdef class SearchMemory:
    """Memory that is kept between frames."""

    cdef scratch memory

    def __dealloc__(self):
        scratch_free(&self.memory)


#: Memories that are free: one for every thread that ever searched while others did.
cdef list spare = []


cdef SearchMemory take_scratch():
    return spare.pop() if spare else SearchMemory()


cdef group group_of(const float[:, ::1] positions) noexcept:
    cdef group atoms
    atoms.n = positions.shape[0]
    atoms.positions = &positions[0, 0] if atoms.n else NULL
    return atoms


include "angles/angles.pxi"
include "molecules/molecules.pxi"
include "molecules/periods.pxi"
include "proteins/proteins.pxi"
include "search/search.pxi"
include "surface/surface.pxi"
