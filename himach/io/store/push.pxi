# Pushing frames to several servers (bodhi_push of native/bodhi.h); `himach.io.push.writer` is its face.


cdef object rows(object values, str name, Py_ssize_t n):
    """Return vectors of n atoms as a float32 array."""
    if values is None:
        return None
    if not is_plain(values, cnp.NPY_FLOAT32):
        values = np.ascontiguousarray(values, dtype=np.float32)
    if n == 0 and not values.size:
        return np.empty((0, 3), np.float32)
    if cnp.PyArray_NDIM(values) != 2 or cnp.PyArray_DIM(values, 0) != n or cnp.PyArray_DIM(values, 1) != 3:
        raise ValueError(f"{name} have shape {np.shape(values)}; {n} ids need ({n}, 3)")
    return values


cdef class PusherHandle:
    """Pushes frames to several servers."""

    cdef bodhi_pusher *pusher
    cdef pid_t process  # that has opened it: a fork has no threads of it, and shares its files

    def __init__(self, list servers, str dataset, bytes generation, key_file, bint durable, int timeout_ms,
                 int64_t batch_bytes, identity=None, slices=None):
        cdef bodhi_push_options options
        cdef bodhi_slice_options of_slices
        cdef const char **addresses
        cdef bytes name = dataset.encode()
        cdef const char *text = name
        cdef const char *fingerprint = generation
        cdef size_t size = len(generation)
        cdef int n = len(servers)
        cdef int status
        cdef bint whole = slices is None
        cdef bytes who = b"" if identity is None else (<str>identity).encode()
        encoded = [address.encode() for address in servers]
        if any(b"\0" in text_of for text_of in [name, who, *encoded]):
            raise ValueError("the dataset's name, the identity or an address holds a NUL byte")
        memset(&options, 0, sizeof(options))
        if key_file is not None:
            options.key_file = <bytes>key_file
        options.durable = durable
        options.timeout_ms = timeout_ms
        options.batch_bytes = batch_bytes
        options.interrupted = interrupted
        if identity is not None:
            options.identity = <const char *>who
        memset(&of_slices, 0, sizeof(of_slices))
        if not whole:
            of_slices.n_atoms, of_slices.rank, store, of_slices.quota, launch = slices
            of_slices.store = NULL if store is None else <const char *><bytes>store
            of_slices.launch = NULL if launch is None else <const char *><bytes>launch
        self.process = getpid()
        addresses = <const char **>malloc((n + 1) * sizeof(const char *))
        if addresses is NULL:
            raise MemoryError
        for i in range(n):
            addresses[i] = <bytes>encoded[i]
        with nogil:
            if whole:
                status = bodhi_push_open(addresses, n, text, fingerprint, size, &options, &self.pusher)
            else:
                status = bodhi_push_open_slices(
                    addresses, n, text, fingerprint, size, &options, &of_slices, &self.pusher
                )
        free(addresses)
        check_served(status)

    def __dealloc__(self):
        # Frames that were never acknowledged may be lost here without a word: who wants to know calls close().
        global deaf
        cdef int status
        if self.pusher is NULL or self.process != getpid():
            return
        deaf += 1
        with nogil:
            status = bodhi_push_close(self.pusher)
        deaf -= 1
        if status < 0:
            return

    cdef int require_open(self) except -1:
        if self.pusher is NULL:
            raise ValueError("the writer is closed")
        if self.process != getpid():
            raise ValueError("the writer is another process's, of which this one is a fork; open one here")
        return 0

    def push(self, number, double time, positions, box, velocities, forces):
        """Push a frame."""
        cdef bodhi_frame frame
        cdef int status
        self.require_open()
        box = fill(&frame, number, time, positions, box, velocities, forces)
        with nogil:
            status = bodhi_push(self.pusher, &frame)
        check_served(status)

    def push_slice(self, number, double time, ids, positions, box, velocities, forces):
        """Push a slice, whose atoms are `ids`, n whole numbers; the vectors are (n, 3). All may be array-likes."""
        cdef bodhi_frame frame
        cdef cnp.ndarray atoms
        cdef const int64_t *told
        self.require_open()
        if not is_plain(ids, cnp.NPY_INT64):
            ids = np.asarray(ids)
            if ids.size and ids.dtype.kind not in "iu":
                raise ValueError(f"ids are of type {ids.dtype}; they are whole numbers")
            ids = np.ascontiguousarray(ids, dtype=np.int64)
        atoms = ids
        if atoms.ndim != 1:
            raise ValueError(f"ids have shape {np.shape(ids)}; they are one row of numbers")
        positions = rows(positions, "positions", atoms.shape[0])
        velocities = rows(velocities, "velocities", atoms.shape[0])
        forces = rows(forces, "forces", atoms.shape[0])
        if positions is None:
            raise ValueError("a slice has positions")
        box = fill(&frame, number, time, positions, box, velocities, forces)
        told = <const int64_t *>cnp.PyArray_DATA(atoms)
        with nogil:
            check_served(bodhi_push_slice(self.pusher, &frame, told))

    def flush(self):
        """Wait until everything is acknowledged."""
        self.require_open()
        with nogil:
            check_served(bodhi_push_flush(self.pusher))

    def facts(self):
        """The members of bodhi_push_facts."""
        cdef bodhi_push_facts facts
        self.require_open()
        bodhi_push_query(self.pusher, &facts)
        return facts

    def abandon(self):
        """Close without waiting for anything."""
        cdef bodhi_pusher *pusher = self.pusher
        self.pusher = NULL
        if self.process != getpid():
            return
        with nogil:
            bodhi_push_abandon(pusher)

    def close(self):
        """Flush and close; in a fork of the process that has opened it, forget it."""
        cdef bodhi_pusher *pusher = self.pusher
        self.pusher = NULL
        if self.process != getpid():
            return
        with nogil:
            check_served(bodhi_push_close(pusher))
