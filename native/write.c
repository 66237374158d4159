/* Writing: records are gathered or written through, index entries follow at a flush.
 *
 * What a writer appends becomes visible in this order: record bytes, (durably: fdatasync), index entries, the table of
 * this process. A process killed in between leaves whole records without entries, which the next writer or reader
 * finds. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "bodhi.h"
#include "claim.h"
#include "dataset.h"
#include "io.h"
#include "pack.h"
#include "status.h"

enum {
    GATHER_BYTES = 1 << 20,    /* small records are written together */
    THROUGH_BYTES = 256 << 10, /* records from this size on are written by themselves */
    MAX_UNSYNCED = 8,          /* full segments that wait for the next durable flush */
    DEFAULT_BLOCK_ATOMS = 4096
};
#define DEFAULT_SEGMENT_BYTES (UINT64_C(256) << 20)
#define MAX_SEGMENT_BYTES     (INT64_C(64) << 30)

/* A record without an index entry yet. */
typedef struct {
    index_entry entry;
    uint64_t at; /* where the record is in the segment */
} pending_record;

struct bodhi_writer {
    bodhi_dataset *dataset;
    uint8_t kind;
    uint64_t segment_bytes;
    uint32_t block_atoms;
    bool packs;
    packer packer;
    bool poisoned;
    bool holding; /* `at` is valid */
    claim at;
    uint64_t written; /* what is in the file; the rest up to at.end is in `gathered` */
    uint64_t started; /* up to where the disk was told to write */
    unsigned char *gathered;
    size_t n_gathered;
    pending_record *pending; /* in the order of the segment */
    size_t n_pending, pending_capacity;
    uint64_t highest; /* frame number pending */
    int unsynced[MAX_UNSYNCED];
    int n_unsynced;
    bool directory_unsynced;
    int64_t kept;
};

/* --- Failing ----------------------------------------------------------------------------------------------------- */

/* Turn errno of a failed call into a status; anything but a full disk or memory poisons the writer. */
static int failed(bodhi_writer *w, const char *call) {
    int status = bodhi_fail_system(errno, call, w->at.name);
    w->poisoned = w->poisoned || status == BODHI_ERROR_SYSTEM;
    return status;
}

/* Give the segment back; what has no index entry is left for recovery to find. Its descriptor is kept until its bytes
 * are known to be on disk, if that is ever asked for. False: the bytes of an earlier segment could not be synced. */
static bool give_back(bodhi_writer *w) {
    bool synced = true;
    (void)io_close(w->at.index_fd);
    w->holding = false;
    w->n_pending = 0;
    w->n_gathered = 0;
    if (w->n_unsynced == MAX_UNSYNCED) {
        synced = io_sync(w->unsynced[0]);
        (void)io_close(w->unsynced[0]);
        memmove(w->unsynced, w->unsynced + 1, (MAX_UNSYNCED - 1) * sizeof *w->unsynced);
        w->n_unsynced--;
    }
    io_unlock(w->at.fd, LOCK_WRITER);
    w->unsynced[w->n_unsynced++] = w->at.fd;
    w->poisoned = w->poisoned || !synced;
    return synced;
}

/* --- Flushing ---------------------------------------------------------------------------------------------------- */

/* Forget the pending records from `at` on. */
static void forget_pending(bodhi_writer *w, uint64_t at) {
    while (w->n_pending > 0 && w->pending[w->n_pending - 1].at >= at) {
        w->n_pending--;
    }
}

/* Write what was gathered. On failure those records are undone: nobody has seen them. */
static int write_gathered(bodhi_writer *w) {
    if (w->n_gathered == 0) {
        return BODHI_OK;
    }
    struct iovec part = {.iov_base = w->gathered, .iov_len = w->n_gathered};
    bool done = io_write(w->at.fd, &part, 1, w->written);
    w->n_gathered = 0;
    if (done) {
        w->written = w->at.end;
        return BODHI_OK;
    }
    int status = failed(w, "write");
    (void)io_truncate(w->at.fd, w->written);
    w->at.end = w->written;
    forget_pending(w, w->written);
    return status;
}

static bool sync_all(bodhi_writer *w) {
    bool done = !w->holding || io_sync(w->at.fd);
    if (w->directory_unsynced) {
        done = io_sync(w->dataset->fd) && done;
        w->directory_unsynced = false;
    }
    while (w->n_unsynced > 0) {
        int fd = w->unsynced[--w->n_unsynced];
        done = io_sync(fd) && done;
        (void)io_close(fd);
    }
    return done;
}

static bool write_entries(bodhi_writer *w) {
    unsigned char *bytes = malloc(w->n_pending * ENTRY_BYTES);
    if (bytes == NULL) {
        errno = ENOMEM;
        return false;
    }
    for (size_t i = 0; i < w->n_pending; i++) {
        write_entry(bytes + i * ENTRY_BYTES, &w->pending[i].entry, w->at.key.segment);
    }
    struct iovec part = {.iov_base = bytes, .iov_len = w->n_pending * ENTRY_BYTES};
    bool done = io_write(w->at.index_fd, &part, 1, w->at.index_end);
    int error = errno;
    free(bytes);
    errno = error;
    return done;
}

/* Take the new records into the table by reading the entries back, as any other process does. */
static int publish(bodhi_writer *w) {
    bodhi_dataset *dataset = w->dataset;
    int64_t frames = 0;
    for (size_t i = 0; i < w->n_pending; i++) {
        frames += w->pending[i].entry.type == ENTRY_FRAME;
    }
    w->at.index_end += w->n_pending * ENTRY_BYTES;
    w->n_pending = 0;
    w->kept += frames;
    pthread_mutex_lock(&dataset->mutex);
    (void)dataset_load(dataset, w->at.ordinal, true); /* if this fails, a refresh does it later */
    pthread_mutex_unlock(&dataset->mutex);
    return BODHI_OK;
}

static int flush(bodhi_writer *w, bool durable) {
    int status = write_gathered(w);
    if (w->poisoned) {
        return status;
    }
    if (durable && !sync_all(w)) {
        w->poisoned = true; /* nobody knows what is on disk; not tried again */
        return bodhi_fail_system(errno == ENOSPC || errno == EDQUOT ? EIO : errno, "fdatasync", w->at.name);
    }
    if (w->n_pending == 0) {
        return status;
    }
    if (!write_entries(w)) {
        int error = failed(w, "write of the index");
        (void)io_truncate(w->at.index_fd, w->at.index_end);
        (void)give_back(w);
        return error;
    }
    int published = publish(w);
    return status != BODHI_OK ? status : published;
}

/* --- Segments ---------------------------------------------------------------------------------------------------- */

/* Leave a full segment. */
static int leave(bodhi_writer *w) {
    int status = flush(w, false);
    if (status == BODHI_OK && !give_back(w)) {
        return failed(w, "fdatasync");
    }
    return status;
}

/* Have a segment with room for `length` bytes. */
static int have_room(bodhi_writer *w, uint64_t length) {
    if (w->holding && (w->at.end + length <= w->segment_bytes || w->at.end == SEGMENT_HEADER_BYTES)) {
        return BODHI_OK;
    }
    if (w->holding) {
        int status = leave(w);
        if (status != BODHI_OK) {
            return status;
        }
    }
    w->at = (claim){.fd = -1, .index_fd = -1};
    pthread_mutex_lock(&w->dataset->mutex);
    int status = claim_segment(w->dataset, w->kind, length, w->segment_bytes, &w->at);
    pthread_mutex_unlock(&w->dataset->mutex);
    if (status == BODHI_OK) {
        w->holding = true;
        w->written = w->at.end;
        w->started = w->at.end;
        w->directory_unsynced = w->directory_unsynced || w->at.created;
    }
    return status;
}

/* --- Appending --------------------------------------------------------------------------------------------------- */

static bool add_pending(bodhi_writer *w, const index_entry *entry, uint64_t at) {
    if (w->n_pending == w->pending_capacity) {
        size_t capacity = w->pending_capacity == 0 ? 256 : w->pending_capacity * 2;
        pending_record *grown = realloc(w->pending, capacity * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        w->pending = grown;
        w->pending_capacity = capacity;
    }
    w->pending[w->n_pending++] = (pending_record){.entry = *entry, .at = at};
    return true;
}

/* Where a record of `length` bytes is put together; NULL with the status set if it cannot be. */
static unsigned char *gather(bodhi_writer *w, uint64_t length, int *status) {
    if (w->gathered == NULL && (w->gathered = malloc(GATHER_BYTES)) == NULL) {
        *status = bodhi_fail_memory();
        return NULL;
    }
    *status = w->n_gathered + length > GATHER_BYTES ? write_gathered(w) : BODHI_OK;
    if (*status != BODHI_OK) {
        return NULL;
    }
    unsigned char *record = w->gathered + w->n_gathered;
    w->n_gathered += (size_t)length;
    w->at.end += length;
    return record;
}

static int append_gathered(bodhi_writer *w, const record_header *header, const field_blocks fields[FIELD_COUNT]) {
    int status;
    unsigned char *record = gather(w, header->length, &status);
    if (record == NULL) {
        return status;
    }
    write_record_head(record, header, &w->at.key, fields);
    unsigned char *at = record + header->head_bytes;
    for (unsigned i = 0; i < FIELD_COUNT; i++) {
        if (fields[i].data != NULL) {
            memcpy(at, fields[i].data, fields[i].bytes);
            at += fields[i].bytes;
        }
    }
    memset(at, 0, (size_t)(record + header->length - at));
    return BODHI_OK;
}

static int append_through(bodhi_writer *w, const record_header *header, const field_blocks fields[FIELD_COUNT]) {
    static const unsigned char zeros[UNIT];
    int status = write_gathered(w);
    if (status != BODHI_OK) {
        return status;
    }
    unsigned char *head = malloc(header->head_bytes);
    if (head == NULL) {
        return bodhi_fail_memory();
    }
    write_record_head(head, header, &w->at.key, fields);
    struct iovec parts[2 + FIELD_COUNT] = {{.iov_base = head, .iov_len = header->head_bytes}};
    int n = 1;
    for (unsigned i = 0; i < FIELD_COUNT; i++) {
        if (fields[i].data != NULL) {
            parts[n++] = (struct iovec){.iov_base = (void *)(uintptr_t)fields[i].data, .iov_len = fields[i].bytes};
        }
    }
    parts[n++] = (struct iovec){.iov_base = (void *)(uintptr_t)zeros,
                                .iov_len = header->length - header->head_bytes - header->payload_bytes};
    if (io_write(w->at.fd, parts, parts[n - 1].iov_len > 0 ? n : n - 1, w->written)) {
        w->at.end += header->length;
        w->written = w->at.end;
    } else {
        status = failed(w, "write");
        (void)io_truncate(w->at.fd, w->written);
    }
    free(head);
    return status;
}

static int append(bodhi_writer *w, record_header *header, const field_blocks fields[FIELD_COUNT]) {
    int status = have_room(w, header->length);
    if (status != BODHI_OK) {
        return status;
    }
    header->offset = w->at.end;
    uint32_t units = header->head_bytes / UNIT;
    index_entry entry = {.type = ENTRY_FRAME,
                         .fields = (uint8_t)(header->fields | header->encoding << 4),
                         .head_units = units < UINT16_MAX ? (uint16_t)units : UINT16_MAX,
                         .number = header->number,
                         .offset = header->offset,
                         .length = header->length};
    if (!add_pending(w, &entry, header->offset)) {
        return bodhi_fail_memory();
    }
    status = header->length < THROUGH_BYTES ? append_gathered(w, header, fields) : append_through(w, header, fields);
    if (status != BODHI_OK) {
        forget_pending(w, header->offset);
    }
    w->highest = status == BODHI_OK && header->number > w->highest ? header->number : w->highest;
    return status;
}

/* Whether the frame is there: as a native, or in the writer's own kind, or about to be. */
static bool exists(bodhi_writer *w, uint64_t number) {
    bodhi_dataset *dataset = w->dataset;
    size_t native = 0;
    size_t own = 0;
    pthread_mutex_lock(&dataset->mutex);
    bool there = table_find(&dataset->tables[BODHI_NATIVE], number, &native) != NULL ||
                 table_find(&dataset->tables[w->kind], number, &own) != NULL;
    pthread_mutex_unlock(&dataset->mutex);
    for (size_t i = w->n_pending; !there && number <= w->highest && i-- > 0;) {
        there = w->pending[i].entry.type == ENTRY_FRAME && w->pending[i].entry.number == number;
    }
    return there;
}

static int check_frame(const bodhi_writer *w, const bodhi_frame *frame, record_header *header) {
    if (frame->number < 0 || frame->n_atoms < 1 || frame->n_atoms > UINT32_MAX || frame->positions == NULL) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT,
                          "frame %lld with %lld atoms: needs a number from 0, 1 to %u atoms, positions",
                          (long long)frame->number, (long long)frame->n_atoms, UINT32_MAX);
    }
    *header = (record_header){.type = RECORD_FRAME,
                              .kind = w->kind,
                              .fields = (uint8_t)(BODHI_POSITIONS | (frame->velocities != NULL ? BODHI_VELOCITIES : 0) |
                                                  (frame->forces != NULL ? BODHI_FORCES : 0)),
                              .encoding = ENCODING_RAW,
                              .has_box = frame->box != NULL,
                              .number = (uint64_t)frame->number,
                              .time = frame->time,
                              .n_atoms = (uint32_t)frame->n_atoms,
                              .block_atoms = w->block_atoms};
    if (frame->box != NULL) {
        memcpy(header->box, frame->box, sizeof header->box);
    }
    if (!layout_record(header) || header->length > (uint64_t)MAX_SEGMENT_BYTES) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "frame %lld with %lld atoms is too large for a segment",
                          (long long)frame->number, (long long)frame->n_atoms);
    }
    return BODHI_OK;
}

static int fail_poisoned(void) {
    return bodhi_fail(BODHI_ERROR_POISONED, "an earlier write of this writer failed; close it and open another");
}

/* Pack the positions if that can be. */
static void pack(bodhi_writer *w, record_header *header, field_blocks *positions) {
    if (w->packs && pack_positions(&w->packer, positions->data, header->n_atoms, header->block_atoms)) {
        *positions = (field_blocks){.data = w->packer.bytes, .sizes = w->packer.sizes, .bytes = w->packer.n_bytes};
        header->encoding = ENCODING_PACKED;
        header->payload_bytes += positions->bytes - field_bytes(header);
        (void)layout_record(header); /* it was laid out before, and has become shorter */
    }
}

int bodhi_append(bodhi_writer *writer, const bodhi_frame *frame) {
    if (writer == NULL || frame == NULL) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "writer and frame must be given");
    }
    record_header header = {0};
    int status = writer->poisoned ? fail_poisoned() : check_frame(writer, frame, &header);
    if (status != BODHI_OK) {
        return status;
    }
    if (exists(writer, header.number)) {
        return BODHI_EXISTS;
    }
    uint64_t bytes = field_bytes(&header);
    field_blocks fields[FIELD_COUNT] = {{.data = frame->positions, .bytes = bytes},
                                        {.data = frame->velocities, .bytes = bytes},
                                        {.data = frame->forces, .bytes = bytes}};
    pack(writer, &header, &fields[0]);
    return append(writer, &header, fields);
}

int bodhi_flush(bodhi_writer *writer, int durable) {
    if (writer == NULL) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "writer must be given");
    }
    return writer->poisoned ? fail_poisoned() : flush(writer, durable != 0);
}

/* --- Opening and closing ----------------------------------------------------------------------------------------- */

int bodhi_writer_open(bodhi_dataset *dataset, int kind, const bodhi_write_options *options, bodhi_writer **writer) {
    bodhi_write_options chosen = options == NULL ? (bodhi_write_options){0} : *options;
    if (dataset == NULL || writer == NULL || (kind != BODHI_NATIVE && kind != BODHI_ALIEN) || is_read_only(dataset)) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "a writer needs a dataset open for writing and a kind (0 or 1), not %d",
                          kind);
    }
    if (chosen.encoding != BODHI_ENCODING_AUTO && chosen.encoding != BODHI_ENCODING_RAW) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "encoding is %d, not 0 or 1", chosen.encoding);
    }
    if (chosen.segment_bytes < 0 || chosen.segment_bytes > MAX_SEGMENT_BYTES || chosen.block_atoms < 0 ||
        chosen.block_atoms > UINT32_MAX / 16) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT,
                          "segment_bytes is %lld (at most %lld), block_atoms is %lld (at most %u)",
                          (long long)chosen.segment_bytes, (long long)MAX_SEGMENT_BYTES, (long long)chosen.block_atoms,
                          UINT32_MAX / 16);
    }
    bodhi_writer *opened = calloc(1, sizeof *opened);
    if (opened == NULL) {
        return bodhi_fail_memory();
    }
    opened->dataset = dataset;
    opened->kind = (uint8_t)kind;
    opened->segment_bytes = chosen.segment_bytes == 0 ? DEFAULT_SEGMENT_BYTES : (uint64_t)chosen.segment_bytes;
    opened->block_atoms = chosen.block_atoms == 0 ? DEFAULT_BLOCK_ATOMS : (uint32_t)chosen.block_atoms;
    opened->packs = chosen.encoding == BODHI_ENCODING_AUTO;
    *writer = opened;
    return BODHI_OK;
}

void writer_start_writing(bodhi_writer *w, uint64_t least) {
    if (w->holding && w->written >= w->started + least) {
        /* A hint: whether the bytes reach the disk is asked of fdatasync() alone. */
        (void)sync_file_range(w->at.fd, (off_t)w->started, (off_t)(w->written - w->started), SYNC_FILE_RANGE_WRITE);
        w->started = w->written;
    }
}

int64_t bodhi_writer_kept(const bodhi_writer *writer) {
    return writer->kept;
}

int bodhi_writer_close(bodhi_writer *writer) {
    if (writer == NULL) {
        return BODHI_OK;
    }
    int status = writer->poisoned ? fail_poisoned() : flush(writer, false);
    if (writer->holding) {
        (void)give_back(writer);
    }
    while (writer->n_unsynced > 0) {
        (void)io_close(writer->unsynced[--writer->n_unsynced]);
    }
    packer_free(&writer->packer);
    free(writer->gathered);
    free(writer->pending);
    free(writer);
    return status;
}

/* --- Dropping ---------------------------------------------------------------------------------------------------- */

static int append_tombstone(bodhi_writer *w, const tombstone *dead) {
    int status = have_room(w, TOMBSTONE_BYTES);
    if (status != BODHI_OK) {
        return status;
    }
    record_header header = {.type = RECORD_TOMBSTONE,
                            .kind = w->kind,
                            .number = dead->number,
                            .offset = w->at.end,
                            .target_segment = dead->segment,
                            .target_offset = dead->offset};
    index_entry entry = {
        .type = ENTRY_TOMBSTONE, .number = dead->number, .offset = dead->offset, .length = dead->segment};
    unsigned char *record = gather(w, TOMBSTONE_BYTES, &status);
    if (record == NULL) {
        return status;
    }
    write_tombstone(record, &header, &w->at.key);
    return add_pending(w, &entry, header.offset) ? BODHI_OK : bodhi_fail_memory();
}

/* The copies of a frame, up to `capacity` of them. */
static size_t copies_of(bodhi_dataset *dataset, unsigned kind, uint64_t number, tombstone *copies, size_t capacity) {
    size_t n = 0;
    size_t state = 0;
    const place *copy;
    pthread_mutex_lock(&dataset->mutex);
    while (n < capacity && (copy = table_find(&dataset->tables[kind], number, &state)) != NULL) {
        copies[n++] = (tombstone){.segment = dataset->segments[copy->segment]->key.segment,
                                  .offset = (uint64_t)copy->offset * UNIT,
                                  .number = number};
    }
    pthread_mutex_unlock(&dataset->mutex);
    return n;
}

static int drop_all(bodhi_writer *w, const int64_t *numbers, int64_t n, int64_t *dropped) {
    enum { MAX_COPIES = 16 };
    for (int64_t i = 0; i < n; i++) {
        tombstone copies[MAX_COPIES];
        size_t there = numbers[i] < 0 ? 0 : copies_of(w->dataset, w->kind, (uint64_t)numbers[i], copies, MAX_COPIES);
        for (size_t copy = 0; copy < there; copy++) {
            int status = append_tombstone(w, &copies[copy]);
            if (status != BODHI_OK) {
                return status;
            }
        }
        *dropped += there > 0;
    }
    return BODHI_OK;
}

int bodhi_dataset_drop(bodhi_dataset *dataset, int kind, const int64_t *numbers, int64_t n, int64_t *dropped) {
    if (dropped == NULL || n < 0 || (n > 0 && numbers == NULL)) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "numbers and dropped must be given");
    }
    bodhi_writer *w = NULL;
    *dropped = 0;
    int status = bodhi_writer_open(dataset, kind, NULL, &w);
    if (status != BODHI_OK || w == NULL) {
        return status;
    }
    status = drop_all(w, numbers, n, dropped);
    int closed = bodhi_writer_close(w);
    return status != BODHI_OK ? status : closed;
}
