# The lattice of a box, for the boundaries of kernels.

cdef extern from "box/lattice.h":
    struct lattice:
        pass
    int lattice_set(lattice *cell, const float *box) nogil


cdef int set_lattice(lattice *cell, const float[::1] box) except -1:
    """Set the lattice of a box, or of none for None."""
    if lattice_set(cell, NULL if box is None else &box[0]) != 0:
        raise UsageError(
            f"box {np.asarray(box).tolist()} is none: lengths must be positive and angles must fit together; "
            "None means no box"
        )
    return 0
