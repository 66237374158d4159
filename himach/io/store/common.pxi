# What all handles share: errors, signals, frames as arguments.

class StoreSystemError(StoreError):
    """A system call failed, or a library of the system is missing."""


class StorePoisonedError(StoreError):
    """An earlier write or fsync of this writer failed; only closing it is left."""


class StoreVersionError(StoreError):
    """Written by another version of the format."""


class StoreNotFoundError(StoreError):
    """There is no such store, dataset or segment."""


class StoreBusyError(StoreError):
    """A writer or reader holds the segment."""


class StoreRefusedError(StoreError):
    """The directory may not hold a store: network file system, foreign owner, or the place of another dataset."""


ERRORS = {
    BODHI_ERROR_ARGUMENT: ValueError,
    BODHI_ERROR_MEMORY: MemoryError,
    BODHI_ERROR_SYSTEM: StoreSystemError,
    BODHI_ERROR_FULL: StoreFullError,
    BODHI_ERROR_POISONED: StorePoisonedError,
    BODHI_ERROR_VERSION: StoreVersionError,
    BODHI_ERROR_NOT_FOUND: StoreNotFoundError,
    BODHI_ERROR_BUSY: StoreBusyError,
    BODHI_ERROR_NETWORK: StoreRefusedError,
    BODHI_ERROR_UNSAFE: StoreRefusedError,
    BODHI_ERROR_CONFLICT: StoreConflictError,
}


class ServerProtocolError(StoreError):
    """What answers is no server of this version, or its bytes were damaged on their way."""


class ServerRefusedError(StoreError):
    """The server refuses this user or key, or is not the one that it should be."""


#: What a server's statuses mean to its clients.
SERVER_ERRORS = {
    **ERRORS,
    BODHI_ERROR_UNREACHABLE: ServerUnreachableError,
    BODHI_ERROR_PROTOCOL: ServerProtocolError,
    BODHI_ERROR_UNSAFE: ServerRefusedError,
}


cdef extern from "Python.h":
    # Without the exceptions that Cython's own declarations speak of: interrupted() leaves them pending.
    int PyErr_CheckSignals()
    void *PyErr_Occurred()


cdef int deaf = 0  # above 0: a wait is on in which an exception would have nowhere to go


cdef int interrupted() noexcept with gil:
    """Run Python's signal handlers; 1 if one of them has raised, and then for as long as its exception waits."""
    if deaf > 0:
        return 0
    return PyErr_Occurred() is not NULL or PyErr_CheckSignals() != 0


cdef int raise_error(int status, dict errors) except -1:
    if status == BODHI_ERROR_INTERRUPTED and PyErr_Occurred() is not NULL:
        return -1  # what the signal's handler has raised
    raise errors[status](bodhi_message().decode("utf-8", "replace"))


cdef int check(int status) except -1 nogil:
    """Raise the exception of a negative status; return the others. Must run in the thread that made the call."""
    if status < 0:
        with gil:
            raise_error(status, ERRORS)
    return status


cdef int check_served(int status) except -1 nogil:
    """The same of what a server, or a pusher to servers, has answered."""
    if status < 0:
        with gil:
            raise_error(status, SERVER_ERRORS)
    return status


cdef inline bint is_plain(object array, int kind):
    """Whether this is a C-contiguous array of numbers of this kind as the processor has them."""
    return cnp.PyArray_Check(array) and cnp.PyArray_TYPE(array) == kind and cnp.PyArray_ISCARRAY_RO(array)


cdef float *vectors(object array, str name, Py_ssize_t n_atoms) except? NULL:
    """The data of a float32 (n_atoms, 3) C-contiguous array, or NULL for None."""
    cdef cnp.ndarray data
    if array is None:
        return NULL
    if is_plain(array, cnp.NPY_FLOAT32):
        data = array
        if data.ndim == 2 and data.shape[0] == n_atoms and data.shape[1] == 3:
            return <float *>cnp.PyArray_DATA(data)
    if not isinstance(array, np.ndarray) or array.dtype != np.float32 or array.shape != (n_atoms, 3):
        raise ValueError(f"{name} must be a float32 array of shape ({n_atoms}, 3)")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} must be C-contiguous")
    data = array
    return <float *>cnp.PyArray_DATA(data)


cdef int64_t frame_number(number) except -1:
    """The number of a frame that is to be kept."""
    if not 0 <= number <= BODHI_MAX_NUMBER:
        raise ValueError(f"frame {number}: frames have numbers from 0 to {BODHI_MAX_NUMBER}")
    return number


cdef object fill(bodhi_frame *frame, number, double time, positions, box, velocities, forces):
    """Fill a frame, which points into the arrays; return the box as the array that it points into."""
    memset(frame, 0, sizeof(frame[0]))
    frame.number = frame_number(number)
    frame.time = time
    frame.n_atoms = len(positions)
    frame.positions = vectors(positions, "positions", frame.n_atoms)
    frame.velocities = vectors(velocities, "velocities", frame.n_atoms)
    frame.forces = vectors(forces, "forces", frame.n_atoms)
    return fill_box(frame, box)


cdef object fill_box(bodhi_frame *frame, box):
    """Fill the box of a frame; return it as the array into which the frame then points."""
    cdef cnp.ndarray lengths_and_angles
    if box is None:
        return None
    lengths_and_angles = np.ascontiguousarray(box, dtype=np.float32)
    if lengths_and_angles.ndim != 1 or lengths_and_angles.shape[0] != 6:
        raise ValueError("box must have 6 numbers: three lengths and three angles")
    frame.box = <float *>cnp.PyArray_DATA(lengths_and_angles)
    return lengths_and_angles
