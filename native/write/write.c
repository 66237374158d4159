/* Writing: frames become records, gathered or written through. When they become visible is flush.c's. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/memory.h"
#include "base/status.h"
#include "write/writer.h"

enum {
    THROUGH_BYTES = 256 << 10, /* records from this size on are written at once */
    DEFAULT_BLOCK_ATOMS = 4096,
    SMALLEST_DEFAULT = 1 << 20,
    SEGMENTS_IN_QUOTA = 8 /* a quota should be many segments, since whole ones go */
};
#define LARGEST_DEFAULT   (UINT64_C(256) << 20)
#define MAX_SEGMENT_BYTES (INT64_C(64) << 30)

/* --- Appending --------------------------------------------------------------------------------------------------- */

static int append_gathered(bodhi_writer *w, const record_header *header, const field_blocks fields[FIELD_COUNT]) {
    int status;
    unsigned char *record = writer_gather(w, header->length, &status);
    if (record == NULL) {
        return status;
    }
    unsigned char *at = record + header->head_bytes;
    field_blocks placed[FIELD_COUNT] = {{0}};
    for (unsigned i = 0; i < FIELD_COUNT; i++) {
        if (fields[i].data != NULL) {
            memcpy(at, fields[i].data, fields[i].bytes);
            placed[i] = fields[i];
            placed[i].data = at;
            at += fields[i].bytes;
        }
    }
    memset(at, 0, (size_t)(record + header->length - at));
    write_record_head(record, header, &w->at.key, placed);
    return BODHI_OK;
}

/* --- Slices ------------------------------------------------------------------------------------------------------ */

/* Tell the atoms of a slice; that they ascend has been checked. */
static int tell_ids(bodhi_writer *w, const uint32_t *ids, record_header *header, field_blocks *out) {
    uint32_t blocks = header->n_blocks; /* of all fields: enough */
    if (!ARRAY_FIT(w->id_sizes, w->n_id_sizes, blocks) || !ids_write(&w->packed_ids, ids, header->n_atoms)) {
        return bodhi_fail_memory();
    }
    if (w->packed_ids.size > UINT32_MAX) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "a slice of %u atoms is too large", header->n_atoms);
    }
    memset(w->id_sizes, 0, blocks * sizeof *w->id_sizes);
    w->id_sizes[0] = (uint32_t)w->packed_ids.size;
    header->ids_bytes = w->packed_ids.size;
    header->payload_bytes += w->packed_ids.size;
    (void)layout_record(header); /* it was laid out before without these, which a slice's arrays hold many times */
    *out = (field_blocks){.data = w->packed_ids.bytes, .sizes = w->id_sizes, .bytes = w->packed_ids.size};
    return BODHI_OK;
}

/* --- Appending --------------------------------------------------------------------------------------------------- */

static int append(bodhi_writer *w, record_header *header, field_blocks fields[FIELD_COUNT]) {
    int status = room_ask(&w->room, w->dataset, header->length + ENTRY_BYTES + (uint64_t)2 * SEGMENT_HEADER_BYTES);
    status = status == BODHI_OK ? writer_have_segment(w, header->length) : status;
    if (status != BODHI_OK) {
        return status;
    }
    header->offset = w->at.end;
    if (!writer_add_pending(w, header)) {
        return bodhi_fail_memory();
    }
    room_take(&w->room, header->length + ENTRY_BYTES);
    status = append_gathered(w, header, fields);
    if (status != BODHI_OK) {
        room_settle(&w->room, header->length);
        writer_forget_pending(w, header->offset);
    } else if (header->length >= THROUGH_BYTES && w->stream == NULL) {
        status = writer_write_gathered(w);
    }
    w->highest = status == BODHI_OK && header->number > w->highest ? header->number : w->highest;
    return status;
}

/* Read back a frame that waits for its index entry. As stored_find(). */
static int find_pending(bodhi_writer *w, uint64_t number, stored_frame *stored) {
    for (size_t i = w->n_pending; number <= w->highest && i-- > 0;) {
        const index_entry entry = w->pending[i].entry;
        if (entry.type == ENTRY_FRAME && entry.number == number) {
            int status = writer_write_gathered(w); /* on failure what was gathered is undone */
            if (status == BODHI_OK) {
                status = stored_read(w->at.fd, &w->at.key, entry.offset, entry.length, stored);
                stored->ordinal = w->at.ordinal;
            }
            return status;
        }
    }
    return BODHI_MISS;
}

/* Whether the frame is there, or about to be: others may have dropped, evicted or damaged what the tables say. */
static int find_stored(bodhi_writer *w, uint64_t number, stored_frame *stored) {
    int status = find_pending(w, number, stored);
    bodhi_place at = {0};
    if (status == BODHI_MISS && bodhi_dataset_locate(w->dataset, &(int64_t){(int64_t)number}, 1, &at) == BODHI_OK &&
        at.found) {
        int refreshed = bodhi_dataset_refresh(w->dataset);
        if (refreshed != BODHI_OK) {
            return refreshed;
        }
    }
    for (unsigned kind = BODHI_NATIVE; kind <= w->kind && status == BODHI_MISS; kind++) {
        status = stored_find(w->dataset, kind, number, stored);
    }
    return status;
}

/* EXISTS: just this frame is there; MISS: none of its number is. Errors: CONFLICT, and as stored_find(). */
static int compare_stored(bodhi_writer *w, const bodhi_frame *frame) {
    stored_frame stored;
    char why[128];
    int status = find_stored(w, (uint64_t)frame->number, &stored);
    if (status != BODHI_OK) {
        return status;
    }
    bool differs = stored_differs(&stored, frame, why, sizeof why);
    w->existing_segment = stored.ordinal;
    stored_free(&stored);
    if (differs) {
        return bodhi_fail(
            BODHI_ERROR_CONFLICT,
            "frame %lld of dataset %s is there with %s: frames of two simulations do not mix. Write under "
            "another name, go on behind the frames that are there, or 'himach cache evict' the dataset "
            "first",
            (long long)frame->number, w->dataset->name, why);
    }
    return writer_note_existing(w) ? BODHI_EXISTS : bodhi_fail_memory();
}

static int check_frame(const bodhi_writer *w, const bodhi_frame *frame, record_header *header) {
    if (frame->number < 0 || frame->number > BODHI_MAX_NUMBER || frame->n_atoms < 1 || frame->n_atoms > UINT32_MAX) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT,
                          "frame %lld with %lld atoms: needs a number from 0 to %lld, and 1 to %u atoms",
                          (long long)frame->number, (long long)frame->n_atoms, (long long)BODHI_MAX_NUMBER, UINT32_MAX);
    }
    *header = (record_header){.type = RECORD_FRAME,
                              .kind = w->kind,
                              .fields = (uint8_t)(BODHI_POSITIONS | (frame->velocities != NULL ? BODHI_VELOCITIES : 0) |
                                                  (frame->forces != NULL ? BODHI_FORCES : 0) |
                                                  (frame->ids != NULL ? BODHI_IDS : 0)),
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

/* Take the positions as they were packed. */
static void take_packed(const packer *p, record_header *header, field_blocks *positions) {
    *positions = (field_blocks){.data = p->bytes, .sizes = p->sizes, .bytes = p->n_bytes};
    header->encoding = ENCODING_PACKED;
    header->payload_bytes += positions->bytes - field_bytes(header);
    (void)layout_record(header); /* it was laid out before, and has become shorter */
}

/* Append a frame or a slice that is not there. */
static int append_new(bodhi_writer *w, const bodhi_frame *frame, record_header *header) {
    uint64_t bytes = field_bytes(header);
    field_blocks fields[FIELD_COUNT] = {{.data = frame->positions, .bytes = bytes},
                                        {.data = frame->velocities, .bytes = bytes},
                                        {.data = frame->forces, .bytes = bytes}};
    if (w->packs && pack_positions(&w->packer, frame->positions, header->n_atoms, header->block_atoms)) {
        take_packed(&w->packer, header, &fields[0]);
    }
    int status = frame->ids == NULL ? BODHI_OK : tell_ids(w, frame->ids, header, &fields[FIELD_IDS]);
    return status == BODHI_OK ? append(w, header, fields) : status;
}

int bodhi_append(bodhi_writer *writer, const bodhi_frame *frame) {
    if (writer == NULL || frame == NULL) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "writer and frame must be given");
    }
    bool ascend = true;
    for (int64_t i = 1; frame->ids != NULL && i < frame->n_atoms; i++) {
        ascend &= frame->ids[i] > frame->ids[i - 1];
    }
    if (!ascend) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "the ids of a slice of frame %lld do not ascend",
                          (long long)frame->number);
    }
    record_header header = {0};
    int status = writer->poisoned ? writer_fail_poisoned() : check_frame(writer, frame, &header);
    if (status == BODHI_OK && frame->positions == NULL) {
        status = bodhi_fail(BODHI_ERROR_ARGUMENT, "frame %lld has no positions", (long long)frame->number);
    }
    if (status != BODHI_OK) {
        return status;
    }
    writer->slices |= frame->ids != NULL;
    status = compare_stored(writer, frame);
    return status == BODHI_MISS ? append_new(writer, frame, &header) : status;
}

int bodhi_flush(bodhi_writer *writer, int durable) {
    if (writer == NULL) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "writer must be given");
    }
    int status = writer->poisoned ? writer_fail_poisoned() : writer_flush(writer, durable != 0);
    bool synced = durable == 0 || writer_sync_existing(writer);
    writer->n_existing = 0;
    return status == BODHI_OK && !synced
               ? bodhi_fail(BODHI_ERROR_SYSTEM, "frames that were there are not known to be on disk: append them again")
               : status;
}

/* --- Opening and closing ----------------------------------------------------------------------------------------- */

static uint64_t default_segment_bytes(uint64_t quota) {
    uint64_t part = quota / SEGMENTS_IN_QUOTA;
    return quota == 0 || part > LARGEST_DEFAULT ? LARGEST_DEFAULT : part < SMALLEST_DEFAULT ? SMALLEST_DEFAULT : part;
}

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
    opened->room.fd = -1;
    opened->segment_bytes =
        chosen.segment_bytes == 0 ? default_segment_bytes(dataset->store->quota) : (uint64_t)chosen.segment_bytes;
    opened->block_atoms = chosen.block_atoms == 0 ? DEFAULT_BLOCK_ATOMS : (uint32_t)chosen.block_atoms;
    opened->packs = chosen.encoding == BODHI_ENCODING_AUTO;
    *writer = opened;
    return BODHI_OK;
}

void writer_start_writeback(bodhi_writer *w, uint64_t least) {
    if (w->has_segment && w->written >= w->started + least) {
        /* A hint: whether the bytes reach the disk is asked of fdatasync() alone. */
        (void)sync_file_range(w->at.fd, (off_t)w->started, (off_t)(w->written - w->started), SYNC_FILE_RANGE_WRITE);
        w->started = w->written;
    }
}

int64_t bodhi_writer_written(const bodhi_writer *writer) {
    return writer->shown;
}

int bodhi_writer_close(bodhi_writer *writer) {
    if (writer == NULL) {
        return BODHI_OK;
    }
    int status = writer->poisoned ? writer_fail_poisoned() : writer_flush(writer, false);
    if (writer->has_segment) {
        (void)writer_release_segment(writer);
        seal_appended(writer->dataset, writer->at.ordinal, SEAL_LEAST, &writer->room);
    }
    while (writer->n_unsynced > 0) {
        io_drop(writer->unsynced[--writer->n_unsynced].fd);
    }
    stream_close(writer->stream);
    room_close(&writer->room);
    packer_free(&writer->packer);
    free(writer->id_sizes);
    free(writer->packed_ids.bytes);
    free(writer->gathered);
    free(writer->existing);
    free(writer->pending);
    free(writer);
    return status;
}
