# Groups of atoms, and memory that searches keep between frames, for the boundaries of kernels.

cdef extern from "box/metric.h":
    struct group:
        const float *positions
        size_t n

cdef extern from "search/scratch.h":
    struct scratch:
        pass
    void scratch_free(scratch *memory) nogil


cdef class Scratch:
    """Memory that is kept between frames."""

    cdef scratch memory

    def __dealloc__(self):
        scratch_free(&self.memory)


#: Scratches that are free: one for every thread that ever searched while others did.
cdef list spare = []


cdef Scratch take_scratch():
    return spare.pop() if spare else Scratch()


cdef group group_of(const float[:, ::1] positions) noexcept:
    cdef group atoms
    atoms.n = positions.shape[0]
    atoms.positions = &positions[0, 0] if atoms.n else NULL
    return atoms
