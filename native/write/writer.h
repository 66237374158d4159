/* A writer inside the library: what it has gathered, what waits for its index entry, the segment that it writes to. */
#pragma once

#include "base/stream.h"
#include "bodhi.h"
#include "codec/ids.h"
#include "codec/packed.h"
#include "store/dataset.h"

/* --- quota.c: room for what a writer appends, within the store's quota and the disk's reserve --------------------- */

/* It is granted in steps; grants that are not used up yet stand in the store's file `room`, so that all writers of a
 * store together keep to its quota. */
typedef struct {
    int fd;                /* of the file; -1: nothing was asked for yet */
    uint64_t slot;         /* our place in it, locked as long as we live */
    uint64_t left;         /* granted, and not appended yet */
    uint64_t outstanding;  /* granted, and not in a file yet: what the others must count */
    uint64_t refused;      /* bytes that were asked for in vain lately ... */
    int64_t refused_until; /* ... and when it is worth asking for as many again, ms */
} room;

/* Have room for `bytes` more of a dataset, evicting others if need be. Errors: FULL, SYSTEM, MEMORY. */
int room_ask(room *r, const bodhi_dataset *dataset, uint64_t bytes);

/* So many bytes were appended. */
void room_take(room *r, uint64_t bytes);

/* So many bytes that were appended are in a file, or never will be. */
void room_settle(room *r, uint64_t bytes);

/* Give back what is left. */
void room_close(room *r);

/* --- claim.c: a segment to write to, that has room and that no other writer holds, else a new one ----------------- */

/* A segment that is ours to append to until its descriptor is closed. */
typedef struct {
    uint32_t ordinal;
    segment_key key;
    char name[SEGMENT_NAME];
    int fd, index_fd;
    uint64_t end;       /* where the next record goes */
    uint64_t index_end; /* where the next index entry goes */
    bool created;
} claim;

/* Claim a segment with room for `length` bytes below `segment_bytes`. Needs the mutex. FULL, SYSTEM, MEMORY. */
int claim_segment(bodhi_dataset *dataset, unsigned kind, uint64_t length, uint64_t segment_bytes, claim *claimed);

/* --- The writer --------------------------------------------------------------------------------------------------- */

enum {
    GATHER_BYTES = 1 << 20, /* small records are written together */
    MAX_UNSYNCED = 8        /* full segments that wait for the next durable flush */
};

/* A segment to be synced; `fd` is closed then. */
typedef struct {
    int fd;
    uint32_t ordinal;
} unsynced_segment;

/* A record without an index entry yet. */
typedef struct {
    index_entry entry;
    uint64_t at; /* where the record is in the segment */
} pending_record;

struct bodhi_writer {
    bodhi_dataset *dataset;
    uint8_t kind;
    bool packs;
    uint32_t block_atoms;
    uint64_t segment_bytes;
    packer packer;
    room room;
    bool poisoned;
    bool has_segment; /* `at` is valid */
    bool slices;      /* it has been given some */
    claim at;
    stream *stream;      /* that writes for it; NULL: it gathers, and writes itself */
    bool direct;         /* past the page cache */
    bool durable;        /* its flushes are, or some were */
    bool unsynced_names; /* of some files of the dataset, or of the directories that they lie in */
    uint64_t written;    /* what is in the file; the rest up to at.end is in `gathered`, or on its way by the stream */
    uint64_t started;    /* up to where writeback was started */
    unsigned char *gathered;
    size_t n_gathered, gather_capacity;
    pending_record *pending; /* in the order of the segment */
    size_t n_pending, pending_capacity;
    uint64_t highest;                        /* frame number pending */
    unsynced_segment unsynced[MAX_UNSYNCED]; /* full ones */
    uint32_t *existing; /* segments in which frames were found since the last flush; the last one is not repeated */
    size_t n_existing, existing_capacity;
    int n_unsynced;
    uint32_t existing_segment; /* the segment in which the last append found its frame */
    int64_t shown;             /* frames */
    id_bytes packed_ids;       /* the ids of the slice that is appended */
    uint32_t *id_sizes;        /* of the blocks of its ids: all but the first are empty */
    size_t n_id_sizes;
};

/* All functions return statuses as in bodhi.h. */

/* Turn errno of a failed call into a status; anything but a full disk or memory poisons the writer. */
int writer_failed(bodhi_writer *w, const char *call);

/* What a poisoned writer answers. */
int writer_fail_poisoned(void);

/* Release the segment; what has no index entry is left for recovery to find. Its descriptor stays open until its bytes
 * are known to be on disk, if that is ever asked for. False: the bytes of an earlier segment could not be synced. */
bool writer_release_segment(bodhi_writer *w);

/* Have all that will be appended written by a stream; `direct`: past the page cache. */
BODHI_CHECKED int writer_begin_streaming(bodhi_writer *w, bool direct);

/* Have the stream, if there is one, go on at the segment's end. */
void writer_attach_stream(bodhi_writer *w);

/* Undo what the stream could not write, and say why; OK: it has not failed. */
BODHI_CHECKED int writer_settle_stream(bodhi_writer *w);

/* Write what was gathered. On failure those records are undone: nobody has seen them. */
int writer_write_gathered(bodhi_writer *w);

/* Write what was gathered and the index entries. */
int writer_flush(bodhi_writer *w, bool durable);

/* Have a segment with room for `length` bytes. */
int writer_have_segment(bodhi_writer *w, uint64_t length);

/* Note a record that waits for its index entry. False: memory is out. */
bool writer_add_pending(bodhi_writer *w, const record_header *header);

/* Forget the pending records from `at` on. */
void writer_forget_pending(bodhi_writer *w, uint64_t at);

/* Have the next durable flush sync `existing_segment`, too. False: memory is out. */
bool writer_note_existing(bodhi_writer *w);
bool writer_sync_existing(bodhi_writer *w);

/* Where a record of `length` bytes is put together; NULL with the status set if it cannot be. */
unsigned char *writer_gather(bodhi_writer *w, uint64_t length, int *status);

/* Let the disk begin with what was appended, if that is `least` bytes, so that a durable flush waits less. No mutex. */
void writer_start_writeback(bodhi_writer *writer, uint64_t least);

/* --- sealing.c: the table of a segment goes from memory to a file beside it (segments/frame_table.h) -------------- */

enum { SEAL_LEAST = 4096 }; /* frames that are not sealed, or sealed and dropped: they take 100 kB of every process */

/* Seal what was appended to a segment, if at least `least` frames and there is room. The mutex is not held. */
void seal_appended(bodhi_dataset *dataset, uint32_t ordinal, uint64_t least, room *r);

/* A frame that was read back and checked; its arrays live as long as it. */
typedef struct {
    bodhi_frame frame;
    uint32_t ordinal; /* of its segment */
    record_header header;
    unsigned char *record;
    float *positions; /* of a packed record */
} stored_frame;

/* Read back a frame of one kind: the first copy that is there, right, and as far as is known on disk. Copies that are
 * damaged or gone are passed over from now on. OK, MISS (there is none), or an error that leaves it open:
 * SYSTEM, MEMORY. Only after OK there is something to free. */
int stored_find(bodhi_dataset *dataset, unsigned kind, uint64_t number, stored_frame *stored);

/* Read back the record at `offset` of the segment that is open as `fd`. As stored_find(); MISS: it is not right, and
 * the message says why. */
int stored_read(int fd, const segment_key *key, uint64_t offset, uint64_t length, stored_frame *stored);

void stored_free(stored_frame *stored);

/* Whether a frame of this number is another than the one that is there, bit by bit; `why` then says how. */
bool stored_differs(const stored_frame *stored, const bodhi_frame *frame, char *why, size_t size);
