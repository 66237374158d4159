/* What a writer has appended and not written yet: gathered in memory and written at once, or by a stream. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/memory.h"
#include "base/status.h"
#include "write/writer.h"

int writer_failed(bodhi_writer *w, const char *call) {
    int status = bodhi_fail_system(errno, call, w->at.name);
    w->poisoned = w->poisoned || status == BODHI_ERROR_SYSTEM;
    return status;
}

int writer_fail_poisoned(void) {
    return bodhi_fail(BODHI_ERROR_POISONED, "an earlier write of this writer failed; close it and open another");
}

bool writer_add_pending(bodhi_writer *w, const record_header *header) {
    if (!ARRAY_GROW(w->pending, w->pending_capacity, w->n_pending + 1)) {
        return false;
    }
    w->pending[w->n_pending++] = (pending_record){.entry = entry_of(header), .at = header->offset};
    return true;
}

void writer_forget_pending(bodhi_writer *w, uint64_t at) {
    size_t before = w->n_pending;
    while (w->n_pending > 0 && w->pending[w->n_pending - 1].at >= at) {
        w->n_pending--;
    }
    room_settle(&w->room, (before - w->n_pending) * ENTRY_BYTES);
}

/* Undo all records from `at` on, which could not be written; errno says why. */
static int undo(bodhi_writer *w, uint64_t at) {
    int status = writer_failed(w, "write");
    (void)io_truncate(w->at.fd, at);
    w->at.end = w->written = at;
    writer_forget_pending(w, at);
    return status;
}

int writer_begin_streaming(bodhi_writer *w, bool direct) {
    w->direct = direct;
    w->stream = stream_open();
    return w->stream == NULL ? bodhi_fail_memory() : BODHI_OK;
}

void writer_attach_stream(bodhi_writer *w) {
    if (w->stream != NULL) {
        int direct = w->direct ? io_open(w->dataset->fd, w->at.name, O_WRONLY | O_DIRECT) : -1;
        stream_to(w->stream, w->at.fd, direct, w->at.end);
    }
}

int writer_settle_stream(bodhi_writer *w) {
    uint64_t failed_at;
    if (w->stream == NULL || !w->has_segment || !stream_has_failed(w->stream, &failed_at)) {
        return BODHI_OK;
    }
    stream_wait(w->stream);
    uint64_t from = failed_at;
    for (size_t i = w->n_pending; i-- > 0 && w->pending[i].at + w->pending[i].entry.length > failed_at;) {
        from = w->pending[i].at < from ? w->pending[i].at : from; /* its beginning may have been written */
    }
    uint64_t lost = w->at.end - from + stream_written(w->stream);
    (void)stream_has_failed(w->stream, &failed_at); /* for errno */
    int status = undo(w, from);
    room_settle(&w->room, lost);
    writer_attach_stream(w);
    return status;
}

int writer_write_gathered(bodhi_writer *w) {
    if (w->stream != NULL) {
        stream_push(w->stream);
        stream_wait(w->stream);
        int status = writer_settle_stream(w);
        w->written = w->at.end;
        room_settle(&w->room, stream_written(w->stream));
        return status;
    }
    if (w->n_gathered == 0) {
        return BODHI_OK;
    }
    bool done = io_write(w->at.fd, w->gathered, w->n_gathered, w->written);
    room_settle(&w->room, w->n_gathered);
    w->n_gathered = 0;
    if (done) {
        w->written = w->at.end;
        return BODHI_OK;
    }
    return undo(w, w->written);
}

/* As writer_gather(). */
static unsigned char *gather_streamed(bodhi_writer *w, uint64_t length, int *status) {
    *status = writer_settle_stream(w);
    unsigned char *record = *status == BODHI_OK ? stream_room(w->stream, (size_t)length) : NULL;
    if (*status == BODHI_OK && record == NULL) {
        *status = bodhi_fail_memory();
    }
    uint64_t written = stream_written(w->stream);
    if (written > 0) { /* of thousands of slices, few fill a buffer */
        room_settle(&w->room, written);
    }
    w->at.end += record != NULL ? length : 0;
    return record;
}

unsigned char *writer_gather(bodhi_writer *w, uint64_t length, int *status) {
    if (w->stream != NULL) {
        return gather_streamed(w, length, status);
    }
    size_t needed = length > GATHER_BYTES ? (size_t)length : GATHER_BYTES;
    *status = w->n_gathered + length > w->gather_capacity ? writer_write_gathered(w) : BODHI_OK;
    if (*status == BODHI_OK && !ARRAY_FIT(w->gathered, w->gather_capacity, needed)) {
        *status = bodhi_fail_memory();
    }
    if (*status != BODHI_OK) {
        return NULL;
    }
    unsigned char *record = w->gathered + w->n_gathered;
    w->n_gathered += (size_t)length;
    w->at.end += length;
    return record;
}
