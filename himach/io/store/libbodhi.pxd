"""The C library of the frame store, as Cython sees it: native/bodhi.h and what its boundary needs of the rooms."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "bodhi.h" nogil:
    ctypedef struct bodhi_store:
        pass
    ctypedef struct bodhi_dataset:
        pass
    ctypedef struct bodhi_writer:
        pass
    ctypedef struct bodhi_reader:
        pass
    ctypedef struct bodhi_pusher:
        pass

    enum:
        BODHI_OK, BODHI_END, BODHI_MISS, BODHI_EXISTS, BODHI_ERROR_ARGUMENT, BODHI_ERROR_MEMORY, BODHI_ERROR_SYSTEM,
        BODHI_ERROR_FULL, BODHI_ERROR_POISONED, BODHI_ERROR_VERSION, BODHI_ERROR_NOT_FOUND, BODHI_ERROR_BUSY,
        BODHI_ERROR_NETWORK, BODHI_ERROR_UNSAFE, BODHI_ERROR_CONFLICT, BODHI_ERROR_UNREACHABLE, BODHI_ERROR_PROTOCOL,
        BODHI_ERROR_INTERRUPTED, BODHI_NATIVE, BODHI_ALIEN, BODHI_POSITIONS, BODHI_VELOCITIES, BODHI_FORCES,
        BODHI_IDS, BODHI_REASON_ABSENT, BODHI_REASON_DAMAGED, BODHI_REASON_IO, BODHI_REASON_GONE,
        BODHI_REASON_RESOURCES, BODHI_REASON_UNREACHABLE, BODHI_CREATE, BODHI_READ_ONLY, BODHI_ALLOW_NETWORK,
        BODHI_ENCODING_AUTO, BODHI_ENCODING_RAW, BODHI_DIRECT_AUTO, BODHI_DIRECT_ON, BODHI_DIRECT_OFF

    const int64_t BODHI_MAX_NUMBER

    # Members are looked up in the header by name, so that the order here does not matter.
    ctypedef struct bodhi_frame:
        int64_t number
        double time
        int64_t n_atoms
        float *positions
        float *velocities
        float *forces
        float *box
        int32_t kind, reason
        uint32_t *ids
    ctypedef struct bodhi_write_options:
        int64_t segment_bytes, block_atoms
        int32_t encoding
    ctypedef struct bodhi_range:
        int64_t first, last
    ctypedef struct bodhi_read_options:
        int32_t fields, direct, no_thread
        int64_t request_bytes, ring
        const bodhi_range *atoms
        int64_t n_ranges
        int32_t check_only
    ctypedef struct bodhi_facts:
        int64_t native, alien, bytes, segments, refused_segments, last_used, scanned
    ctypedef struct bodhi_usage:
        int64_t used, free, size, reserve
    ctypedef struct bodhi_stored_segment:
        char directory[40]
        uint64_t id
        int32_t kind, pushed
        int64_t bytes, last_used
    ctypedef struct bodhi_segment_facts:
        uint64_t id
        int32_t kind, busy
        int64_t bytes, frames, last_written

    ctypedef struct bodhi_place:
        uint64_t segment
        int32_t kind, found
        int64_t offset, length

    const char *bodhi_message()
    int bodhi_open(const char *directory, int flags, bodhi_store **store)
    void bodhi_identity(const bodhi_store *store, uint8_t *identity)
    void bodhi_store_set_quota(bodhi_store *store, int64_t size)
    int bodhi_survey(const char *directory, bodhi_usage *usage, bodhi_stored_segment **segments, int64_t *n)
    int bodhi_store_evict(bodhi_store *store, const bodhi_stored_segment *segment)
    int bodhi_store_sweep(bodhi_store *store, const bodhi_stored_segment *segment)
    void bodhi_close(bodhi_store *store)
    int bodhi_dataset_open(bodhi_store *store, const char *name, const void *generation, size_t generation_bytes,
                           int flags, bodhi_dataset **dataset)
    int bodhi_dataset_open_directory(bodhi_store *store, const char *directory, bodhi_dataset **dataset)
    const char *bodhi_dataset_name(const bodhi_dataset *dataset)
    const void *bodhi_dataset_generation(const bodhi_dataset *dataset, size_t *size)
    const char *bodhi_dataset_directory(const bodhi_dataset *dataset)
    int bodhi_dataset_refresh(bodhi_dataset *dataset)
    int bodhi_dataset_query(bodhi_dataset *dataset, bodhi_facts *facts)
    int bodhi_dataset_numbers(bodhi_dataset *dataset, int kind, int64_t first, uint64_t *numbers, int64_t capacity,
                              int64_t *count)
    int bodhi_dataset_mark(bodhi_dataset *dataset, int64_t first, int64_t step, int64_t count, uint64_t *native,
                           uint64_t *alien)
    int bodhi_dataset_seal(bodhi_dataset *dataset, int64_t least)
    int bodhi_dataset_locate(bodhi_dataset *dataset, const int64_t *numbers, int64_t n, bodhi_place *places)
    int bodhi_dataset_drop(bodhi_dataset *dataset, int kind, const int64_t *numbers, int64_t n, int64_t *dropped)
    int bodhi_dataset_segments(bodhi_dataset *dataset, bodhi_segment_facts *facts, int64_t capacity, int64_t *count)
    void bodhi_dataset_close(bodhi_dataset *dataset)
    int bodhi_writer_open(bodhi_dataset *dataset, int kind, const bodhi_write_options *options, bodhi_writer **writer)
    int bodhi_dataset_atoms(bodhi_dataset *dataset, const int64_t *numbers, int64_t n, uint32_t *atoms)
    int bodhi_append(bodhi_writer *writer, const bodhi_frame *frame)
    int bodhi_flush(bodhi_writer *writer, int durable)
    int64_t bodhi_writer_written(const bodhi_writer *writer)
    int bodhi_writer_close(bodhi_writer *writer)
    int bodhi_reader_open(bodhi_dataset *dataset, const int64_t *numbers, int64_t n, const bodhi_read_options *options,
                          bodhi_reader **reader)
    int bodhi_reader_next(bodhi_reader *reader, bodhi_frame *frame)
    int64_t bodhi_reader_bytes(const bodhi_reader *reader)
    void bodhi_reader_close(bodhi_reader *reader)

    ctypedef struct bodhi_push_options:
        const char *key_file
        int32_t durable, timeout_ms
        int64_t batch_bytes
        int (*interrupted)() noexcept nogil
        const char *identity
    ctypedef struct bodhi_push_facts:
        int64_t acknowledged, in_flight, given_again, servers_up
    int bodhi_push_open(const char *const *servers, int n, const char *dataset, const void *generation,
                        size_t generation_bytes, const bodhi_push_options *options, bodhi_pusher **pusher)
    int bodhi_push(bodhi_pusher *pusher, const bodhi_frame *frame)
    int bodhi_push_flush(bodhi_pusher *pusher)
    void bodhi_push_query(const bodhi_pusher *pusher, bodhi_push_facts *facts)
    ctypedef struct bodhi_slice_options:
        int64_t n_atoms, rank
        const char *store
        int64_t quota
        const char *launch
    int bodhi_push_open_slices(const char *const *servers, int n, const char *dataset, const void *generation,
                               size_t generation_bytes, const bodhi_push_options *options,
                               const bodhi_slice_options *slices, bodhi_pusher **pusher)
    int bodhi_push_slice(bodhi_pusher *pusher, const bodhi_frame *frame, const int64_t *ids)
    const char *BODHI_SLICES_SUFFIX
    int bodhi_push_close(bodhi_pusher *pusher)
    void bodhi_push_abandon(bodhi_pusher *pusher)

cdef extern from "base/crc32c.h" nogil:
    uint32_t bodhi_crc32c(uint32_t crc, const void *data, size_t size)

cdef extern from "base/threads.h" nogil:
    int64_t now_ms()

cdef extern from "write/writer.h" nogil:
    int writer_begin_streaming(bodhi_writer *w, bint direct)

cdef extern from "assemble/gather.h" nogil:
    ctypedef struct parcel:
        unsigned char *bytes
        size_t size
    ctypedef struct gather:
        parcel *parcels
        size_t n_covers
    int gather_open(int64_t n_atoms, int32_t n_processes, int32_t own, gather **opened)
    void gather_close(gather *g)
    int gather_begin(gather *g, const int64_t *numbers, const int32_t *assembler, size_t n)
    int gather_read(gather *g, int64_t rank, bodhi_reader *reader, int64_t *missed)
    int gather_take(gather *g, unsigned char *bytes, size_t size)
    int gather_write(gather *g, bodhi_writer *writer, int64_t *number)
    const char *gather_why(const gather *g)

cdef extern from "server/serve.h" nogil:
    ctypedef struct bodhi_server:
        pass
    ctypedef struct bodhi_serve_options:
        int listener, remote
        const uint8_t *key
        size_t key_bytes
        const uint32_t *allowed
        int64_t n_allowed
        int32_t serialize_reads, max_connections, message_ms, idle_ms, batch_ms
        int64_t quota, memory
        const char *peers
    int bodhi_server_open(const char *directory, const bodhi_serve_options *options, bodhi_server **server)
    int bodhi_server_run(bodhi_server *server)
    int bodhi_server_wake(const bodhi_server *server)
    void bodhi_server_close(bodhi_server *server)

cdef extern from "net/wire.h" nogil:
    enum:
        WIRE_MAX_NUMBERS, WIRE_MAX_RUNS, WIRE_ANSWER_HEAD, WIRE_RUNS, WIRE_FETCH, WIRE_SURVEY, WIRE_STATUS,
        N_COUNTERS
    ctypedef int wire_verb "enum wire_verb"
    ctypedef struct wire_question:
        uint64_t first, last
        uint32_t kind
    ctypedef struct wire_opened:
        uint64_t native, alien, bytes
        uint8_t identity[16]

cdef extern from "net/link.h" nogil:
    enum:
        KEY_MOST
    int link_read_key(const char *path, uint8_t *key, size_t *size)
    ctypedef struct wire_link:
        char *address
        int fd
        int (*interrupted)() noexcept nogil
    int link_dial(wire_link *link, char *address, unsigned int owner, const uint8_t *key, size_t key_bytes,
                  int64_t deadline)

cdef extern from "pthread.h" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t *mutex, const void *attributes)
    int pthread_mutex_destroy(pthread_mutex_t *mutex)

cdef extern from "net/served.h" nogil:
    ctypedef struct served_dataset:
        wire_link link
        int64_t timeout_ms
        wire_opened opened
        bint remote
        pthread_mutex_t talking
    int served_open(served_dataset *d, const char *name, const void *generation, size_t generation_bytes)
    int served_ask(served_dataset *d, wire_verb verb, const wire_question *question, const char *name,
                   unsigned char **body, size_t *n)
    int served_reader_open(served_dataset *d, const int64_t *numbers, int64_t n, const bodhi_read_options *options,
                           bodhi_reader **reader)
    void served_close(served_dataset *d)

cdef extern from "segments/segment.h" nogil:
    enum: UNIT, LOAD_UNSEALED, LOAD_BEYOND
    ctypedef struct place:
        uint64_t number
        uint32_t offset, length
    ctypedef struct tombstone:
        uint64_t segment, offset
    ctypedef struct findings:
        place *places
        tombstone *tombstones
        size_t n_places, n_tombstones
        uint64_t lost
    ctypedef struct segment_key:
        pass
    ctypedef struct segment:
        segment_key key
        bint refused
    bint segment_from_name(segment *s, const char *name, uint64_t dataset, uint64_t generation)
    int segment_load(int directory, segment *s, uint32_t ordinal, unsigned how, findings *content)
    void findings_free(findings *content)

cdef extern from "write/writer.h" nogil:
    ctypedef struct stored_frame:
        pass
    int stored_read(int fd, const segment_key *key, uint64_t offset, uint64_t length, stored_frame *stored)
    void stored_free(stored_frame *stored)
