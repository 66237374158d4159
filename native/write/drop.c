/* Dropping frames: a tombstone for every copy. */
#include "base/status.h"
#include "write/writer.h"

static int append_tombstone(bodhi_writer *w, const tombstone *dead) {
    uint64_t bytes = TOMBSTONE_BYTES + ENTRY_BYTES;
    int status = room_ask(&w->room, w->dataset, bytes + (uint64_t)2 * SEGMENT_HEADER_BYTES);
    if (status == BODHI_OK || status == BODHI_ERROR_FULL) { /* in a store that is full, dropping is what makes room */
        status = writer_have_segment(w, TOMBSTONE_BYTES);
    }
    if (status != BODHI_OK) {
        return status;
    }
    room_take(&w->room, bytes);
    record_header header = {.type = RECORD_TOMBSTONE,
                            .kind = w->kind,
                            .number = dead->number,
                            .offset = w->at.end,
                            .target_segment = dead->segment,
                            .target_offset = dead->offset};
    unsigned char *record = writer_gather(w, TOMBSTONE_BYTES, &status);
    if (record == NULL) {
        return status;
    }
    write_tombstone(record, &header, &w->at.key);
    return writer_add_pending(w, &header) ? BODHI_OK : bodhi_fail_memory();
}

/* The next copies of a frame, up to `capacity` of them. */
static size_t copies_of(bodhi_dataset *dataset, unsigned kind, uint64_t number, copy_cursor *at, tombstone *copies,
                        size_t capacity) {
    size_t n = 0;
    place copy;
    pthread_mutex_lock(&dataset->mutex);
    while (n < capacity && dataset_next_copy(dataset, kind, number, at, &copy)) {
        copies[n++] = (tombstone){.segment = dataset->segments[copy.segment]->key.segment,
                                  .offset = (uint64_t)copy.offset * UNIT,
                                  .number = number};
    }
    pthread_mutex_unlock(&dataset->mutex);
    return n;
}

/* Drop every copy of a frame; *dropped grows by 1 if there was one. */
static int drop_frame(bodhi_writer *w, uint64_t number, int64_t *dropped) {
    enum { COPIES_AT_ONCE = 16 };
    tombstone copies[COPIES_AT_ONCE];
    copy_cursor at = {0};
    size_t there;
    bool any = false;
    while ((there = copies_of(w->dataset, w->kind, number, &at, copies, COPIES_AT_ONCE)) > 0) {
        for (size_t copy = 0; copy < there; copy++) {
            int status = append_tombstone(w, &copies[copy]);
            if (status != BODHI_OK) {
                return status;
            }
        }
        any = true;
    }
    *dropped += any;
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
    status = bodhi_dataset_refresh(dataset); /* also what others have written since goes */
    for (int64_t i = 0; i < n && status == BODHI_OK; i++) {
        status = numbers[i] < 0 ? BODHI_OK : drop_frame(w, (uint64_t)numbers[i], dropped);
    }
    int closed = bodhi_writer_close(w);
    return status != BODHI_OK ? status : closed;
}
