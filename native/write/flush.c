/* What a writer appends becomes visible in this order: record bytes, (durably: fdatasync), index entries, the table of
 * this process. A process killed in between leaves whole records without entries, which the next writer or reader
 * finds. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/memory.h"
#include "base/status.h"
#include "write/writer.h"

/* Sync a full segment, and close it. */
static bool sync_segment(bodhi_writer *w, const unsynced_segment *s) {
    bool done = io_sync(s->fd);
    int error = errno;
    io_drop(s->fd);
    if (!done) {
        dataset_doubt(w->dataset, s->ordinal); /* at once: nobody else is told of the failure */
    }
    errno = error;
    return done;
}

/* Sync the full segments, and the names of all. */
static bool sync_full(bodhi_writer *w) {
    bool done = !w->unsynced_names || dataset_sync_names(w->dataset);
    for (int i = 0; i < w->n_unsynced; i++) {
        done = sync_segment(w, &w->unsynced[i]) && done;
    }
    for (int i = 0; i < w->n_unsynced && !done; i++) {
        dataset_doubt(w->dataset, w->unsynced[i].ordinal);
    }
    w->n_unsynced = 0;
    w->unsynced_names = false;
    return done;
}

bool writer_release_segment(bodhi_writer *w) {
    bool synced = true;
    if (w->stream != NULL) {
        stream_to(w->stream, -1, -1, 0);
    }
    io_drop(w->at.index_fd);
    w->has_segment = false;
    w->n_pending = 0;
    w->n_gathered = 0;
    if (w->n_unsynced == MAX_UNSYNCED) {
        synced = sync_segment(w, &w->unsynced[0]);
        memmove(w->unsynced, w->unsynced + 1, (MAX_UNSYNCED - 1) * sizeof *w->unsynced);
        w->n_unsynced--;
    }
    io_unlock(w->at.fd, LOCK_WRITER);
    w->unsynced[w->n_unsynced++] = (unsynced_segment){.fd = w->at.fd, .ordinal = w->at.ordinal};
    w->poisoned = w->poisoned || !synced;
    return synced;
}

/* Whether a sync of the segment has failed: a second one would say that all is well. */
static bool is_doubtful(const bodhi_writer *w) {
    pthread_mutex_lock(&w->dataset->mutex);
    bool doubtful = w->dataset->segments[w->at.ordinal]->doubtful;
    pthread_mutex_unlock(&w->dataset->mutex);
    errno = EIO;
    return doubtful;
}

static bool sync_all(bodhi_writer *w) {
    bool done = !w->has_segment || (io_sync(w->at.fd) && !is_doubtful(w));
    return sync_full(w) && done;
}

/* Write the index entries of the pending records. */
static bool write_entries(bodhi_writer *w) {
    size_t n = w->n_pending;
    unsigned char *bytes = malloc(n * ENTRY_BYTES);
    if (bytes == NULL) {
        errno = ENOMEM;
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        write_entry(bytes + i * ENTRY_BYTES, &w->pending[i].entry, w->at.key.segment);
    }
    bool done = io_write(w->at.index_fd, bytes, n * ENTRY_BYTES, w->at.index_end);
    int error = errno;
    room_settle(&w->room, n * ENTRY_BYTES);
    free(bytes);
    errno = error;
    return done;
}

/* Take the pending records into the table by reading the entries back, as any other process does. */
static int publish(bodhi_writer *w) {
    bodhi_dataset *dataset = w->dataset;
    int64_t frames = 0;
    for (size_t i = 0; i < w->n_pending; i++) {
        frames += w->pending[i].entry.type == ENTRY_FRAME;
    }
    w->at.index_end += w->n_pending * ENTRY_BYTES;
    w->n_pending = 0;
    pthread_mutex_lock(&dataset->mutex);
    (void)dataset_load(dataset, w->at.ordinal, true); /* if this fails, a refresh does it later */
    bool gone = dataset->segments[w->at.ordinal]->gone;
    if (gone) {
        dataset_forget(dataset, w->at.ordinal);
    }
    pthread_mutex_unlock(&dataset->mutex);
    if (gone) { /* the file was deleted under us, though it was locked: what was written is nowhere */
        w->poisoned = true;
        return bodhi_fail_system(ENOENT, "the segment was deleted", w->at.name);
    }
    w->shown += frames;
    return BODHI_OK;
}

/* After a failed fsync nobody knows whether the bytes that have no index entry yet are on disk: cut them off, so that
 * nobody finds them, and leave the segment alone, so that it is not synced once more. */
static int fail_sync(bodhi_writer *w) {
    int error = errno == ENOSPC || errno == EDQUOT ? EIO : errno;
    w->poisoned = true; /* not tried again */
    if (w->stream != NULL) {
        stream_wait(w->stream); /* so that nothing comes to lie where it is cut */
    }
    if (w->has_segment && w->n_pending > 0) {
        (void)io_truncate(w->at.fd, w->pending[0].at);
        w->n_pending = 0;
    }
    if (w->has_segment) {
        dataset_doubt(w->dataset, w->at.ordinal);
    }
    return bodhi_fail_system(error, "fdatasync", w->at.name);
}

/* Make the pending records visible. */
static int show(bodhi_writer *w) {
    if (w->n_pending == 0) {
        return BODHI_OK;
    }
    if (!write_entries(w)) {
        int error = writer_failed(w, "write of the index");
        (void)io_truncate(w->at.index_fd, w->at.index_end);
        room_settle(&w->room, w->room.outstanding - w->room.left); /* it is in the file, or goes with the segment */
        (void)writer_release_segment(w);
        return error;
    }
    return publish(w);
}

int writer_flush(bodhi_writer *w, bool durable) {
    w->durable = w->durable || durable;
    int status = writer_write_gathered(w);
    if (w->poisoned) {
        return status;
    }
    if (durable && !sync_all(w)) {
        return fail_sync(w);
    }
    int shown = show(w);
    return status != BODHI_OK ? status : shown;
}

bool writer_note_existing(bodhi_writer *w) {
    if (w->n_existing > 0 && w->existing[w->n_existing - 1] == w->existing_segment) {
        return true;
    }
    if (!ARRAY_GROW(w->existing, w->existing_capacity, w->n_existing + 1)) {
        return false;
    }
    w->existing[w->n_existing++] = w->existing_segment;
    return true;
}

/* A segment of slices goes when all its frames are on disk: what was found in it is kept. */
static bool is_done_with(const bodhi_writer *w, uint32_t ordinal) {
    pthread_mutex_lock(&w->dataset->mutex);
    bool gone = w->dataset->segments[ordinal]->gone;
    pthread_mutex_unlock(&w->dataset->mutex);
    return w->slices && gone;
}

bool writer_sync_existing(bodhi_writer *w) {
    bool done = true;
    for (size_t i = 0; i < w->n_existing; i++) {
        done = (dataset_sync_segment(w->dataset, w->existing[i]) || is_done_with(w, w->existing[i])) && done;
    }
    return done;
}

/* Flush and release a full segment. */
static int close_segment(bodhi_writer *w) {
    /* What is shown before it is synced, and then could not be, would be there for all others. */
    int status = writer_flush(w, w->durable);
    uint32_t ordinal = w->at.ordinal;
    if (status == BODHI_OK && !writer_release_segment(w)) {
        return writer_failed(w, "fdatasync");
    }
    if (status == BODHI_OK) {
        seal_appended(w->dataset, ordinal, SEAL_LEAST, &w->room);
    }
    return status;
}

int writer_have_segment(bodhi_writer *w, uint64_t length) {
    if (w->has_segment && (w->at.end + length <= w->segment_bytes || w->at.end == SEGMENT_HEADER_BYTES)) {
        return BODHI_OK;
    }
    if (w->has_segment) {
        int status = close_segment(w);
        if (status != BODHI_OK) {
            return status;
        }
    }
    w->at = (claim){.fd = -1, .index_fd = -1};
    pthread_mutex_lock(&w->dataset->mutex);
    int status = claim_segment(w->dataset, w->kind, length, w->segment_bytes, &w->at);
    pthread_mutex_unlock(&w->dataset->mutex);
    if (status == BODHI_OK) {
        w->has_segment = true;
        w->written = w->at.end;
        w->started = w->at.end;
        writer_attach_stream(w);
        w->unsynced_names = true; /* another writer that made the segment need not have synced its name */
        if (w->at.created) {
            room_take(&w->room, (uint64_t)2 * SEGMENT_HEADER_BYTES);
            room_settle(&w->room, (uint64_t)2 * SEGMENT_HEADER_BYTES);
        }
    }
    return status;
}
