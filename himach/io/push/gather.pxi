# Slices that become frames, a round at a time.

cdef class GatherHandle:
    """The frames of a round of assembling, as one process of several sees them; see native/assemble/gather.h.

    Two threads may not use one at the same time.
    """

    cdef gather *g
    cdef int n_processes

    def __cinit__(self, int64_t n_atoms, int processes, int own):
        check(gather_open(n_atoms, processes, own, &self.g))
        self.n_processes = processes

    def __dealloc__(self):
        gather_close(self.g)

    def begin(self, numbers, cnp.ndarray assembler):
        """Begin a round: ascending frame numbers, and the process of each, int32 (n,)."""
        cdef cnp.ndarray of = frame_numbers(numbers)
        if not (cnp.PyArray_ISCARRAY_RO(assembler) and cnp.PyArray_TYPE(assembler) == cnp.NPY_INT32
                and assembler.ndim == 1 and assembler.shape[0] == of.shape[0]):
            raise ValueError("assembler must be a C-contiguous int32 array, as long as numbers")
        check(gather_begin(self.g, <int64_t *>cnp.PyArray_DATA(of), <int32_t *>cnp.PyArray_DATA(assembler),
                           <size_t>of.shape[0]))

    def read(self, int64_t rank, ReaderHandle reader not None):
        """Take all slices of a rank that a reader reads; return the numbers of those that cannot be read."""
        cdef int status = BODHI_MISS
        cdef int64_t missed
        cdef list unread = []
        while status == BODHI_MISS:
            with nogil:
                status = check(gather_read(self.g, rank, reader.reader, &missed))
            if status == BODHI_MISS:
                unread.append(missed)
        return unread

    def parcel(self, int process):
        """What is packed for another process, uint8 (n,): the handle's memory, until the next round."""
        cdef cnp.npy_intp shape[1]
        cdef cnp.ndarray array
        if not 0 <= process < self.n_processes:
            raise IndexError(process)
        if self.g.parcels[process].size == 0:
            return np.empty(0, dtype=np.uint8)
        shape[0] = <cnp.npy_intp>self.g.parcels[process].size
        array = cnp.PyArray_SimpleNewFromData(1, shape, cnp.NPY_UINT8, self.g.parcels[process].bytes)
        cnp.set_array_base(array, self)
        return array

    def take(self, cnp.ndarray data):
        """Take what another process has packed, uint8 (n,)."""
        if not (cnp.PyArray_ISCARRAY_RO(data) and cnp.PyArray_TYPE(data) == cnp.NPY_UINT8 and data.ndim == 1
                and <size_t>cnp.PyArray_DATA(data) % 4 == 0):
            raise ValueError("data must be a C-contiguous, aligned uint8 array of one dimension")
        cdef unsigned char *bytes = <unsigned char *>cnp.PyArray_DATA(data)
        cdef size_t size = <size_t>data.shape[0]
        with nogil:
            check(gather_take(self.g, bytes, size))

    def write(self, WriterHandle writer not None, list written, dict bad):
        """Write the frames of this process; after an error, another call goes on.

        Numbers of those that are there now are added to `written`, why others are not to `bad`: a text, and whether
        another frame of this number is there. An error is that of the frame that comes next.
        """
        cdef int status
        cdef int64_t number
        writer.require_open()
        while True:
            with nogil:
                status = gather_write(self.g, writer.writer, &number)
            if status == BODHI_END:
                return
            if status == BODHI_MISS:
                bad[number] = (gather_why(self.g).decode(), False)
            elif status == BODHI_ERROR_CONFLICT:
                bad[number] = (bodhi_message().decode(errors="replace"), True)
            else:
                check(status)
                written.append(number)
