"""Boundary to the pushing of frames (`bodhi_push` of native/bodhi.h): check, convert, release the GIL, call, raise.

`PusherHandle` pushes frames to several servers; `himach.io.push.writer` is its face.
"""

import numpy as np

cimport numpy as cnp
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from himach.io.server.serving import ERRORS

cnp.import_array()

include "../store/common.pxi"

cdef extern from "bodhi.h" nogil:
    ctypedef struct bodhi_pusher:
        pass
    ctypedef struct bodhi_push_options:
        const char *key_file
        int32_t durable
        int32_t timeout_ms
        int64_t batch_bytes
        int (*interrupted)() noexcept nogil
    ctypedef struct bodhi_push_facts:
        int64_t acknowledged
        int64_t in_flight
        int64_t given_again
        int64_t servers_up
    int bodhi_push_open(const char *const *servers, int n, const char *dataset, const void *generation,
                        size_t generation_bytes, const bodhi_push_options *options, bodhi_pusher **pusher)
    int bodhi_push(bodhi_pusher *pusher, const bodhi_frame *frame)
    int bodhi_push_flush(bodhi_pusher *pusher)
    void bodhi_push_query(const bodhi_pusher *pusher, bodhi_push_facts *facts)
    int bodhi_push_close(bodhi_pusher *pusher)
    void bodhi_push_abandon(bodhi_pusher *pusher)


cdef class PusherHandle:
    """Pushes frames to several servers."""

    cdef bodhi_pusher *pusher

    def __init__(self, list servers, str dataset, bytes generation, key_file, bint durable, int timeout_ms,
                 int64_t batch_bytes):
        cdef bodhi_push_options options
        cdef const char **addresses
        cdef bytes name = dataset.encode()
        cdef const char *text = name
        cdef const char *fingerprint = generation
        cdef size_t size = len(generation)
        cdef int n = len(servers)
        cdef int status
        encoded = [address.encode() for address in servers]
        if b"\0" in name or any(b"\0" in address for address in encoded):
            raise ValueError("the dataset's name or an address holds a NUL byte")
        memset(&options, 0, sizeof(options))
        if key_file is not None:
            options.key_file = <bytes>key_file
        options.durable = durable
        options.timeout_ms = timeout_ms
        options.batch_bytes = batch_bytes
        options.interrupted = interrupted
        addresses = <const char **>malloc((n + 1) * sizeof(const char *))
        if addresses is NULL:
            raise MemoryError
        for i in range(n):
            addresses[i] = <bytes>encoded[i]
        with nogil:
            status = bodhi_push_open(addresses, n, text, fingerprint, size, &options, &self.pusher)
        free(addresses)
        check(status)

    def __dealloc__(self):
        # Frames that were never acknowledged may be lost here without a word: who wants to know calls close().
        global deaf
        cdef int status
        deaf += 1
        with nogil:
            status = bodhi_push_close(self.pusher)
        deaf -= 1
        if status < 0:
            return

    cdef int require_open(self) except -1:
        if self.pusher is NULL:
            raise ValueError("the writer is closed")
        return 0

    def push(self, int64_t number, double time, positions, box, velocities, forces):
        """Push a frame."""
        cdef bodhi_frame frame
        cdef int status
        self.require_open()
        box = fill(&frame, number, time, positions, box, velocities, forces)
        with nogil:
            status = bodhi_push(self.pusher, &frame)
        check(status)

    def flush(self):
        """Wait until everything is acknowledged."""
        cdef int status
        self.require_open()
        with nogil:
            status = bodhi_push_flush(self.pusher)
        check(status)

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
        with nogil:
            bodhi_push_abandon(pusher)

    def close(self):
        """Flush and close."""
        cdef bodhi_pusher *pusher = self.pusher
        cdef int status
        self.pusher = NULL
        with nogil:
            status = bodhi_push_close(pusher)
        check(status)
