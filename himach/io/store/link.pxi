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
MARKED_AT_ONCE = WIRE_MAX_MARKED


def find_libcrypto():
    """Raise StoreSystemError unless there is OpenSSL's libcrypto, without which no key is of use."""
    check(mac_find())


@cython.no_gc_clear
cdef class LinkHandle:
    """A connection to a server, from one thread at a time: of this machine, or with its key of another one.

    `connected` is a socket that is connected already, of which nobody is on the way: it is this handle's from now on.
    """

    cdef served_dataset served
    cdef char *address

    def __cinit__(self):
        self.served.link.fd = -1
        pthread_mutex_init(&self.served.mutex, NULL)
        pthread_mutex_init(&self.served.talking, NULL)

    def __init__(self, bytes address, unsigned int owner, int64_t timeout_ms, bytes key=b"", int connected=-1):
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
        self.served.remote = secret_bytes > 0 or connected >= 0
        if connected >= 0:
            self.served.link.fd = connected
            self.served.link.address = self.address
        else:
            with nogil:
                check_served(link_dial(&self.served.link, self.address, owner, secret if secret_bytes > 0 else NULL,
                                       secret_bytes, now_ms() + self.served.timeout_ms))
        if self.served.remote:
            # Readers' threads wait for it, which must not wait for the GIL of whoever waits for them.
            self.served.link.interrupted = NULL

    def __dealloc__(self):
        served_free(&self.served)
        pthread_mutex_destroy(&self.served.mutex)
        pthread_mutex_destroy(&self.served.talking)
        free(self.address)

    def close(self):
        """Close the connection; frames that are being read can be read on."""
        served_close(&self.served)

    cdef bytes ask(self, int verb, const void *data, size_t size, int expected):
        """The answer's body."""
        cdef unsigned char *body = NULL
        cdef size_t n = 0
        with nogil:
            check_served(served_ask(&self.served, <wire_verb>verb, data, size, <wire_verb>expected, &body, &n))
        try:
            return (<char *>body)[:n]
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
        return bytes(self.served.identity[:16]).hex()

    def numbers(self, int kind, int64_t start, int64_t capacity=NUMBERS_AT_ONCE):
        """Frame numbers of one kind from `start` on, uint64: `capacity` or some more, or all that there are."""
        found = [np.empty(0, dtype=np.uint64)]
        following, window = start, max(64, min(capacity, MARKED_AT_ONCE))
        while capacity > 0 and following <= MAX_NUMBER:
            frames = range(following, min(following + window, MAX_NUMBER + 1))
            words = np.zeros((2, (len(frames) + 63) // 64), dtype=np.uint64)
            following = self.mark(frames, *words)[kind]
            if following < frames.stop:
                raise ServerProtocolError(f"the server says that frame {following} is behind frame {frames[-1]}")
            bits = np.unpackbits(words[kind].view(np.uint8), bitorder="little")
            some = np.flatnonzero(bits).astype(np.uint64) + np.uint64(frames.start)
            found.append(some)
            capacity -= len(some)
            # The answer names the next frame: windows of frames far apart stay small.
            window = min(2 * window, MARKED_AT_ONCE) if 64 * len(some) >= len(frames) else max(64, window // 4)
        return np.concatenate(found)

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
        """How many frames of each kind there were at its opening."""
        return {"native": self.served.native, "alien": self.served.alien}

    def attachment_part(self, str name, int64_t start):
        """Size of an attachment, which file it is, and a part of it from `start` on; None if there is none."""
        cdef bytes request = start.to_bytes(8, "little") + name.encode()
        body = self.ask(WIRE_FETCH, <const char *>request, len(request), WIRE_ATTACHMENT)
        size = int.from_bytes(body[:8], "little")
        return None if size >> 63 else (size, body[8:16], body[16:])

    def mark(self, frames, native, alien):
        """As that of a `DatasetHandle`; return the first frame of each kind behind these, 2^64 - 1 if there is none."""
        cdef bytes request
        following = ()
        check_words(frames, native, alien)
        for first in range(0, len(frames), MARKED_AT_ONCE):
            some = frames[first:first + MARKED_AT_ONCE]
            request = np.array([some.start, some.step, len(some)], dtype="<i8").tobytes()
            words = np.frombuffer(self.ask(WIRE_MARK, <const char *>request, 24, WIRE_MARKED), dtype="<u8")
            following, words = words[:2].tolist(), words[2:]
            n = len(words) // 2
            native[first // 64:first // 64 + n] |= words[:n]
            alien[first // 64:first // 64 + n] |= words[n:]
        return following

    def counters(self):
        """What the server has counted, by name."""
        counted = np.frombuffer(self.ask(WIRE_STATUS, NULL, 0, WIRE_COUNTERS), dtype="<u8", count=N_COUNTERS)
        return dict(zip(COUNTERS, counted.tolist(), strict=False))

    def survey(self, bytes after=b"", str name=""):
        """What the server says of its datasets of a name, or of all, behind that directory; see `survey`."""
        cdef bytes request = after.ljust(WIRE_DIRECTORY, b"\0") + name.encode()
        return self.ask(WIRE_SURVEY, <const char *>request, len(request), WIRE_SURVEYED)

    def peers(self):
        """The identity of the server's store, and what it says of its node and its peers, as bytes."""
        cdef bytes body = self.ask(WIRE_STATUS, NULL, 0, WIRE_COUNTERS)
        return body[8 * N_COUNTERS:8 * N_COUNTERS + 16], body[8 * N_COUNTERS + 16:]

    def stop(self):
        """Tell the server to end."""
        self.ask(WIRE_STOP, NULL, 0, WIRE_COUNTERS)
