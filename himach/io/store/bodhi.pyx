"""Boundary to the C library of the frame store (native/): check, convert, release the GIL, call, raise."""

import os

import numpy as np

cimport cython
from cpython.exc cimport PyErr_CheckSignals as check_signals
cimport numpy as cnp
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset
from posix.types cimport pid_t
from posix.unistd cimport getpid
from himach.io.store.libbodhi cimport *

from himach.errors import ServerUnreachableError, StoreConflictError, StoreError, StoreFullError

cnp.import_array()

include "common.pxi"

MAX_NUMBER = BODHI_MAX_NUMBER  # of a frame
NATIVE = BODHI_NATIVE
ALIEN = BODHI_ALIEN
CREATE = BODHI_CREATE
READ_ONLY = BODHI_READ_ONLY
ALLOW_NETWORK = BODHI_ALLOW_NETWORK
POSITIONS = BODHI_POSITIONS
VELOCITIES = BODHI_VELOCITIES
FORCES = BODHI_FORCES
IDS = BODHI_IDS
#: Behind the name of a dataset: that of its slices.
SLICES_SUFFIX = (<bytes>BODHI_SLICES_SUFFIX).decode()
ENCODING_AUTO = BODHI_ENCODING_AUTO
ENCODING_RAW = BODHI_ENCODING_RAW
REASON_UNREACHABLE = BODHI_REASON_UNREACHABLE
REASON_DAMAGED = BODHI_REASON_DAMAGED
REASONS = {
    BODHI_REASON_ABSENT: "absent",
    BODHI_REASON_DAMAGED: "damaged",
    BODHI_REASON_IO: "error of the disk",
    BODHI_REASON_GONE: "evicted",
    BODHI_REASON_RESOURCES: "out of descriptors or memory",
    BODHI_REASON_UNREACHABLE: "server unreachable",
}


#: Places of frames that are looked up together: 2 MB, and soon interrupted.
PLACES_AT_ONCE = 1 << 16
PLACE = np.dtype([("segment", "u8"), ("kind", "i4"), ("found", "i4"), ("offset", "i8"), ("length", "i8")])

#: Whether cold data bypasses the page cache, as `himach.io.frame_source.ReadOptions` says it.
DIRECT = {"auto": BODHI_DIRECT_AUTO, "on": BODHI_DIRECT_ON, "off": BODHI_DIRECT_OFF}


cdef cnp.ndarray frame_numbers(object numbers):
    """Frame numbers as a contiguous int64 array."""
    return np.ascontiguousarray(numbers, dtype=np.int64).reshape(-1)


cdef bodhi_read_options read_options(object chosen) except *:
    """Options of a reader, which point to the ranges of atoms that `chosen` keeps, a ReadOptions."""
    cdef bodhi_read_options options
    cdef cnp.ndarray ranges = chosen.ranges
    memset(&options, 0, sizeof(options))
    options.fields = chosen.fields
    options.direct = DIRECT[chosen.direct]
    options.no_thread = not chosen.ahead
    options.request_bytes = chosen.request_bytes
    options.ring = chosen.ring
    options.check_only = not chosen.unpack
    if ranges is not None:
        if ranges.dtype != np.int64 or ranges.ndim != 2 or not ranges.flags.c_contiguous:
            raise ValueError("ranges must be a contiguous int64 array of two dimensions")
        options.atoms = <bodhi_range *>cnp.PyArray_DATA(ranges)
        options.n_ranges = ranges.shape[0]
    return options


def check_words(frames, native, alien):
    """Refuse to mark frames that cannot be, or in words that are too few or too many."""
    if len(frames) and min(frames[0], frames[len(frames) - 1]) < 0:
        raise ValueError(
            f"no frame is negative, but the first is {frames.start}, step {frames.step}, count {len(frames)}"
        )
    if not native.shape[0] == alien.shape[0] == (len(frames) + 63) // 64:
        raise ValueError(
            f"{len(frames)} frames, but {native.shape[0]} words of natives and {alien.shape[0]} of aliens"
        )


def crc32c(const uint8_t[::1] data, uint32_t crc=0):
    """The CRC32C of bytes, continuing from that of the bytes before them."""
    if data.shape[0] == 0:
        return crc
    cdef const uint8_t *start = &data[0]
    cdef size_t size = data.shape[0]
    with nogil:
        crc = bodhi_crc32c(crc, start, size)
    return crc


def survey(bytes directory):
    """What the store in a directory and its disk hold (the members of bodhi_usage), and its segments in their turn.

    A segment is (directory, id, native, pushed, bytes, last_used).
    """
    cdef const char *path = directory
    cdef bodhi_usage usage
    cdef bodhi_stored_segment *segments = NULL
    cdef int64_t n = 0
    with nogil:
        check(bodhi_survey(path, &usage, &segments, &n))
    try:
        return usage, [
            (segments[i].directory.decode(), segments[i].id, segments[i].kind == BODHI_NATIVE, segments[i].pushed != 0,
             segments[i].bytes, segments[i].last_used)
            for i in range(n)
        ]
    finally:
        free(segments)


def verify_segment(int directory, str name, uint64_t dataset, uint64_t generation):
    """Read all frames of a segment again, also those that its index tells of behind its end.

    Returns how many are sound and their bytes, (offset, frame or None, reason) of others, and the (segment, offset) of
    records that it drops. Raises FileNotFoundError if it was evicted, OSError if it cannot be read.
    """
    cdef segment chosen
    cdef findings content
    cdef stored_frame stored
    cdef uint64_t offset, n_bytes, frames = 0, nbytes = 0
    cdef bytes encoded = name.encode()
    cdef int error
    cdef size_t i
    memset(&content, 0, sizeof(content))
    if not segment_from_name(&chosen, encoded, dataset, generation):
        raise ValueError(f"no segment is called {name!r}")
    bad = []
    cdef int file = os.open(name, os.O_RDONLY, dir_fd=directory)
    try:
        with nogil:
            error = segment_load(directory, &chosen, 0, LOAD_UNSEALED | LOAD_BEYOND, &content)
            for i in range(content.n_places if error == 0 else 0):
                offset = <uint64_t>content.places[i].offset * UNIT
                n_bytes = <uint64_t>content.places[i].length * UNIT
                if check(stored_read(file, &chosen.key, offset, n_bytes, &stored)) == BODHI_OK:
                    stored_free(&stored)
                    frames += 1
                    nbytes += n_bytes
                    continue
                with gil:
                    bad.append((offset, content.places[i].number, bodhi_message().decode("utf-8", "replace")))
        if error != 0:
            raise OSError(error, os.strerror(error))
        if chosen.refused:
            bad.append((0, None, "the segment is of another dataset or format version; it is left alone"))
        elif content.lost > 0:
            bad.append((0, None, f"{content.lost} bytes without a valid record"))
        dropped = [(content.tombstones[i].segment, content.tombstones[i].offset) for i in range(content.n_tombstones)]
        return frames, nbytes, bad, dropped
    finally:
        findings_free(&content)
        os.close(file)


cdef class StoreHandle:
    """An open store."""

    cdef bodhi_store *store

    def __init__(self, bytes directory, int flags):
        cdef const char *path = directory
        if self.store is not NULL:
            raise ValueError("the store is open already")
        if b"\0" in directory:
            raise ValueError("directory holds a NUL byte")
        with nogil:
            check(bodhi_open(path, flags, &self.store))

    def __dealloc__(self):
        bodhi_close(self.store)

    @property
    def identity(self):
        """What tells this store from every other (32 hex digits): one directory seen from two nodes counts once."""
        cdef uint8_t identity[16]
        bodhi_identity(self.store, identity)
        return bytes(identity[:16]).hex()

    def set_quota(self, int64_t size):
        """Let writers of this object keep the store to so many bytes, and a reserve of its disk free; 0: no limit."""
        bodhi_store_set_quota(self.store, size)

    def evict(self, str directory, uint64_t segment, *, bint native, bint empty=False):
        """Delete a segment of the dataset in a subdirectory, which is no use of it; with `empty`, if nothing lives."""
        cdef bodhi_stored_segment chosen
        cdef bytes encoded = directory.encode()
        memset(&chosen, 0, sizeof(chosen))
        memcpy(chosen.directory, <const char *>encoded, min(<size_t>len(encoded), sizeof(chosen.directory) - 1))
        chosen.id = segment
        chosen.kind = BODHI_NATIVE if native else BODHI_ALIEN
        with nogil:
            check(bodhi_store_sweep(self.store, &chosen) if empty else bodhi_store_evict(self.store, &chosen))


# No handle is cleared before it is deallocated: each needs the one it came from until then.
@cython.no_gc_clear
cdef class DatasetHandle:
    """An open dataset, by its name and generation, or by its subdirectory; keeps its store open."""

    cdef bodhi_dataset *dataset
    cdef readonly StoreHandle store

    def __init__(self, StoreHandle store not None, str name, bytes generation, bint create, str directory=None):
        cdef bytes encoded = name.encode() if directory is None else directory.encode()
        cdef const char *text = encoded
        cdef const char *fingerprint = generation
        cdef size_t size = len(generation)
        cdef int flags = BODHI_CREATE if create else 0
        cdef bint named = directory is None
        cdef int status
        if self.dataset is not NULL:
            raise ValueError("the dataset is open already")
        if b"\0" in encoded:
            raise ValueError("the dataset's name holds a NUL byte")
        self.store = store
        with nogil:
            if named:
                status = bodhi_dataset_open(store.store, text, fingerprint, size, flags, &self.dataset)
            else:
                status = bodhi_dataset_open_directory(store.store, text, &self.dataset)
        check(status)

    def __dealloc__(self):
        bodhi_dataset_close(self.dataset)

    @property
    def name(self):
        """Name of the dataset."""
        return bodhi_dataset_name(self.dataset).decode("utf-8", "surrogateescape")

    @property
    def generation(self):
        """Fingerprint of its content."""
        cdef size_t size
        cdef const char *data = <const char *>bodhi_dataset_generation(self.dataset, &size)
        return data[:size]

    @property
    def directory(self):
        """Name of its subdirectory in the store."""
        return bodhi_dataset_directory(self.dataset).decode()

    def refresh(self):
        """Take in what other processes have written, dropped or evicted."""
        with nogil:
            check(bodhi_dataset_refresh(self.dataset))

    def facts(self):
        """Counts and sizes: native, alien, bytes, segments, refused_segments, last_used, ... (bodhi_facts)."""
        cdef bodhi_facts facts
        with nogil:
            check(bodhi_dataset_query(self.dataset, &facts))
        return facts

    def numbers(self, int kind, int64_t start, int64_t capacity):
        """Up to `capacity` frame numbers of one kind from `start` on, uint64."""
        cdef cnp.ndarray numbers = np.empty(capacity, dtype=np.uint64)
        cdef int64_t count
        with nogil:
            check(bodhi_dataset_numbers(self.dataset, kind, start, <uint64_t *>cnp.PyArray_DATA(numbers), capacity,
                                        &count))
        return numbers[:count]

    def mark(self, frames, uint64_t[::1] native, uint64_t[::1] alien):
        """Set the bits of those frames of a range that are held natively, and as aliens."""
        cdef int64_t first = frames.start
        cdef int64_t step = frames.step
        cdef int64_t count = len(frames)
        check_words(frames, native, alien)
        if count == 0:
            return
        with nogil:
            check(bodhi_dataset_mark(self.dataset, first, step, count, &native[0], &alien[0]))

    def seal(self, int64_t least=0):
        """Seal segments of which so many frames are not, as a killed writer left them; 0: as many as are worth it."""
        with nogil:
            check(bodhi_dataset_seal(self.dataset, least))

    def places(self, numbers):
        """Where frames lie, as of the last `refresh`: an array of the members of bodhi_place."""
        cdef cnp.ndarray frames = frame_numbers(numbers)
        cdef cnp.ndarray places = np.empty(len(frames), dtype=PLACE)
        with nogil:
            check(bodhi_dataset_locate(self.dataset, <int64_t *>cnp.PyArray_DATA(frames), frames.shape[0],
                                       <bodhi_place *>cnp.PyArray_DATA(places)))
        return places

    def holds(self, numbers, bint native=False):
        """Which of the frames are there, or are there natively, bool (n,), as of the last `refresh`."""
        selected = frame_numbers(numbers)
        present = np.empty(len(selected), dtype=bool)
        for first in range(0, len(selected), PLACES_AT_ONCE):
            check_signals()
            present[first:first + PLACES_AT_ONCE] = self.holds_some(selected[first:first + PLACES_AT_ONCE], native)
        return present

    cdef holds_some(self, selected, bint native):
        """The same of at most `PLACES_AT_ONCE` frames."""
        step = int(selected[1]) - int(selected[0]) if len(selected) > 1 else 0
        if step > 0 and selected.min() >= 0 and (np.diff(selected) == step).all():
            bits = np.zeros((2, (len(selected) + 63) // 64), np.uint64)  # marks read no places of frames
            self.mark(range(int(selected[0]), int(selected[len(selected) - 1]) + 1, step), bits[0], bits[1])
            marks = bits[0] if native else bits[0] | bits[1]
            return np.unpackbits(marks.view(np.uint8), count=len(selected), bitorder="little")
        places = self.places(selected)
        return (places["found"] != 0) & (not native or places["kind"] == BODHI_NATIVE)

    def atoms(self, numbers):
        """How many atoms the native records of the frames have, uint32 (n,); 0 where there is none."""
        cdef cnp.ndarray frames = frame_numbers(numbers)
        cdef cnp.ndarray atoms = np.empty(len(frames), dtype=np.uint32)
        with nogil:
            check(bodhi_dataset_atoms(self.dataset, <int64_t *>cnp.PyArray_DATA(frames), frames.shape[0],
                                      <uint32_t *>cnp.PyArray_DATA(atoms)))
        return atoms

    def drop(self, numbers, *, bint native=False):
        """Drop frames of one kind, for every process; returns how many were there."""
        cdef cnp.ndarray frames = frame_numbers(numbers)
        cdef int kind = BODHI_NATIVE if native else BODHI_ALIEN
        cdef int64_t count
        with nogil:
            check(bodhi_dataset_drop(self.dataset, kind, <int64_t *>cnp.PyArray_DATA(frames), frames.shape[0], &count))
        return count

    def segments(self):
        """The facts of every segment: id, kind, busy, bytes, frames, last_written (bodhi_segment_facts)."""
        cdef int64_t count, capacity
        cdef bodhi_segment_facts *facts
        check(bodhi_dataset_segments(self.dataset, NULL, 0, &count))
        cdef cnp.ndarray buffer = np.empty(count * sizeof(bodhi_segment_facts), dtype=np.uint8)
        facts = <bodhi_segment_facts *>cnp.PyArray_DATA(buffer)
        capacity = count
        with nogil:
            check(bodhi_dataset_segments(self.dataset, facts, capacity, &count))
        return [facts[i] for i in range(min(count, capacity))]

    def open_writer(self, int kind, int64_t segment_bytes=0, int64_t block_atoms=0, int encoding=0, bint keeps=True):
        """A writer of frames of one kind, which keeps the dataset open; else it must not outlive the dataset."""
        cdef WriterHandle handle = WriterHandle.__new__(WriterHandle)
        cdef bodhi_write_options options
        memset(&options, 0, sizeof(options))
        options.segment_bytes = segment_bytes
        options.block_atoms = block_atoms
        options.encoding = encoding
        check(bodhi_writer_open(self.dataset, kind, &options, &handle.writer))
        if keeps:
            handle.dataset = self
        return handle

    def open_reader(self, numbers, chosen):
        """A reader of the frames `numbers`, in that order; `chosen` is a ReadOptions."""
        cdef ReaderHandle handle = ReaderHandle.__new__(ReaderHandle)
        cdef bodhi_read_options options = read_options(chosen)
        cdef cnp.ndarray frames = frame_numbers(numbers)
        with nogil:
            check(bodhi_reader_open(self.dataset, <int64_t *>cnp.PyArray_DATA(frames), frames.shape[0], &options,
                                    &handle.reader))
        handle.origin = self
        return handle


@cython.no_gc_clear
cdef class WriterHandle:
    """An open writer; keeps its dataset open."""

    cdef bodhi_writer *writer
    cdef DatasetHandle dataset

    def __dealloc__(self):
        # Frames that were never flushed may be lost here without a word: who wants to know calls close().
        if bodhi_writer_close(self.writer) < 0:
            return

    cdef int require_open(self) except -1:
        if self.writer is NULL:
            raise ValueError("the writer is closed")
        return 0

    @property
    def written(self):
        """Number of frames made visible."""
        self.require_open()
        return bodhi_writer_written(self.writer)

    def append(self, number, double time, positions, box, velocities, forces):
        """Append a frame; False if it is there already."""
        cdef bodhi_frame frame
        cdef int status
        self.require_open()
        box = fill(&frame, number, time, positions, box, velocities, forces)
        with nogil:
            status = check(bodhi_append(self.writer, &frame))
        return status != BODHI_EXISTS

    def stream(self):
        """Have all that will be appended written by a thread, past the page cache."""
        self.require_open()
        check(writer_begin_streaming(self.writer, True))

    def flush(self, bint durable):
        """Make what was appended visible and kept."""
        self.require_open()
        with nogil:
            check(bodhi_flush(self.writer, durable))

    def close(self):
        """Flush and close."""
        cdef bodhi_writer *writer = self.writer
        self.writer = NULL
        with nogil:
            check(bodhi_writer_close(writer))


@cython.no_gc_clear
cdef class ReaderHandle:
    """An open reader; keeps its dataset or link open. It closes when it and the arrays that it handed out are gone."""

    cdef bodhi_reader *reader
    cdef object origin  # DatasetHandle or LinkHandle

    def __dealloc__(self):
        global deaf
        deaf += 1
        with nogil:  # another reader of the same server may be waiting for it
            bodhi_reader_close(self.reader)
        deaf -= 1

    cdef object show(self, float *data, int64_t n_atoms):
        """A writable float32 (n_atoms, 3) view of the reader's buffer, which keeps the reader open, or None."""
        cdef cnp.npy_intp shape[2]
        cdef cnp.ndarray array
        if data is NULL:
            return None
        shape[0] = n_atoms
        shape[1] = 3
        array = cnp.PyArray_SimpleNewFromData(2, shape, cnp.NPY_FLOAT32, data)
        cnp.set_array_base(array, self)
        return array

    @property
    def nbytes(self):
        """Bytes of records delivered so far."""
        return bodhi_reader_bytes(self.reader)

    def next(self):
        """The next frame as (number, reason, kind, time, box, positions, velocities, forces); None at the end."""
        cdef bodhi_frame frame
        cdef int status
        cdef cnp.ndarray box
        cdef int i
        with nogil:
            status = check(bodhi_reader_next(self.reader, &frame))
        if status == BODHI_END:
            return None
        if status == BODHI_MISS:
            return frame.number, frame.reason, -1, 0.0, None, None, None, None
        box = None
        if frame.box is not NULL:
            box = np.empty(6, dtype=np.float32)
            for i in range(6):
                (<float *>cnp.PyArray_DATA(box))[i] = frame.box[i]
        return (
            frame.number,
            0,
            frame.kind,
            frame.time,
            box,
            self.show(frame.positions, frame.n_atoms),
            self.show(frame.velocities, frame.n_atoms),
            self.show(frame.forces, frame.n_atoms),
        )


include "link.pxi"
include "server.pxi"
include "push.pxi"
include "../push/gather.pxi"
