"""Boundary to the sockets of the frame store (native/server, native/net): check, convert, release the GIL, call, raise.

`ServerHandle` runs the event loop, `LinkHandle` is a client's connection; `himach.io.server.control` and `himach.io.server.client` are
their faces.
"""

import numpy as np

cimport numpy as cnp
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from himach.io.store.bodhi import ERRORS as STORE_ERRORS
from himach.io.store.bodhi import StoreError, atom_ranges

cnp.import_array()

include "../store/common.pxi"

cdef extern from "bodhi.h" nogil:
    enum:
        BODHI_OK
        BODHI_END
        BODHI_ERROR_UNREACHABLE
        BODHI_ERROR_PROTOCOL
        BODHI_ERROR_UNSAFE

cdef extern from "base/clock.h" nogil:
    int64_t now_ms()

cdef extern from "net/wire.h" nogil:
    enum:
        WIRE_TOKEN
        WIRE_MAX_NUMBERS
        WIRE_MAX_SEGMENTS
        WIRE_PLACE_BYTES
        WIRE_OPENED
        WIRE_HAVE
        WIRE_KINDS
        WIRE_LIST
        WIRE_NUMBERS
        WIRE_READ
        WIRE_PLACES
        WIRE_DONE
        WIRE_STATUS
        WIRE_COUNTERS
        WIRE_STOP
        WIRE_STOPPING
        WIRE_PUSHES
        N_COUNTERS
    ctypedef int wire_verb "enum wire_verb"
    ctypedef struct wire_part:
        const void *data
        size_t size
    ctypedef struct wire_parser:
        unsigned char *body
        uint32_t size

cdef extern from "server/serve.h" nogil:
    ctypedef struct bodhi_server:
        pass
    ctypedef struct bodhi_serve_options:
        int listener
        const uint32_t *allowed
        int64_t n_allowed
        int32_t serialize_reads
        int32_t max_connections
        int32_t message_ms
        int32_t idle_ms
        int32_t batch_ms
        uint32_t max_frame
        int64_t quota
    int bodhi_server_open(const char *directory, const bodhi_serve_options *options, bodhi_server **server)
    int bodhi_server_run(bodhi_server *server)
    int bodhi_server_wake(const bodhi_server *server)
    int bodhi_server_admit(bodhi_server *server, int fd)
    void bodhi_server_close(bodhi_server *server)

cdef extern from "net/link.h" nogil:
    ctypedef struct wire_link:
        int fd
        wire_parser incoming "in"
        int *descriptors
        int n_descriptors
        int (*interrupted)() noexcept nogil
    int link_dial(wire_link *link, char *address, unsigned int owner, const uint8_t *key, size_t key_bytes,
                  int64_t deadline)
    int link_send_message(wire_link *link, wire_verb verb, const wire_part *parts, int n, int64_t deadline)
    int link_ask(wire_link *link, wire_verb verb, const wire_part *parts, int n, wire_verb expected, int64_t deadline)
    int link_open(wire_link *link, uint32_t flags, const uint8_t *token, const char *name, const void *generation,
                  size_t generation_bytes, int64_t deadline)
    void link_close(wire_link *link)

cdef extern from "store/record.h" nogil:
    enum parsed:
        PARSED
    enum:
        FIELD_COUNT
    ctypedef struct segment_key:
        uint64_t segment
        uint64_t dataset
        uint64_t generation
    ctypedef struct record_header:
        bint has_box
        float *box
        uint32_t head_bytes
        uint64_t number
        double time
        uint32_t n_atoms
        uint64_t length
    parsed parse_record(const unsigned char *data, size_t size, const segment_key *key, uint64_t offset,
                        record_header *header, size_t *needed)

cdef extern from "read/unpack.h" nogil:
    ctypedef struct bodhi_range:
        pass
    ctypedef struct selection:
        unsigned int fields
        const bodhi_range *ranges
        size_t n_ranges
    ctypedef struct piece:
        uint64_t begin
        uint64_t end
    ctypedef struct block_entry:
        uint32_t bytes
    ctypedef struct wanted_block:
        uint64_t offset
        block_entry entry
    ctypedef struct block_walk:
        const unsigned char *record
        const record_header *header
        const selection *asked
    enum unpacked:
        UNPACKED
    bint next_wanted_block(block_walk *walk, wanted_block *block)
    bint is_readable(const record_header *header)
    unpacked unpack_fields(unsigned char *record, const record_header *header, const selection *asked,
                           const piece *pieces, size_t n_pieces, float *positions, float **fields)

cdef extern from "base/hmac.h" nogil:
    enum:
        HMAC_BYTES
    void bodhi_hmac(const void *key, size_t key_bytes, const void *data, size_t size, uint8_t *out)


class ServerUnreachableError(StoreError):
    """No server answers in time."""


class ServerProtocolError(StoreError):
    """What answers is no server of this version, or its bytes were damaged on their way."""


class ServerRefusedError(StoreError):
    """The server refuses this user or key, or is not the one that it should be."""


ERRORS = {
    **STORE_ERRORS,
    BODHI_ERROR_UNREACHABLE: ServerUnreachableError,
    BODHI_ERROR_PROTOCOL: ServerProtocolError,
    BODHI_ERROR_UNSAFE: ServerRefusedError,
}

# In the order of enum wire_counter.
COUNTERS = (
    "pid", "started", "connections", "max_connections", "admitted", "refused", "timed_out", "frames", "frame_bytes",
    "existing", "failed", "batches", "reads", "places", "waiting", "serialize_reads",
    "shared_turns",
)
if len(COUNTERS) != N_COUNTERS:
    raise ImportError("the names of the counters do not fit native/net/wire.h")

PLACE = np.dtype(
    [("segment", "<u8"), ("offset", "<u8"), ("length", "<u8"), ("descriptor", "<i4"), ("kind", "<u4")]
)
NUMBERS_AT_ONCE = WIRE_MAX_NUMBERS


cdef cnp.ndarray wanted_numbers(object numbers):
    cdef cnp.ndarray wanted = np.ascontiguousarray(numbers, dtype="<i8").reshape(-1)
    if wanted.shape[0] > NUMBERS_AT_ONCE:
        raise ValueError(f"{wanted.shape[0]} frame numbers at once; a message takes {NUMBERS_AT_ONCE}")
    return wanted


cdef selection asked_for(int fields, cnp.ndarray ranges):
    """A selection of fields (0: all) and ranges of atoms (None: all), which it points to."""
    cdef selection asked
    memset(&asked, 0, sizeof(asked))
    asked.fields = fields if fields else 7
    if ranges is not None:
        asked.ranges = <const bodhi_range *>cnp.PyArray_DATA(ranges)
        asked.n_ranges = ranges.shape[0]
    return asked


def hmac_sha256(bytes key, bytes data):
    """The C library's HMAC-SHA256, for tests beside Python's."""
    cdef uint8_t out[32]
    bodhi_hmac(<const char *>key, len(key), <const char *>data, len(data), out)
    return bytes(out[:HMAC_BYTES])


cdef class ServerHandle:
    """The event loop of a server."""

    cdef bodhi_server *server

    def __init__(self, bytes directory, int listener, allowed=(), bint serialize_reads=False, int max_connections=0,
                 int message_ms=0, int idle_ms=0, int batch_ms=0, uint32_t max_frame=0, int64_t quota=0):
        cdef bodhi_serve_options options
        cdef cnp.ndarray users = np.ascontiguousarray(list(allowed), dtype=np.uint32)
        cdef const char *path = directory
        cdef int status
        if self.server is not NULL:
            raise ValueError("the server is open already")
        memset(&options, 0, sizeof(options))
        options.listener = listener
        options.allowed = <const uint32_t *>cnp.PyArray_DATA(users)
        options.n_allowed = users.shape[0]
        options.serialize_reads = serialize_reads
        options.max_connections = max_connections
        options.message_ms = message_ms
        options.idle_ms = idle_ms
        options.batch_ms = batch_ms
        options.max_frame = max_frame
        options.quota = quota
        with nogil:
            status = bodhi_server_open(path, &options, &self.server)
        check(status)

    def __dealloc__(self):
        bodhi_server_close(self.server)

    cdef int require_open(self) except -1:
        if self.server is NULL:
            raise ValueError("the server is closed")
        return 0

    def run(self):
        """Run until woken (True) or stopped by a client (False); Python's signal handlers run in between."""
        cdef int status
        self.require_open()
        with nogil:
            status = bodhi_server_run(self.server)
        return check(status) != BODHI_END

    @property
    def wake(self):
        """Descriptor to write a byte to, which makes `run` return."""
        self.require_open()
        return bodhi_server_wake(self.server)

    def admit(self, int fd):
        """Hand over an admitted socket; it is the server's from now on."""
        self.require_open()
        check(bodhi_server_admit(self.server, fd))

    def close(self):
        """Keep and acknowledge what was pushed, and end."""
        cdef bodhi_server *server = self.server
        self.server = NULL
        with nogil:
            bodhi_server_close(server)


cdef class LinkHandle:
    """A connection to a server of this machine, from one thread at a time."""

    cdef wire_link link
    cdef char *address
    cdef int64_t timeout_ms
    cdef segment_key key
    cdef readonly object native_count
    cdef readonly object alien_count
    cdef readonly bytes identity

    def __cinit__(self):
        self.link.fd = -1
        self.address = NULL

    def __init__(self, bytes address, unsigned int owner, int64_t timeout_ms):
        cdef const char *text = address
        cdef size_t size = len(address)
        cdef int status
        if self.address is not NULL:
            raise ValueError("the connection is open already")
        self.address = <char *>malloc(size + 1)
        if self.address is NULL:
            raise MemoryError
        memcpy(self.address, text, size + 1)
        self.timeout_ms = timeout_ms
        self.link.interrupted = interrupted
        with nogil:
            status = link_dial(&self.link, self.address, owner, NULL, 0, now_ms() + self.timeout_ms)
        check(status)

    def __dealloc__(self):
        self.close()
        free(self.address)

    def close(self):
        """Close the connection."""
        link_close(&self.link)

    cdef int ask(self, int verb, const void *data, size_t size, int expected) except -1:
        cdef wire_part part
        cdef int status
        part.data = data
        part.size = size
        if self.link.fd < 0:
            raise ServerUnreachableError("the connection is closed")
        with nogil:
            status = link_ask(&self.link, <wire_verb>verb, &part, 1, <wire_verb>expected,
                              now_ms() + self.timeout_ms)
            if status < 0:
                link_close(&self.link)  # an answer that comes late must not be taken for another one
        check(status)
        return 0

    cdef bytes body(self):
        return (<char *>self.link.incoming.body)[:self.link.incoming.size]

    def open(self, str name, bytes generation):
        """Open a dataset for reading."""
        cdef uint8_t token[16]
        cdef bytes encoded = name.encode()
        cdef const char *text = encoded
        cdef const char *fingerprint = generation
        cdef size_t size = len(generation)
        cdef int status
        memset(token, 0, sizeof(token))
        with nogil:
            status = link_open(&self.link, 0, token, text, fingerprint, size, now_ms() + self.timeout_ms)
        check(status)
        cdef bytes body = self.body()
        self.native_count = int.from_bytes(body[:8], "little")
        self.alien_count = int.from_bytes(body[8:16], "little")
        self.identity = body[16:32]
        self.key.dataset = int.from_bytes(body[32:40], "little")
        self.key.generation = int.from_bytes(body[40:48], "little")

    def numbers(self, int kind, int64_t start):
        """Up to NUMBERS_AT_ONCE frame numbers of one kind from `start` on, uint64."""
        request = kind.to_bytes(8, "little") + start.to_bytes(8, "little")
        self.ask(WIRE_LIST, <const char *>(<bytes>request), 16, WIRE_NUMBERS)
        return np.frombuffer(self.body(), dtype="<u8")

    def have(self, numbers):
        """Per frame 0 (not there), 1 (native) or 2 (alien), uint8."""
        cdef cnp.ndarray wanted = wanted_numbers(numbers)
        self.ask(WIRE_HAVE, cnp.PyArray_DATA(wanted), wanted.nbytes, WIRE_KINDS)
        return np.frombuffer(self.body(), dtype=np.uint8)

    def places(self, numbers):
        """Places of the frames (`PLACE`), and the descriptors that they speak of, which are the caller's."""
        cdef cnp.ndarray wanted = wanted_numbers(numbers)
        self.ask(WIRE_READ, cnp.PyArray_DATA(wanted), wanted.nbytes, WIRE_PLACES)
        descriptors = [self.link.descriptors[i] for i in range(self.link.n_descriptors)]
        self.link.n_descriptors = 0
        return np.frombuffer(self.body(), dtype=PLACE), descriptors

    def done(self):
        """The places were read: the next one's turn."""
        cdef int status
        with nogil:
            status = link_send_message(&self.link, <wire_verb>WIRE_DONE, NULL, 0, now_ms() + self.timeout_ms)
        check(status)

    def blocks(self, const unsigned char[::1] head, uint64_t segment, uint64_t offset, uint64_t number, int fields=0,
               atoms=None):
        """Where the blocks that are asked for lie in a record, by its head.

        uint64 (n, 2), first byte and last + 1, ascending; the head is the first. None if it is not right or not all of
        it is there.
        """
        cdef record_header header
        cdef segment_key key = self.key
        cdef size_t size = head.shape[0]
        cdef size_t needed
        cdef cnp.ndarray ranges = None if atoms is None else atom_ranges(atoms)
        cdef selection asked = asked_for(fields, ranges)
        cdef block_walk walk
        cdef wanted_block block
        key.segment = segment
        if (size == 0 or parse_record(&head[0], size, &key, offset, &header, &needed) != PARSED
                or not is_readable(&header) or header.number != number):
            return None
        memset(&walk, 0, sizeof(walk))
        walk.record, walk.header, walk.asked = &head[0], &header, &asked
        found = [(0, header.head_bytes)]
        while next_wanted_block(&walk, &block):
            found.append((block.offset, block.offset + block.entry.bytes))
        return np.array(found, dtype=np.uint64)

    def unpack(self, const unsigned char[::1] record, uint64_t segment, uint64_t offset, uint64_t number, int fields=0,
               atoms=None, pieces=None):
        """A checked frame as (time, box, positions, velocities, forces), copies; None if the record is not right.

        `pieces`: which bytes of the record were read, as `blocks` says it and head and all; None for all of them.
        """
        cdef record_header header
        cdef segment_key key = self.key
        cdef size_t size = record.shape[0]
        cdef size_t needed
        cdef cnp.ndarray ranges = None if atoms is None else atom_ranges(atoms)
        cdef selection asked = asked_for(fields, ranges)
        cdef cnp.ndarray there = np.ascontiguousarray([(0, size)] if pieces is None else pieces, dtype=np.uint64)
        cdef const piece *first = <const piece *>cnp.PyArray_DATA(there)
        cdef size_t n_pieces = there.shape[0]
        cdef float *found[FIELD_COUNT]
        cdef cnp.ndarray positions
        cdef cnp.ndarray array
        cdef float *decoded
        cdef bint right
        key.segment = segment
        if size == 0:
            return None
        with nogil:
            right = (parse_record(&record[0], size, &key, offset, &header, &needed) == PARSED
                     and is_readable(&header) and header.number == number and header.length == size)
        if not right:
            return None
        positions = np.empty((header.n_atoms, 3), dtype=np.float32)
        decoded = <float *>cnp.PyArray_DATA(positions)
        with nogil:
            right = unpack_fields(<unsigned char *>&record[0], &header, &asked, first, n_pieces, decoded,
                                  found) == UNPACKED
        if not right:
            return None
        arrays = []
        for i in range(FIELD_COUNT):
            array = None
            if found[i] is decoded:
                array = positions
            elif found[i] is not NULL:
                array = np.empty((header.n_atoms, 3), dtype=np.float32)
                memcpy(cnp.PyArray_DATA(array), found[i], array.nbytes)
            arrays.append(array)
        box = np.array([header.box[i] for i in range(6)], dtype=np.float32) if header.has_box else None
        return header.time, box, *arrays

    def counters(self):
        """What the server has counted, by name."""
        self.ask(WIRE_STATUS, NULL, 0, WIRE_COUNTERS)
        return dict(zip(COUNTERS, np.frombuffer(self.body(), dtype="<u8").tolist(), strict=False))

    def stop(self):
        """Tell the server to end."""
        self.ask(WIRE_STOP, NULL, 0, WIRE_STOPPING)
