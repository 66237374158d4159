# A client's connection to a server (native/net/served.h); `himach.io.server.client` is one.

# In the order of enum wire_counter.
COUNTERS = (
    "pid", "started", "connections", "max_connections", "admitted", "refused", "timed_out", "frames", "frame_bytes",
    "existing", "failed", "batches", "reads", "places", "waiting", "serialize_reads",
    "shared_turns", "taken_bytes",
)
if len(COUNTERS) != N_COUNTERS:
    raise ImportError("the names of the counters do not fit native/net/wire.h")

NUMBERS_AT_ONCE = WIRE_MAX_NUMBERS
RUNS_AT_ONCE = WIRE_MAX_RUNS


def read_key(bytes path):
    """The key of a key file that nobody else may read or write."""
    cdef uint8_t key[KEY_MOST]
    cdef const char *name = path
    cdef size_t size = 0
    with nogil:
        check_served(link_read_key(name, key, &size))
    return (<char *>key)[:size]


@cython.no_gc_clear
cdef class LinkHandle:
    """A connection to a server, from one thread at a time: of this machine, or with its key of another one."""

    cdef served_dataset served
    cdef char *address

    def __cinit__(self):
        self.served.link.fd = -1
        pthread_mutex_init(&self.served.talking, NULL)

    def __init__(self, bytes address, unsigned int owner, int64_t timeout_ms, bytes key=b""):
        cdef const char *text = address
        cdef size_t size = len(address)
        cdef const uint8_t *secret = <const uint8_t *><const char *>key
        cdef size_t secret_bytes = len(key)
        if self.address is not NULL:
            raise ValueError("the connection is open already")
        self.address = <char *>malloc(size + 1)
        if self.address is NULL:
            raise MemoryError
        memcpy(self.address, text, size + 1)
        self.served.timeout_ms = timeout_ms
        self.served.link.interrupted = interrupted
        self.served.remote = secret_bytes > 0
        with nogil:
            check_served(link_dial(&self.served.link, self.address, owner, secret if secret_bytes > 0 else NULL,
                                   secret_bytes, now_ms() + self.served.timeout_ms))
        if self.served.remote:
            # Readers' threads wait for it, which must not wait for the GIL of whoever waits for them.
            self.served.link.interrupted = NULL

    def __dealloc__(self):
        served_close(&self.served)
        pthread_mutex_destroy(&self.served.talking)
        free(self.address)

    def close(self):
        """Close the connection; frames that are being read can be read on."""
        served_close(&self.served)

    cdef bytes ask(self, int verb, str name="", uint64_t first=0, uint64_t last=0, int kind=0):
        """The records of the answer, and what is behind them."""
        cdef wire_question question
        cdef bytes encoded = name.encode()
        cdef const char *text = encoded
        cdef unsigned char *body = NULL
        cdef size_t n = 0
        memset(&question, 0, sizeof(question))
        question.first, question.last, question.kind = first, last, kind
        with nogil:
            check_served(served_ask(&self.served, <wire_verb>verb, &question, text, &body, &n))
        try:
            return (<char *>body)[WIRE_ANSWER_HEAD:n]
        finally:
            free(body)

    def open_dataset(self, str name, bytes generation):
        """Open a dataset for reading."""
        cdef bytes encoded = name.encode()
        cdef const char *text = encoded
        cdef const char *fingerprint = generation
        cdef size_t size = len(generation)
        with nogil:
            check_served(served_open(&self.served, text, fingerprint, size))

    @property
    def identity(self):
        """What tells the store from every other (32 hex digits)."""
        return bytes(self.served.opened.identity[:16]).hex()

    def runs(self, int kind, uint64_t first, uint64_t last):
        """Runs of frames of one kind from `first` to `last`, three numbers each; `RUNS_AT_ONCE` may not be all."""
        return self.ask(WIRE_RUNS, "", first, last, kind)

    def open_reader(self, numbers, wanted):
        """As that of a `DatasetHandle`, of places that the server grants."""
        cdef ReaderHandle handle = ReaderHandle.__new__(ReaderHandle)
        cdef bodhi_read_options options = read_options(wanted)
        cdef cnp.ndarray frames = frame_numbers(numbers)
        handle.origin = self
        with nogil:
            check_served(served_reader_open(&self.served, <int64_t *>cnp.PyArray_DATA(frames), frames.shape[0],
                                            &options, &handle.reader))
        return handle

    def facts(self):
        """How many frames of each kind and bytes there were at its opening."""
        opened = self.served.opened
        return {"native": opened.native, "alien": opened.alien, "bytes": opened.bytes}

    def attachment_part(self, str name, int64_t start):
        """Size of an attachment, which file it is, and a part of it from `start` on; None if there is none."""
        body = self.ask(WIRE_FETCH, name, start)
        size = int.from_bytes(body[:8], "little")
        return None if size >> 63 else (size, body[8:16], body[16:])

    def counters(self):
        """What the server has counted, by name."""
        counted = np.frombuffer(self.ask(WIRE_STATUS), dtype="<u8", count=N_COUNTERS)
        return dict(zip(COUNTERS, counted.tolist(), strict=False))

    def survey(self, str after="", str name=""):
        """What the server says of its datasets of a name, or of all, behind that directory; see `survey`."""
        first, _, last = (after or "0-0").partition("-")
        return self.ask(WIRE_SURVEY, name, int(first, 16), int(last, 16))

    def peers(self):
        """The identity of the server's store, the name of its node, and the addresses of its peers."""
        cdef bytes body = self.ask(WIRE_STATUS)
        node, *peers = body[8 * N_COUNTERS + 16:].decode(errors="replace").split("\n")
        return body[8 * N_COUNTERS:8 * N_COUNTERS + 16].hex(), node, list(filter(None, peers))
