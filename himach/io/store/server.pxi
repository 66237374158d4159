# The event loop of a server (native/server/serve.h); `himach.io.server.control` is its face.


cdef class ServerHandle:
    """The event loop of a server."""

    cdef bodhi_server *server
    cdef object users, peers, key  # which the server reads

    def __init__(self, bytes directory, int listener, allowed=(), bint serialize_reads=False, int max_connections=0,
                 int message_ms=0, int idle_ms=0, int batch_ms=0, int64_t quota=0,
                 int64_t memory=0, bytes peers=b"", int remote=-1, bytes key=b""):
        cdef bodhi_serve_options options
        cdef const char *addresses = peers
        cdef cnp.ndarray users = np.ascontiguousarray(list(allowed), dtype=np.uint32)
        cdef const char *path = directory
        if self.server is not NULL:
            raise ValueError("the server is open already")
        self.users, self.peers, self.key = users, peers, key
        memset(&options, 0, sizeof(options))
        options.listener = listener
        options.allowed = <const uint32_t *>cnp.PyArray_DATA(users)
        options.n_allowed = users.shape[0]
        options.serialize_reads = serialize_reads
        options.max_connections = max_connections
        options.message_ms = message_ms
        options.idle_ms = idle_ms
        options.batch_ms = batch_ms
        options.quota = quota
        options.memory = memory
        options.peers = addresses
        options.remote = remote
        options.key = <const uint8_t *><const char *>key if key else NULL
        options.key_bytes = len(key)
        with nogil:
            check_served(bodhi_server_open(path, &options, &self.server))

    def __dealloc__(self):
        bodhi_server_close(self.server)

    cdef int require_open(self) except -1:
        if self.server is NULL:
            raise ValueError("the server is closed")
        return 0

    def run(self):
        """Run until woken."""
        self.require_open()
        with nogil:
            check_served(bodhi_server_run(self.server))

    @property
    def wake(self):
        """Descriptor to write a byte to, which makes `run` return."""
        self.require_open()
        return bodhi_server_wake(self.server)

    def close(self):
        """Keep and acknowledge what was pushed, and end."""
        cdef bodhi_server *server = self.server
        self.server = NULL
        with nogil:
            bodhi_server_close(server)
