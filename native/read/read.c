/* Reading: frames are asked for in any order, read in the order of the segments, and delivered as asked.
 *
 * Which requests that takes is window.c's. The list is worked off in windows of at most a few megabytes. What the page
 * cache has is read a small window at a time by the caller itself, so that the bytes are still in the processor's cache
 * when they are checked and used. At the first window that is not cached two threads take over, keep a ring of windows
 * filled, and take the checksums. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/threads.h"
#include "codec/ids.h"
#include "codec/packed.h"
#include "read/reader.h"

enum { SMALL_WINDOW = 128 << 10 }; /* bytes, for what is cached: it is read into a core's own cache, and used there */
#define WHOLE_TURN (UINT64_C(1) << 40)

/* --- Records in a window ----------------------------------------------------------------------------------------- */

/* A record of which a window has read some pieces. */
typedef struct {
    unsigned char *bytes;
    record_header header;
    piece whole; /* scratch */
    const piece *pieces;
    size_t n_pieces;
} record_view;

/* Parse the head; false if it is not the one of the frame that is wanted. */
static bool find_record(const bodhi_reader *r, const window *from, const item *at, const target *w, record_view *view) {
    const place *p = &w->place;
    const record_header *header = &view->header;
    uint64_t length = (uint64_t)p->length * UNIT;
    size_t more;
    view->bytes = from->buffer + at->at;
    view->pieces = window_pieces(r, from, p, &view->whole, &view->n_pieces);
    uint64_t head = view->pieces[0].end < length ? view->pieces[0].end : length;
    return parse_record(view->bytes, (size_t)head, &r->locator->keys[p->segment], (uint64_t)p->offset * UNIT,
                        &view->header, &more) == PARSED &&
           is_readable(header) && header->number == p->number && header->length == length &&
           (header->fields | header->encoding << 4) == p->fields;
}

/* Take the checksums of a window that was just read. What is not right is left for the delivery to find. */
static void check_window(const bodhi_reader *r, window *w) {
    for (size_t i = 0; w->status == BODHI_OK && i < w->count; i++) {
        const target *frame = &r->list[w->first + i];
        item *at = &w->items[i];
        record_view view;
        if (frame->kind >= 0 && at->error == 0 && find_record(r, w, at, frame, &view)) {
            enum unpacked unpacked =
                unpack_fields(view.bytes, &view.header, &r->subset, view.pieces, view.n_pieces, NULL, NULL);
            at->checked = unpacked == UNPACKED;
            w->layout.stale = w->layout.stale || unpacked == UNPACK_UNREAD;
        }
    }
}

/* --- The threads ------------------------------------------------------------------------------------------------- */

/* Both threads fill windows at the same time, so that the disk has a request waiting while one takes checksums. */
static void *read_ahead(void *argument) {
    bodhi_reader *r = argument;
    size_t ring = (size_t)r->options.ring;
    uint64_t budget = (uint64_t)r->options.request_bytes;
    pthread_mutex_lock(&r->mutex);
    while (r->planned < r->located && !r->stopping) {
        if (r->taken - r->emptied == ring) {
            pthread_cond_wait(&r->changed, &r->mutex);
            continue;
        }
        size_t slot = r->taken++ % ring;
        size_t first = r->planned;
        r->planned += window_count(r, first, budget);
        pthread_mutex_unlock(&r->mutex);
        (void)window_fill(r, &r->windows[slot], first, budget, r->direct ? FILL_DIRECT : FILL_BUFFERED);
        check_window(r, &r->windows[slot]);
        pthread_mutex_lock(&r->mutex);
        r->ready[slot] = true;
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->mutex);
    return NULL;
}

static window *await_window(bodhi_reader *r) {
    size_t ring = (size_t)r->options.ring;
    pthread_mutex_lock(&r->mutex);
    if (r->current != NULL) {
        r->ready[r->emptied % ring] = false;
        r->emptied++;
        pthread_cond_broadcast(&r->changed);
    }
    while (!r->ready[r->emptied % ring]) {
        pthread_cond_wait(&r->changed, &r->mutex);
    }
    window *w = &r->windows[r->emptied % ring];
    pthread_mutex_unlock(&r->mutex);
    return w;
}

/* Start the threads. False if there is none. */
static bool start_threads(bodhi_reader *r) {
    r->planned = r->next;
    while (r->n_threads < MAX_THREADS && thread_start(&r->threads[r->n_threads], read_ahead, r)) {
        r->n_threads++;
    }
    return r->n_threads > 0;
}

/* Read all that was located before others have their turn. */
static window *read_turn(bodhi_reader *r, window *w) {
    (void)window_fill(r, w, r->next, WHOLE_TURN, FILL_BUFFERED);
    if (w->first + w->count == r->located) {
        r->locator->end_turn(r->locator);
    }
    return w;
}

/* The window that holds the next frame. */
static window *next_window(bodhi_reader *r) {
    if (r->n_threads > 0) {
        return await_window(r);
    }
    window *w = &r->windows[0];
    r->current = NULL;
    if (r->locator->end_turn != NULL) {
        return read_turn(r, w);
    }
    if (r->part == 0) {
        window_estimate(r, w, r->next);
    }
    if (r->locator->fetch == NULL && window_fill(r, w, r->next, SMALL_WINDOW, FILL_CACHED)) {
        return w;
    }
    if (r->options.no_thread == 0 && start_threads(r)) {
        return await_window(r);
    }
    (void)window_fill(r, w, r->next, (uint64_t)r->options.request_bytes, r->direct ? FILL_DIRECT : FILL_BUFFERED);
    return w;
}

void reader_join(bodhi_reader *r) {
    pthread_mutex_lock(&r->mutex);
    r->stopping = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->mutex);
    while (r->n_threads > 0) {
        pthread_join(r->threads[--r->n_threads], NULL);
    }
    r->stopping = false;
    r->taken = r->emptied = 0;
    memset(r->ready, 0, sizeof r->ready);
}

/* Go on to frames of which it is not known yet where they lie; those before them were delivered. */
static int locate_more(bodhi_reader *r) {
    size_t count = 0;
    reader_join(r);
    r->current = NULL;
    int status = r->locator->locate(r->locator, r->list + r->next, r->n - r->next, &count);
    r->located += count;
    return status;
}

/* --- Delivering -------------------------------------------------------------------------------------------------- */

static int32_t reason_of(int error) {
    switch (error) {
    case -1:
        return BODHI_REASON_DAMAGED;
    case EIO:
        return BODHI_REASON_IO;
    case ENOENT:
        return BODHI_REASON_GONE;
    case ENOTCONN:
        return BODHI_REASON_UNREACHABLE;
    default:
        return BODHI_REASON_RESOURCES;
    }
}

enum taken { TAKEN, TAKEN_DAMAGED, TAKEN_UNREAD, TAKEN_NO_MEMORY };

/* Take the atoms of a slice, whose bytes are right. */
static enum taken take_ids(bodhi_reader *r, const record_view *view, const unsigned char *packed_ids) {
    const record_header *header = &view->header;
    uint32_t size;
    (void)slice_ids_at(view->bytes, header, &size);
    if (!ARRAY_FIT(r->ids, r->id_capacity, header->n_atoms)) {
        return TAKEN_NO_MEMORY;
    }
    return ids_read(packed_ids, size, r->ids, header->n_atoms) ? TAKEN : TAKEN_DAMAGED;
}

/* Check the record of `w`, of which a window has read some pieces, and point `frame` to what it holds. */
static enum taken take(bodhi_reader *r, const window *from, const item *at, const target *w, bodhi_frame *frame) {
    record_view view;
    if (!find_record(r, from, at, w, &view)) {
        return TAKEN_DAMAGED;
    }
    const record_header *header = &view.header;
    if (header->encoding == ENCODING_PACKED && r->options.check_only == 0 &&
        !ARRAY_FIT(r->positions, r->position_capacity, (size_t)header->n_atoms * PACKED_AXES)) {
        return TAKEN_NO_MEMORY;
    }
    selection subset = r->subset;
    subset.unverified = at->checked;
    float *fields[FIELD_COUNT] = {NULL};
    enum unpacked unpacked = unpack_fields(view.bytes, header, &subset, view.pieces, view.n_pieces, r->positions,
                                           r->options.check_only != 0 ? NULL : fields);
    if (unpacked != UNPACKED) {
        return unpacked == UNPACK_UNREAD ? TAKEN_UNREAD : TAKEN_DAMAGED;
    }
    const unsigned char *packed_ids = (const unsigned char *)(void *)fields[FIELD_IDS];
    enum taken ids = packed_ids != NULL ? take_ids(r, &view, packed_ids) : TAKEN;
    if (ids != TAKEN) {
        return ids;
    }
    memcpy(r->box, header->box, sizeof r->box);
    *frame = (bodhi_frame){.number = (int64_t)header->number,
                           .time = header->time,
                           .n_atoms = header->n_atoms,
                           .positions = fields[0],
                           .velocities = fields[1],
                           .forces = fields[2],
                           .box = header->has_box ? r->box : NULL,
                           .kind = w->kind,
                           .ids = fields[FIELD_IDS] != NULL ? r->ids : NULL};
    r->bytes += (int64_t)window_needs(r, from, &w->place);
    return TAKEN;
}

/* Read the frame at list[index] by itself. Returns the item's error. */
static int read_spare(bodhi_reader *r, size_t index) {
    (void)window_fill(r, &r->spare, index, 0, FILL_BUFFERED);
    return r->spare.status != BODHI_OK ? ENOMEM : r->spare.items[0].error;
}

/* Take the frame at list[index] from a window. */
static enum taken take_item(bodhi_reader *r, const window *from, size_t index, bodhi_frame *frame) {
    const item *at = &from->items[index - from->first];
    return take(r, from, at, &r->list[index], frame);
}

static int deliver(bodhi_reader *r, window *from, bodhi_frame *frame) {
    size_t index = r->next;
    target *w = &r->list[index];
    int32_t reason = w->reason;
    int error = from->status != BODHI_OK ? ENOMEM : from->items[index - from->first].error;
    /* It may be another record of the same request that could not be read; what another machine refuses, it refuses. */
    bool again = from->status == BODHI_OK && (error == -1 || r->locator->fetch == NULL);
    while (w->kind >= 0) {
        enum taken taken = error == 0 ? take_item(r, from, index, frame) : again ? TAKEN_UNREAD : TAKEN_DAMAGED;
        if (taken == TAKEN_UNREAD && from != &r->spare) {
            from->layout.stale = true;
            error = read_spare(r, index);
            from = &r->spare;
            continue;
        }
        if (taken == TAKEN) {
            return BODHI_OK;
        }
        error = taken == TAKEN_NO_MEMORY ? ENOMEM : error;
        reason = reason_of(error == 0 ? -1 : error);
        if (reason == BODHI_REASON_RESOURCES || reason == BODHI_REASON_GONE) {
            break;
        }
        r->locator->pass_over(r->locator, w);
        if (w->kind >= 0) {
            error = read_spare(r, index);
            from = &r->spare;
        }
    }
    *frame = (bodhi_frame){.number = (int64_t)w->place.number, .reason = reason};
    return BODHI_MISS;
}

int bodhi_reader_next(bodhi_reader *reader, bodhi_frame *frame) {
    if (reader == NULL || frame == NULL) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "reader and frame must be given");
    }
    if (reader->next == reader->n) {
        return BODHI_END;
    }
    if (reader->next == reader->located) {
        int status = locate_more(reader);
        if (status != BODHI_OK) {
            return status;
        }
    }
    const window *w = reader->current;
    if (w == NULL || reader->next >= w->first + w->count) {
        reader->current = next_window(reader);
    }
    int status = deliver(reader, reader->current, frame);
    reader->next++;
    return status;
}

int64_t bodhi_reader_bytes(const bodhi_reader *reader) {
    return reader->bytes;
}
