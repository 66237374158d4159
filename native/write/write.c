/* Writing: frames become records, gathered or written through. When they become visible is flush.c's. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/memory.h"
#include "base/status.h"
#include "write/compare.h"
#include "write/sealing.h"
#include "write/writer.h"

enum {
    THROUGH_BYTES = 256 << 10, /* records from this size on are written by themselves */
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
            bool rows = w->order != NULL && i < FIELD_IDS && fields[i].sizes == NULL;
            if (rows) {
                id_order_rows(w->order, fields[i].data, (float *)(void *)at);
            } else {
                memcpy(at, fields[i].data, fields[i].bytes);
            }
            placed[i] = fields[i];
            placed[i].data = at;
            at += fields[i].bytes;
        }
    }
    memset(at, 0, (size_t)(record + header->length - at));
    write_record_head(record, header, &w->at.key, placed);
    return BODHI_OK;
}

static int append_through(bodhi_writer *w, const record_header *header, const field_blocks fields[FIELD_COUNT]) {
    static const unsigned char zeros[UNIT];
    int status = writer_write_gathered(w);
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
    if (io_write_parts(w->at.fd, parts, parts[n - 1].iov_len > 0 ? n : n - 1, w->written)) {
        w->at.end += header->length;
        w->written = w->at.end;
    } else {
        status = writer_failed(w, "write");
        (void)io_truncate(w->at.fd, w->written);
    }
    free(head);
    return status;
}

/* --- Slices ------------------------------------------------------------------------------------------------------ */

static void lay_out_told(record_header *header, size_t size) {
    header->payload_bytes += size - header->ids_bytes;
    header->ids_bytes = size;
    (void)layout_record(header); /* it was laid out before without these, which a slice's arrays hold many times */
}

/* Tell the atoms of a slice: by what differs from those of an earlier one in the segment, if that is shorter. */
static int tell_ids(bodhi_writer *w, record_header *header, field_blocks *ids, uint32_t *sizes) {
    if (!ids_encode(&w->teller, w->atoms, &w->at.key, w->at.end, header->ids_bytes)) {
        return bodhi_fail_memory();
    }
    size_t size = w->teller.told.size;
    lay_out_told(header, size);
    sizes[0] = (uint32_t)size;
    *ids = (field_blocks){.data = w->teller.told.bytes, .sizes = sizes, .bytes = size};
    return BODHI_OK;
}

/* Leave room for the bytes that tell the atoms of a slice; that these ascend has been checked. */
static int reserve_told(bodhi_writer *w, record_header *header) {
    uint32_t blocks = header->n_blocks; /* of all fields: enough */
    if (!ARRAY_FIT(w->told_sizes, w->n_told_sizes, blocks)) {
        return bodhi_fail_memory();
    }
    memset(w->told_sizes, 0, blocks * sizeof *w->told_sizes);
    lay_out_told(header, slice_told_most(w->atoms));
    return BODHI_OK;
}

/* --- Appending --------------------------------------------------------------------------------------------------- */

static int append(bodhi_writer *w, record_header *header, field_blocks fields[FIELD_COUNT]) {
    int status = room_ask(&w->room, w->dataset, header->length + ENTRY_BYTES + (uint64_t)2 * SEGMENT_HEADER_BYTES);
    if (status == BODHI_OK) {
        status = writer_have_segment(w, header->length);
    }
    if (status != BODHI_OK) {
        return status;
    }
    if (header->ids_bytes > 0) {
        status = tell_ids(w, header, &fields[FIELD_IDS], w->told_sizes);
        if (status != BODHI_OK) {
            return status;
        }
    }
    header->offset = w->at.end;
    if (!writer_add_pending(w, header)) {
        return bodhi_fail_memory();
    }
    room_take(&w->room, header->length + ENTRY_BYTES);
    bool through = header->length >= THROUGH_BYTES && w->stream == NULL;
    status = through ? append_through(w, header, fields) : append_gathered(w, header, fields);
    if (through || status != BODHI_OK) {
        room_settle(&w->room, header->length);
    }
    if (status != BODHI_OK) {
        writer_forget_pending(w, header->offset);
    }
    w->highest = status == BODHI_OK && header->number > w->highest ? header->number : w->highest;
    return status;
}

/* Read back a frame that waits for its index entry. As stored_find(). */
static int find_pending(bodhi_writer *w, uint64_t number, stored_frame *found) {
    for (size_t i = w->n_pending; number <= w->highest && i-- > 0;) {
        const index_entry entry = w->pending[i].entry;
        if (entry.type == ENTRY_FRAME && entry.number == number) {
            int status = writer_write_gathered(w); /* on failure what was gathered is undone */
            if (status == BODHI_OK) {
                status = stored_read(w->at.fd, &w->at.key, entry.offset, entry.length, found);
                found->ordinal = w->at.ordinal;
            }
            return status;
        }
    }
    return BODHI_MISS;
}

/* Whether the frame is there: as a native, or in the writer's own kind, or about to be. What the tables say is not
 * enough: others may have dropped it since, and a segment may have been evicted or damaged. */
static int find_stored(bodhi_writer *w, uint64_t number, stored_frame *found) {
    int status = find_pending(w, number, found);
    bodhi_place at = {0};
    if (status == BODHI_MISS && bodhi_dataset_locate(w->dataset, &(int64_t){(int64_t)number}, 1, &at) == BODHI_OK &&
        at.found) {
        int refreshed = bodhi_dataset_refresh(w->dataset);
        if (refreshed != BODHI_OK) {
            return refreshed;
        }
    }
    for (unsigned kind = BODHI_NATIVE; kind <= w->kind && status == BODHI_MISS; kind++) {
        status = stored_find(w->dataset, kind, number, found);
    }
    return status;
}

/* A slice as it is stored, its atoms in order, until the next; NULL: memory is out. */
static const bodhi_frame *put_in_order(bodhi_writer *w, const bodhi_frame *frame, id_order *order, bodhi_frame *out) {
    const float *from[] = {frame->positions, frame->velocities, frame->forces};
    float **to[] = {&out->positions, &out->velocities, &out->forces};
    size_t n = (size_t)frame->n_atoms * 3;
    if (!ARRAY_FIT(w->ordered, w->n_ordered, n * FIELD_IDS)) {
        return NULL;
    }
    *out = *frame;
    out->ids = id_order_ids(order);
    for (unsigned i = 0; i < FIELD_IDS; i++) {
        if (from[i] != NULL) {
            id_order_rows(order, from[i], w->ordered + i * n);
            *to[i] = w->ordered + i * n;
        }
    }
    return out;
}

/* EXISTS: just this frame is there; MISS: none of its number is. Errors: CONFLICT, and as stored_find(). */
static int compare_stored(bodhi_writer *w, const bodhi_frame *frame, id_order *order) {
    stored_frame found;
    char why[128];
    int status = find_stored(w, (uint64_t)frame->number, &found);
    if (status != BODHI_OK) {
        return status;
    }
    bodhi_frame ordered;
    frame = order == NULL ? frame : put_in_order(w, frame, order, &ordered);
    if (frame == NULL) {
        stored_free(&found);
        return bodhi_fail_memory();
    }
    bool differs = stored_differs(&found, frame, why, sizeof why);
    w->found = found.ordinal;
    stored_free(&found);
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

static int check_frame(const bodhi_writer *w, const bodhi_frame *frame, bool is_slice, record_header *header) {
    if (frame->number < 0 || frame->number > BODHI_MAX_NUMBER || frame->n_atoms < 1 || frame->n_atoms > UINT32_MAX) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT,
                          "frame %lld with %lld atoms: needs a number from 0 to %lld, and 1 to %u atoms",
                          (long long)frame->number, (long long)frame->n_atoms, (long long)BODHI_MAX_NUMBER, UINT32_MAX);
    }
    *header =
        (record_header){.type = RECORD_FRAME,
                        .kind = w->kind,
                        .fields = (uint8_t)(BODHI_POSITIONS | (frame->velocities != NULL ? BODHI_VELOCITIES : 0) |
                                            (frame->forces != NULL ? BODHI_FORCES : 0) | (is_slice ? BODHI_IDS : 0)),
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

/* Pack positions that lie on a grid. */
static bool pack(bodhi_writer *w, const bodhi_frame *frame, const record_header *header) {
    const float *positions = frame->positions;
    bodhi_frame ordered;
    if (!w->packs || !pack_may(&w->packer, positions, header->n_atoms)) {
        return false;
    }
    if (w->order != NULL) {
        bodhi_frame rows = *frame;
        rows.velocities = rows.forces = NULL;
        const bodhi_frame *in_order = put_in_order(w, &rows, w->order, &ordered);
        positions = in_order != NULL ? in_order->positions : NULL;
    }
    return positions != NULL && pack_positions(&w->packer, positions, header->n_atoms, header->block_atoms);
}

/* Append a frame, or a slice, whose atoms are set in the writer, that is not there. */
static int append_new(bodhi_writer *w, const bodhi_frame *frame, record_header *header) {
    uint64_t bytes = field_bytes(header);
    field_blocks fields[FIELD_COUNT] = {{.data = frame->positions, .bytes = bytes},
                                        {.data = frame->velocities, .bytes = bytes},
                                        {.data = frame->forces, .bytes = bytes}};
    if (pack(w, frame, header)) {
        take_packed(&w->packer, header, &fields[0]);
    }
    int status = w->atoms.n > 0 ? reserve_told(w, header) : BODHI_OK;
    status = status == BODHI_OK ? append(w, header, fields) : status;
    if (status != BODHI_OK) {
        ids_encoder_forget(&w->teller); /* it may have been undone */
    }
    return status;
}

static int append_frame(bodhi_writer *w, const bodhi_frame *frame, slice_atoms atoms, id_order *order) {
    record_header header = {0};
    int status = w->poisoned ? writer_fail_poisoned() : check_frame(w, frame, atoms.n > 0, &header);
    if (status == BODHI_OK && frame->positions == NULL) {
        status = bodhi_fail(BODHI_ERROR_ARGUMENT, "frame %lld has no positions", (long long)frame->number);
    }
    if (status != BODHI_OK) {
        return status;
    }
    w->slices |= atoms.n > 0;
    status = compare_stored(w, frame, order);
    if (status != BODHI_MISS) {
        return status;
    }
    w->atoms = atoms;
    w->order = order;
    status = append_new(w, frame, &header);
    w->order = NULL;
    return status;
}

int writer_append_slice(bodhi_writer *w, const bodhi_frame *frame, id_order *order) {
    slice_atoms atoms = {.n = order->n};
    if (order->dense) {
        atoms.bits = order->bits;
    } else {
        atoms.ids = order->sorted;
    }
    return append_frame(w, frame, atoms, order);
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
    size_t n = frame->ids != NULL && frame->n_atoms > 0 ? (size_t)frame->n_atoms : 0;
    return append_frame(writer, frame, (slice_atoms){.ids = frame->ids, .n = n}, NULL);
}

/* Append a frame by its positions, which are those of steps. */
static int append_steps(bodhi_writer *w, const bodhi_frame *frame, const int32_t *steps, packed_grid grid) {
    size_t n = (size_t)frame->n_atoms * PACKED_AXES;
    float *positions = malloc(n * sizeof *positions);
    if (positions == NULL) {
        return bodhi_fail_memory();
    }
    for (size_t i = 0; i < n; i++) {
        positions[i] = packed_position((uint32_t)steps[i], grid);
    }
    bodhi_frame whole = *frame;
    whole.positions = positions;
    int status = bodhi_append(w, &whole);
    free(positions);
    return status;
}

int writer_append_xtc(bodhi_writer *w, const bodhi_frame *frame, const xtc_frame *coded, packed_grid grid) {
    record_header header = {0};
    int status = w->poisoned ? writer_fail_poisoned() : check_frame(w, frame, frame->ids != NULL, &header);
    if (status != BODHI_OK) {
        return status;
    }
    int32_t *steps = pack_room(&w->packer, header.n_atoms, header.block_atoms);
    if (steps == NULL) {
        return bodhi_fail_memory();
    }
    if (xtc_decode_steps(coded, header.n_atoms, header.n_atoms, steps) != XTC_OK) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "the coordinates of frame %lld are damaged", (long long)frame->number);
    }
    stored_frame found;
    status = find_stored(w, header.number, &found);
    if (status == BODHI_OK) {
        stored_free(&found);
    } else if (status != BODHI_MISS) {
        return status;
    }
    if (status == BODHI_OK || !w->packs || !pack_steps(&w->packer, grid, header.n_atoms, header.block_atoms)) {
        return append_steps(w, frame, steps, grid);
    }
    field_blocks fields[FIELD_COUNT] = {{0}};
    take_packed(&w->packer, &header, &fields[0]);
    return append(w, &header, fields);
}

int bodhi_flush(bodhi_writer *writer, int durable) {
    if (writer == NULL) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "writer must be given");
    }
    int status = writer->poisoned ? writer_fail_poisoned() : writer_flush(writer, durable != 0);
    if (status != BODHI_OK) {
        ids_encoder_forget(&writer->teller);
    }
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
    free(writer->told_sizes);
    free(writer->ordered);
    ids_encoder_free(&writer->teller);
    free(writer->gathered);
    free(writer->existing);
    free(writer->pending);
    free(writer);
    return status;
}
