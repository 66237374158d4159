/* Bodhi: a node-local store of molecular-dynamics frames. The one public header: open, write, read, query, close.
 *
 * A store is a directory on a local disk. It holds datasets (a trajectory under a name, in one generation of its
 * content), a dataset holds frames by number, natively (pushed here by a writer) or as aliens (kept here after a read
 * miss). Any number of processes may write and read one store at once; no server is needed and nobody owns the store. A
 * frame is there completely or not at all, and every byte of a frame that is handed out was checked (unless checking is
 * turned off).
 *
 * Conventions
 *   - Functions return a status: BODHI_OK (0), a positive status that is no error (BODHI_END, BODHI_MISS,
 * BODHI_EXISTS), or a negative error. bodhi_message() then says what was wrong, in this thread, until the next call.
 *   - Handles are opaque. A store must outlive its datasets, and a dataset its writers and readers. Closing NULL is
 * allowed.
 *   - A store or dataset may be used from several threads at once, a writer or reader from one thread at a time. A
 * handle must not be used in a child after fork().
 *   - Integers are 64 bits and handles are pointers, so that Fortran binds with ISO_C_BINDING: int64_t is c_int64_t, a
 *     handle is type(c_ptr), bodhi_frame is a bind(c) type.
 *   - Units are those of the caller; himach stores ps, Angstrom, degrees, Angstrom/ps and kJ/(mol Angstrom). */
#ifndef BODHI_H
#define BODHI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define BODHI_CHECKED __attribute__((warn_unused_result))
#else
#define BODHI_CHECKED
#endif

typedef struct bodhi_store bodhi_store;
typedef struct bodhi_dataset bodhi_dataset;
typedef struct bodhi_writer bodhi_writer;
typedef struct bodhi_reader bodhi_reader;
typedef struct bodhi_pusher bodhi_pusher;

enum bodhi_status {
    BODHI_OK = 0,
    BODHI_END = 1,             /* the reader has delivered every frame asked for */
    BODHI_MISS = 2,            /* this frame cannot be had here; bodhi_frame.reason says why */
    BODHI_EXISTS = 3,          /* just this frame is there already; nothing was written */
    BODHI_ERROR_ARGUMENT = -1, /* an argument breaks a precondition */
    BODHI_ERROR_MEMORY = -2,   /* out of memory */
    BODHI_ERROR_SYSTEM = -3,   /* a system call failed, or a library is missing; the message has its name and reason */
    BODHI_ERROR_FULL = -4,     /* no space or quota left; what was being written is undone, the writer stays usable */
    BODHI_ERROR_POISONED = -5, /* an earlier write or fsync of this writer failed: only closing is left */
    BODHI_ERROR_VERSION = -6,  /* written by another version of the format; the message has its number */
    BODHI_ERROR_NOT_FOUND = -7,
    BODHI_ERROR_BUSY = -8,         /* a writer or reader holds it */
    BODHI_ERROR_NETWORK = -9,      /* the directory lies on a network file system */
    BODHI_ERROR_UNSAFE = -10,      /* the directory belongs to another user, or others may write to it */
    BODHI_ERROR_CONFLICT = -11,    /* what is there is another's: a frame of this number with other content, frames of
                                      another simulation, or of a dataset whose name has the same hash */
    BODHI_ERROR_UNREACHABLE = -12, /* no server answers in time */
    BODHI_ERROR_PROTOCOL = -13,    /* what answers is no server of this version, or its bytes were damaged */
    BODHI_ERROR_INTERRUPTED = -14  /* the caller's interrupted() said so */
};

/* The largest frame number, 2^53 - 1: what every language and format that hands numbers on can say exactly. */
#define BODHI_MAX_NUMBER INT64_C(9007199254740991)

enum bodhi_kind { BODHI_NATIVE = 0, BODHI_ALIEN = 1 };

/* What a frame holds; positions are always there. */
enum bodhi_field { BODHI_POSITIONS = 1, BODHI_VELOCITIES = 2, BODHI_FORCES = 4, BODHI_IDS = 8 };

/* Why a frame was a miss. */
enum bodhi_reason {
    BODHI_REASON_ABSENT = 1,     /* not in the index */
    BODHI_REASON_DAMAGED = 2,    /* a checksum or a header is wrong, or the segment was cut */
    BODHI_REASON_IO = 3,         /* the disk returned an error */
    BODHI_REASON_GONE = 4,       /* its segment was evicted meanwhile */
    BODHI_REASON_RESOURCES = 5,  /* no descriptor or no memory for it now */
    BODHI_REASON_UNREACHABLE = 6 /* the server that knows where it lies has ended, or refuses */
};

enum bodhi_flag {
    BODHI_CREATE = 1,        /* make what is not there */
    BODHI_READ_ONLY = 2,     /* write nothing, repair nothing; another user's store may be read */
    BODHI_ALLOW_NETWORK = 4, /* accept a network file system (every node would claim every frame) */
};

typedef struct bodhi_frame {
    int64_t number;    /* frame number in the dataset, from 0 to BODHI_MAX_NUMBER */
    double time;       /* ps */
    int64_t n_atoms;   /* at least 1 */
    float *positions;  /* n_atoms x 3 */
    float *velocities; /* n_atoms x 3, or NULL */
    float *forces;     /* n_atoms x 3, or NULL */
    float *box;        /* 6: lengths and angles, or NULL */
    int32_t kind;      /* set by reading: enum bodhi_kind */
    int32_t reason;    /* set by reading: enum bodhi_reason of a miss, else 0 */
    uint32_t *ids;     /* of a slice: which atoms of the frame its n_atoms are, ascending; NULL: a whole frame */
} bodhi_frame;

/* How positions are kept. */
enum bodhi_encoding {
    BODHI_ENCODING_AUTO = 0, /* packed, to the last bit, where they lie on a grid as those from XTC do; else raw */
    BODHI_ENCODING_RAW = 1
};

typedef struct bodhi_write_options {
    int64_t segment_bytes; /* size at which a segment is full, at most 64 GiB; 0: 256 MiB, or an eighth of a smaller
                              quota, 1 MiB at least */
    int64_t block_atoms;   /* atoms under one checksum; 0: 4096 */
    int32_t encoding;      /* enum bodhi_encoding */
} bodhi_write_options;

enum bodhi_direct { BODHI_DIRECT_AUTO = 0, BODHI_DIRECT_ON = 1, BODHI_DIRECT_OFF = 2 };

/* Atoms first to last - 1, counted from 0. */
typedef struct bodhi_range {
    int64_t first, last;
} bodhi_range;

typedef struct bodhi_read_options {
    int32_t fields;        /* enum bodhi_field, or-ed; 0: all but ids; fields not asked for are NULL in what is
                              delivered. Ids need `atoms` NULL */
    int32_t direct;        /* enum bodhi_direct: whether cold data bypasses the page cache; auto: if memory is too small
                              for the dataset */
    int32_t no_thread;     /* 1: never start threads that read ahead */
    int64_t request_bytes; /* size of a read request; 0: 512 KiB, or 2 MiB for direct reads */
    int64_t ring;          /* number of requests read ahead; 0: 6, or 3 for direct reads */
    const bodhi_range *atoms; /* which atoms are needed, ascending and apart; copied. NULL: all. Arrays keep their full
                                 size and atoms their place in them, but other atoms' rows hold anything */
    int64_t n_ranges;         /* of `atoms` */
    int32_t check_only;       /* 1: frames are read and checked, and not unpacked: their arrays are NULL */
} bodhi_read_options;

typedef struct bodhi_facts {
    int64_t native;           /* frames, each counted once */
    int64_t alien;            /* frames, each counted once */
    int64_t bytes;            /* in segment and index files */
    int64_t segments;         /* usable segments */
    int64_t refused_segments; /* segments of another format version or of another dataset: left alone */
    int64_t last_used;        /* seconds since 1970 at which the dataset was last opened */
    int64_t scanned;          /* bytes of segments that had to be scanned because their index did not cover them */
} bodhi_facts;

/* What a store and its disk hold, bytes. */
typedef struct bodhi_usage {
    int64_t used;    /* by all files of the store */
    int64_t free;    /* on the file system, for this user */
    int64_t size;    /* of the file system */
    int64_t reserve; /* of the file system: himach leaves so much free */
} bodhi_usage;

/* A segment, as its files show it. */
typedef struct bodhi_stored_segment {
    char directory[40]; /* subdirectory of its dataset */
    uint64_t id;
    int32_t kind;      /* enum bodhi_kind */
    int32_t pushed;    /* 1: its dataset has no origin from which it could be read again */
    int64_t bytes;     /* of segment and index */
    int64_t last_used; /* when its dataset was, ns since 1970 */
} bodhi_stored_segment;

typedef struct bodhi_segment_facts {
    uint64_t id;
    int32_t kind;         /* enum bodhi_kind */
    int32_t busy;         /* 1: a writer holds it now */
    int64_t bytes;        /* of segment and index */
    int64_t frames;       /* frames that are not dropped */
    int64_t last_written; /* seconds since 1970 */
} bodhi_segment_facts;

/* Where a frame's record lies. */
typedef struct bodhi_place {
    uint64_t segment; /* id, which is also in the file's name */
    int32_t kind;     /* enum bodhi_kind */
    int32_t found;    /* 0: not in the index, and the rest is 0 */
    int64_t offset;   /* bytes, a multiple of 64 */
    int64_t length;   /* bytes, a multiple of 64 */
} bodhi_place;

/* What was wrong in this thread's last call that returned an error; "" if there was none. Never NULL. */
const char *bodhi_message(void);

/* "ok", "end", "miss", ... for a status; "unknown status" for any other number. */
const char *bodhi_status_name(int status);

/* --- Store ------------------------------------------------------------------------------------------------------- */

/* Open the store at `directory`, with BODHI_CREATE making it (mode 0700; its parent must exist).
 * Errors: ARGUMENT (NULL), NOT_FOUND (no store there), NETWORK, UNSAFE, VERSION, SYSTEM, MEMORY. A damaged identity is
 * replaced by a new one, unless BODHI_READ_ONLY is set. */
BODHI_CHECKED int bodhi_open(const char *directory, int flags, bodhi_store **store);

/* The 16 random bytes that tell this store from every other. */
void bodhi_identity(const bodhi_store *store, uint8_t identity[16]);

/* Let the store hold at most `bytes` (0: no limit), and leave a part of its disk free (bodhi_usage.reserve). Writers
 * opened through this handle obey that together with those of all other processes: where more is to be written than
 * fits, segments of other datasets are evicted, as bodhi_survey() orders them, none that a writer or reader holds and
 * none that was pushed. To be set before anything is written. */
void bodhi_store_set_quota(bodhi_store *store, int64_t bytes);

/* Look at the files of the store in `directory`, which counts as no use. `*segments` lists `*n` of them in the order in
 * which they are evicted: datasets not used for longest first, in each aliens before natives, oldest first; free() it.
 * Errors: ARGUMENT, NOT_FOUND (no such directory), SYSTEM, MEMORY. */
BODHI_CHECKED int bodhi_survey(const char *directory, bodhi_usage *usage, bodhi_stored_segment **segments, int64_t *n);

/* Delete a whole segment, unless a writer or reader, here or in another process, holds it. Of `segment`, directory, id
 * and kind count. Open datasets learn of it when they are refreshed. Errors: NOT_FOUND, BUSY, VERSION (it is left
 * alone), SYSTEM, ARGUMENT (store opened for reading only). */
BODHI_CHECKED int bodhi_store_evict(bodhi_store *store, const bodhi_stored_segment *segment);

/* The same of a segment all frames of which have been dropped, as is looked at while nobody can write to it. Errors: as
 * bodhi_store_evict(); BUSY also where a frame of it lives; MEMORY. */
BODHI_CHECKED int bodhi_store_sweep(bodhi_store *store, const bodhi_stored_segment *segment);

/* Close the store. */
void bodhi_close(bodhi_store *store);

/* --- Dataset ----------------------------------------------------------------------------------------------------- */

/* Open one generation of the dataset `name` (UTF-8, 1 to 4096 bytes). `generation` (at most 4096 bytes, may be empty)
 * is the caller's fingerprint of the content: another one means other frames. Flags: BODHI_CREATE. Damage is never an
 * error. Errors: ARGUMENT, NOT_FOUND, CONFLICT, VERSION, SYSTEM, MEMORY, FULL. */
BODHI_CHECKED int bodhi_dataset_open(bodhi_store *store, const char *name, const void *generation,
                                     size_t generation_bytes, int flags, bodhi_dataset **dataset);

/* Open what lies in the store's subdirectory `directory` ("0123456789abcdef-0123456789abcdef"), whatever its name is.
 * Errors: ARGUMENT, NOT_FOUND (also: its meta file is damaged), VERSION, SYSTEM, MEMORY. */
BODHI_CHECKED int bodhi_dataset_open_directory(bodhi_store *store, const char *directory, bodhi_dataset **dataset);

/* Name (NUL-terminated), generation and subdirectory of the dataset; they live as long as the handle. */
const char *bodhi_dataset_name(const bodhi_dataset *dataset);
const void *bodhi_dataset_generation(const bodhi_dataset *dataset, size_t *bytes);
const char *bodhi_dataset_directory(const bodhi_dataset *dataset);

/* Take in what other processes have written, dropped or evicted since. Errors: SYSTEM, MEMORY. */
BODHI_CHECKED int bodhi_dataset_refresh(bodhi_dataset *dataset);

/* Counts and sizes. Errors: SYSTEM. */
BODHI_CHECKED int bodhi_dataset_query(bodhi_dataset *dataset, bodhi_facts *facts);

/* The frame numbers of one kind, ascending, each once: up to `capacity` of those that are >= `from`. *count is how many
 * were written. To list all, go on from the last number plus 1 until *count is 0. Errors: ARGUMENT. */
BODHI_CHECKED int bodhi_dataset_numbers(bodhi_dataset *dataset, int kind, int64_t from, uint64_t *numbers,
                                        int64_t capacity, int64_t *count);

/* Set bit i % 64 of word i / 64 where frame first + i * step is held, for i from 0 to count - 1: of `native` and of
 * `alien`, of (count + 63) / 64 words each. Other bits stay, so that the frames of several datasets come together in
 * the same words. `step` may be negative, frame numbers may not. Errors: ARGUMENT. */
BODHI_CHECKED int bodhi_dataset_mark(bodhi_dataset *dataset, int64_t first, int64_t step, int64_t count,
                                     uint64_t *native, uint64_t *alien);

/* Move what this process knows of where frames lie from its memory to files beside the segments, which all processes of
 * the machine read: of segments in which that is `least` frames or more; 0: as many as are worth it. Writers do so with
 * what they have written. Frames are found as before if there is no room for it. Errors: ARGUMENT. */
BODHI_CHECKED int bodhi_dataset_seal(bodhi_dataset *dataset, int64_t least);

/* The frames of one kind between `low` and `high`, as runs that ascend and are apart: up to `capacity`; *count is how
 * many, or -1 where they are more, or no such runs. Errors: ARGUMENT, MEMORY. */
typedef struct {
    int64_t first, step, count; /* first, first + step, ...: so many */
} bodhi_run;
BODHI_CHECKED int bodhi_dataset_runs(bodhi_dataset *dataset, int kind, int64_t low, int64_t high, bodhi_run *runs,
                                     int64_t capacity, int64_t *count);

/* Where the records of `n` frames lie; natives are preferred. Errors: ARGUMENT. */
BODHI_CHECKED int bodhi_dataset_locate(bodhi_dataset *dataset, const int64_t *numbers, int64_t n, bodhi_place *places);

/* How many atoms the native records of `n` frames have, as their heads say, unchecked; 0 where there is none. Of slices
 * that is how much of a frame is there. Errors: ARGUMENT. */
BODHI_CHECKED int bodhi_dataset_atoms(bodhi_dataset *dataset, const int64_t *numbers, int64_t n, uint32_t *atoms);

/* Drop `n` frames of one kind: they are not listed or read any more, by anybody; their space comes free when the
 * segment is evicted. *dropped counts those that were there. The drop is durable like a frame is. Errors: as
 * bodhi_writer_open, bodhi_append and bodhi_flush. */
BODHI_CHECKED int bodhi_dataset_drop(bodhi_dataset *dataset, int kind, const int64_t *numbers, int64_t n,
                                     int64_t *dropped);

/* Facts of up to `capacity` segments; *count is how many there are. Errors: SYSTEM. */
BODHI_CHECKED int bodhi_dataset_segments(bodhi_dataset *dataset, bodhi_segment_facts *facts, int64_t capacity,
                                         int64_t *count);

/* Close the dataset. */
void bodhi_dataset_close(bodhi_dataset *dataset);

/* --- Writing ----------------------------------------------------------------------------------------------------- */

/* A writer of frames of one kind. It claims a segment when it writes first. `options` may be NULL.
 * Errors: ARGUMENT (also: store opened for reading only), MEMORY. */
BODHI_CHECKED int bodhi_writer_open(bodhi_dataset *dataset, int kind, const bodhi_write_options *options,
                                    bodhi_writer **writer);

/* Append a frame; its arrays may be reused at once. It is visible and kept only after bodhi_flush().
 * Returns OK or EXISTS (the frame is there, as a native or in this kind: it was read back, and is the same to the last
 * bit). Errors: ARGUMENT, CONFLICT (a frame of this number is there with other content), FULL (quota or disk; this
 * frame, and frames appended since the last flush, may not have been written: bodhi_writer_written() counts those that
 * were), POISONED, SYSTEM, MEMORY. */
BODHI_CHECKED int bodhi_append(bodhi_writer *writer, const bodhi_frame *frame);

/* Make the frames appended so far visible to all processes; OK acknowledges them and those that were there: they
 * outlive this process, and with `durable` the machine. Errors: FULL (frames that did not fit are undone), POISONED,
 * SYSTEM (the writer is then poisoned, as a failed fsync is never tried again; or, durably, frames that were there are
 * not known to be on disk, and are to be appended again). */
BODHI_CHECKED int bodhi_flush(bodhi_writer *writer, int durable);

/* Number of frames that this writer has made visible. */
int64_t bodhi_writer_written(const bodhi_writer *writer);

/* Flush (not durably) and close; the handle is gone whatever is returned. Errors: as bodhi_flush. */
BODHI_CHECKED int bodhi_writer_close(bodhi_writer *writer);

/* --- Reading ----------------------------------------------------------------------------------------------------- */

/* Read `n` frames, to be delivered in the order of `numbers`; natives are preferred. They are read ahead in the order
 * of the segments, by threads of the library unless the page cache has them. `options` may be NULL.
 * Errors: ARGUMENT, MEMORY. */
BODHI_CHECKED int bodhi_reader_open(bodhi_dataset *dataset, const int64_t *numbers, int64_t n,
                                    const bodhi_read_options *options, bodhi_reader **reader);

/* Deliver the next frame. Its arrays belong to the reader, may be written to, and hold until the next call.
 * Returns OK, MISS (only number and reason are set) or END. Errors: ARGUMENT (NULL), MEMORY. */
BODHI_CHECKED int bodhi_reader_next(bodhi_reader *reader, bodhi_frame *frame);

/* Bytes read for the frames delivered so far: their records, or what was needed of them. */
int64_t bodhi_reader_bytes(const bodhi_reader *reader);

/* Close the reader and end its threads; frames not yet delivered are skipped. */
void bodhi_reader_close(bodhi_reader *reader);

/* --- Pushing ----------------------------------------------------------------------------------------------------- */

typedef struct bodhi_push_options {
    const char *key_file; /* for servers of other machines: a file of mode 0600 with the key; NULL: none */
    int32_t durable;      /* 1: what is acknowledged outlives the machine, not only the server */
    int32_t timeout_ms;   /* of every call, while no byte goes and no acknowledgement comes; 0: 60000 */
    int64_t batch_bytes;  /* after which a server is asked to acknowledge; 0: 16 MiB. Four batches may be in flight */
    int (*interrupted)(void); /* asked several times a second while waiting; other than 0 ends the wait. May be NULL */
    const char *identity;     /* which simulation this is: what it says again when it is restarted, and all its ranks
                                 say. NULL: the path of the working directory; "": it does not say */
} bodhi_push_options;

typedef struct bodhi_push_facts {
    int64_t acknowledged; /* frames that servers keep */
    int64_t in_flight;    /* frames sent and not acknowledged */
    int64_t given_again;  /* frames sent once more: a server was lost, was late or refused them */
    int64_t servers_up;   /* servers that answer now */
} bodhi_push_facts;

/* Push frames of one dataset to the stores of `n` servers, each "host:port" or the path of a Unix socket (with a '/'),
 * in turn by their numbers, by a thread for each server. A server that does not answer is passed over and tried again
 * later; frames that it left unanswered go to another. `options` may be NULL.
 *
 * A dataset knows the first simulation that pushed to it by its identity, and takes frames of no other. A frame that is
 * there already is acknowledged if it is the same to the last bit: a simulation that is restarted may push some once
 * more. Errors: CONFLICT (the dataset has frames of another simulation), ARGUMENT, MEMORY, UNSAFE (key file, or a
 * server that refuses the key or is not this user's), UNREACHABLE (no server answers), PROTOCOL, SYSTEM. */
BODHI_CHECKED int bodhi_push_open(const char *const *servers, int n, const char *dataset, const void *generation,
                                  size_t generation_bytes, const bodhi_push_options *options, bodhi_pusher **pusher);

/* Push a frame, which is copied: its arrays may be reused at once. Waits only while four batches are in flight or no
 * server answers. Errors: CONFLICT (a frame pushed before is there with other content, time or number of atoms; nothing
 * more is taken from this pusher), ARGUMENT, MEMORY, UNREACHABLE or FULL (no server takes frames, or none acknowledges
 * any; this one is not taken, those in flight are tried again at the next call), INTERRUPTED (so too). */
BODHI_CHECKED int bodhi_push(bodhi_pusher *pusher, const bodhi_frame *frame);

/* Wait until all frames pushed so far are acknowledged: their servers can read them back, and with `durable` after a
 * power cut, too. Errors: CONFLICT (as bodhi_push), UNREACHABLE or FULL (some are not; they stay in
 * flight), INTERRUPTED, MEMORY. */
BODHI_CHECKED int bodhi_push_flush(bodhi_pusher *pusher);

void bodhi_push_query(const bodhi_pusher *pusher, bodhi_push_facts *facts);

/* Flush and close; the handle is gone whatever is returned. Closing NULL is allowed. Errors: as bodhi_push_flush. */
BODHI_CHECKED int bodhi_push_close(bodhi_pusher *pusher);

/* Close at once; frames in flight are kept by a server or lost. NULL is allowed. */
void bodhi_push_abandon(bodhi_pusher *pusher);

/* --- Slices ------------------------------------------------------------------------------------------------------ */

/* Behind the name of a dataset: that of its slices. */
#define BODHI_SLICES_SUFFIX " [slices]"

typedef struct bodhi_slice_options {
    int64_t n_atoms;    /* of a whole frame */
    int64_t rank;       /* which process of the simulation this is: no two of them are the same one */
    const char *store;  /* directory of this node's store, to which slices go straight where this user may write to it;
                           NULL: to the servers */
    int64_t quota;      /* of that store, as bodhi_store_set_quota() */
    const char *launch; /* what all processes of one launch of the simulation say alike, and those of no other: a frame
                           is made of slices of one, and the later one's are meant. NULL: what srun, or Open MPI's or
                           Cray's mpiexec, says; "": slices are of any */
} bodhi_slice_options;

/* Push slices of one dataset: each process of a simulation gives the atoms that it has now. A frame is there when its
 * slices cover all atoms once; `himach stage NAME --assemble` and runs make whole frames of them. To a store slices go
 * without a server, and are acknowledged when `batch_bytes` of them or a second have gone by, or at a flush; to servers
 * as frames do. `n` may be 0 if a store is given. Errors: as bodhi_push_open(), bodhi_open() and bodhi_dataset_open().
 */
BODHI_CHECKED int bodhi_push_open_slices(const char *const *servers, int n, const char *dataset, const void *generation,
                                         size_t generation_bytes, const bodhi_push_options *options,
                                         const bodhi_slice_options *slices, bodhi_pusher **pusher);

/* Push the slice of `frame` that this process has: frame->n_atoms atoms, maybe none, and ids[i] is which atom of the
 * frame, counted from 0, has the i-th vectors, in any order. frame->ids is not looked at. Errors: as bodhi_push(), and
 * straight to a store as bodhi_append() and bodhi_flush(): what was not acknowledged is then to be pushed again. */
BODHI_CHECKED int bodhi_push_slice(bodhi_pusher *pusher, const bodhi_frame *frame, const int64_t *ids);

#ifdef __cplusplus
}
#endif

#endif
