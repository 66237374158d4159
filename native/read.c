/* Reading: frames are asked for in any order, read in the order of the segments, and delivered as asked.
 *
 * Which requests that takes is window.c's. The list is worked off in windows of at most a few megabytes. What the page
 * cache has is read a small window at a time by the caller itself, so that the bytes are still in the processor's cache
 * when they are checked and used. At the first window that is not cached two threads take over, keep a ring of windows
 * filled, and take the checksums. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io.h"
#include "reader.h"
#include "status.h"

enum {
    SMALL_WINDOW = 128 << 10, /* bytes, for what is cached: it is read into a core's own cache, and used there */
    NEAR_ATOMS = 64,
    MOST_LEFT = 64 << 20, /* bytes of memory that a reader leaves to the next */
    /* What is read through the page cache is best checked while the processor's cache has it; a direct read is best a
     * huge page. Rings this small stay in the processor's cache, which was worth 10 to 20 %. */
    BUFFERED_RING = 6,
    DIRECT_RING = 3,
    BUFFERED_REQUEST = 512 << 10,
    DIRECT_REQUEST = 2 << 20
};
#define MAX_REQUEST (INT64_C(1) << 30)

/* --- Records in a window ----------------------------------------------------------------------------------------- */

/* A record of which a window has read some pieces. */
typedef struct {
    unsigned char *bytes;
    record_header header;
    piece whole; /* scratch */
    const piece *pieces;
    size_t n_pieces;
} found_record;

/* Parse the head; false if it is not the one of the frame that is wanted. */
static bool find_record(const bodhi_reader *r, const window *from, const item *at, const wanted *w,
                        found_record *found) {
    const place *p = &w->place;
    const record_header *header = &found->header;
    uint64_t length = (uint64_t)p->length * UNIT;
    size_t more;
    found->bytes = from->buffer + at->at;
    found->pieces = window_pieces(r, from, p, &found->whole, &found->n_pieces);
    uint64_t head = found->pieces[0].end < length ? found->pieces[0].end : length;
    return parse_record(found->bytes, (size_t)head, &r->keys[p->segment], (uint64_t)p->offset * UNIT, &found->header,
                        &more) == PARSED &&
           is_readable(header) && header->number == p->number && header->length == length &&
           (header->fields | header->encoding << 4) == p->fields;
}

/* Take the checksums of a window that was just read. What is not right is left for the delivery to find. */
static void check_window(const bodhi_reader *r, window *w) {
    for (size_t i = 0; w->status == BODHI_OK && !r->asked.unverified && i < w->count; i++) {
        const wanted *asked = &r->list[w->first + i];
        item *at = &w->items[i];
        found_record found;
        at->checked = asked->kind >= 0 && at->error == 0 && find_record(r, w, at, asked, &found) &&
                      check_fields(found.bytes, &found.header, &r->asked, found.pieces, found.n_pieces) == UNPACKED;
    }
}

/* --- The threads ------------------------------------------------------------------------------------------------- */

/* Both threads take windows in turn and fill them at the same time, so that the disk always has a request waiting, also
 * while one of them takes checksums. */
static void *read_ahead(void *argument) {
    bodhi_reader *r = argument;
    size_t ring = (size_t)r->options.ring;
    uint64_t budget = (uint64_t)r->options.request_bytes;
    pthread_mutex_lock(&r->mutex);
    while (r->planned < r->n && !r->stopping) {
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

/* Start the threads, with all signals left to the caller's. False if there is none. */
static bool start_threads(bodhi_reader *r) {
    sigset_t all;
    sigset_t before;
    r->planned = r->next;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before);
    while (r->n_threads < MAX_THREADS && pthread_create(&r->threads[r->n_threads], NULL, read_ahead, r) == 0) {
        r->n_threads++;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r->n_threads > 0;
}

/* The window that holds the next frame. */
static window *next_window(bodhi_reader *r) {
    if (r->n_threads > 0) {
        return await_window(r);
    }
    window *w = &r->windows[0];
    r->current = NULL;
    if (r->part == 0) {
        window_estimate(r, w, r->next);
    }
    if (window_fill(r, w, r->next, SMALL_WINDOW, FILL_CACHED)) {
        return w;
    }
    if (r->options.no_thread == 0 && start_threads(r)) {
        return await_window(r);
    }
    (void)window_fill(r, w, r->next, (uint64_t)r->options.request_bytes, r->direct ? FILL_DIRECT : FILL_BUFFERED);
    return w;
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
    default:
        return BODHI_REASON_RESOURCES;
    }
}

/* Memory for the positions of a packed frame. */
static bool reserve_positions(bodhi_reader *r, const record_header *header) {
    size_t size = (size_t)field_bytes(header);
    if (size > r->position_capacity) {
        void *grown;
        free(r->positions);
        r->positions = NULL;
        r->position_capacity = 0;
        if (posix_memalign(&grown, UNIT, size) != 0) {
            return false;
        }
        r->positions = grown;
        r->position_capacity = size;
    }
    return true;
}

enum taken { TAKEN, TAKEN_DAMAGED, TAKEN_UNREAD, TAKEN_NO_MEMORY };

/* Check the record of `w`, of which a window has read some pieces, and point `frame` to what it holds. */
static enum taken take(bodhi_reader *r, const window *from, const item *at, const wanted *w, bodhi_frame *frame) {
    found_record found;
    if (!find_record(r, from, at, w, &found)) {
        return TAKEN_DAMAGED;
    }
    const record_header *header = &found.header;
    if (header->encoding == ENCODING_PACKED && !reserve_positions(r, header)) {
        return TAKEN_NO_MEMORY;
    }
    selection asked = r->asked;
    asked.unverified = asked.unverified || at->checked;
    float *fields[FIELD_COUNT];
    enum unpacked unpacked =
        unpack_fields(found.bytes, header, &asked, found.pieces, found.n_pieces, r->positions, fields);
    if (unpacked != UNPACKED) {
        return unpacked == UNPACK_UNREAD ? TAKEN_UNREAD : TAKEN_DAMAGED;
    }
    memcpy(r->box, header->box, sizeof r->box);
    *frame = (bodhi_frame){.number = (int64_t)header->number,
                           .time = header->time,
                           .n_atoms = header->n_atoms,
                           .positions = fields[0],
                           .velocities = fields[1],
                           .forces = fields[2],
                           .box = header->has_box ? r->box : NULL,
                           .kind = w->kind};
    r->bytes += (int64_t)window_needs(r, from, &w->place);
    return TAKEN;
}

/* Choose the copy to read: the first living one, natives before aliens. The caller holds the dataset's mutex. */
static void choose_copy(bodhi_dataset *dataset, uint64_t number, wanted *w) {
    w->kind = -1;
    for (int kind = BODHI_NATIVE; kind <= BODHI_ALIEN && w->kind < 0; kind++) {
        size_t state = 0;
        const place *copy = table_find(&dataset->tables[kind], number, &state);
        if (copy != NULL) {
            w->place = *copy;
            w->kind = (int8_t)kind;
        }
    }
}

/* Pass over the copy from now on, in this process, and choose another. */
static void give_up_copy(bodhi_reader *r, wanted *w) {
    bodhi_dataset *dataset = r->dataset;
    size_t state = 0;
    place *copy;
    pthread_mutex_lock(&dataset->mutex);
    while ((copy = table_find(&dataset->tables[w->kind], w->place.number, &state)) != NULL) {
        if (copy->segment == w->place.segment && copy->offset == w->place.offset) {
            copy->dead = 1;
            dataset->segments[copy->segment]->live--;
        }
    }
    choose_copy(dataset, w->place.number, w);
    if (w->kind >= 0 && w->place.segment >= r->n_keys) {
        w->kind = -1; /* in a segment younger than this reader */
    }
    pthread_mutex_unlock(&dataset->mutex);
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
    wanted *w = &r->list[index];
    int32_t reason = BODHI_REASON_ABSENT;
    int error = from->status != BODHI_OK ? ENOMEM : from->items[index - from->first].error;
    while (w->kind >= 0) {
        enum taken taken = error == 0 ? take_item(r, from, index, frame) : TAKEN_DAMAGED;
        if (taken == TAKEN_UNREAD && from != &r->spare) {
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
        give_up_copy(r, w);
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

/* --- Opening and closing ----------------------------------------------------------------------------------------- */

/* Whether the dataset is larger than half of the memory: then the page cache would only be spoilt. */
static bool exceeds_memory(const bodhi_dataset *dataset) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < dataset->n_segments; i++) {
        bytes += dataset->segments[i]->gone ? 0 : dataset->segments[i]->covered;
    }
    long pages = sysconf(_SC_PHYS_PAGES);
    long page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 && bytes > (uint64_t)pages * (uint64_t)page / 2;
}

static int check_ranges(const bodhi_read_options *options) {
    int64_t last = 0;
    bool right = options->n_ranges >= 0 && (options->n_ranges == 0 || options->atoms != NULL);
    for (int64_t i = 0; right && i < options->n_ranges; i++) {
        right = options->atoms[i].first >= last && options->atoms[i].last > options->atoms[i].first;
        last = options->atoms[i].last;
    }
    return right ? BODHI_OK
                 : bodhi_fail(BODHI_ERROR_ARGUMENT, "ranges of atoms must be ascending, apart, and from 0 on");
}

static int check_options(bodhi_read_options *options) {
    options->fields = options->fields == 0 ? 7 : options->fields;
    if (options->fields < 0 || options->fields > 7 || options->request_bytes < 0 ||
        options->request_bytes > MAX_REQUEST || options->ring < 0 || options->ring > MAX_RING || options->direct < 0 ||
        options->direct > BODHI_DIRECT_OFF) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT,
                          "fields %d, request_bytes %lld (at most %lld), ring %lld (1 to %d), direct %d",
                          options->fields, (long long)options->request_bytes, (long long)MAX_REQUEST,
                          (long long)options->ring, MAX_RING, options->direct);
    }
    return check_ranges(options);
}

static void plan(bodhi_reader *r, const int64_t *numbers) {
    bodhi_dataset *dataset = r->dataset;
    for (size_t i = 0; i < r->n; i++) {
        r->list[i].kind = -1;
        if (numbers[i] >= 0) {
            choose_copy(dataset, (uint64_t)numbers[i], &r->list[i]);
        }
        r->list[i].place.number = (uint64_t)numbers[i];
    }
    for (size_t i = 0; i < r->n_keys; i++) {
        r->keys[i] = dataset->segments[i]->key;
    }
}

static void choose_windows(bodhi_reader *r) {
    bodhi_read_options *options = &r->options;
    r->direct =
        options->direct == BODHI_DIRECT_ON || (options->direct == BODHI_DIRECT_AUTO && exceeds_memory(r->dataset));
    if (options->request_bytes == 0) {
        options->request_bytes = r->direct ? DIRECT_REQUEST : BUFFERED_REQUEST;
    }
    if (options->ring == 0) {
        options->ring = r->direct ? DIRECT_RING : BUFFERED_RING;
    }
}

/* Copy what is asked of each frame; ranges that nearly touch become one, as they are in one block anyway. False: memory
 * is out. */
static bool copy_asked(bodhi_reader *r) {
    r->asked = (selection){.fields = (unsigned)r->options.fields, .unverified = r->options.unverified != 0};
    if (r->options.atoms != NULL) {
        r->ranges = calloc((size_t)r->options.n_ranges + 1, sizeof *r->ranges);
        if (r->ranges == NULL) {
            return false;
        }
        for (int64_t i = 0; i < r->options.n_ranges; i++) {
            const bodhi_range *range = &r->options.atoms[i];
            bodhi_range *last = r->asked.n_ranges > 0 ? &r->ranges[r->asked.n_ranges - 1] : NULL;
            if (last != NULL && range->first - last->last <= NEAR_ATOMS) {
                last->last = range->last;
            } else {
                r->ranges[r->asked.n_ranges++] = *range;
            }
        }
        r->asked.ranges = r->ranges;
        r->options.atoms = NULL;
    }
    return true;
}

/* Take the memory that a reader left. The caller holds the dataset's mutex. */
static void take_memory(bodhi_reader *r) {
    struct reader_memory *left = r->dataset->left;
    if (left != NULL && !r->direct) {
        r->dataset->left = NULL;
        r->windows[0] = left->window;
        r->positions = left->positions;
        r->position_capacity = left->position_capacity;
        free(left);
    }
}

/* Leave the memory of the first window and of positions, if it is not much. */
static void leave_memory(bodhi_reader *r) {
    if (r->direct || r->windows == NULL || r->windows[0].buffer == NULL ||
        r->windows[0].capacity + r->position_capacity > MOST_LEFT) {
        return;
    }
    struct reader_memory *left = malloc(sizeof *left);
    if (left == NULL) {
        return;
    }
    *left = (struct reader_memory){r->windows[0], r->positions, r->position_capacity};
    left->window.layout.known = false;
    pthread_mutex_lock(&r->dataset->mutex);
    struct reader_memory *other = r->dataset->left;
    r->dataset->left = left;
    pthread_mutex_unlock(&r->dataset->mutex);
    reader_memory_free(other);
    r->windows[0] = (window){0};
    r->positions = NULL;
}

void reader_memory_free(struct reader_memory *memory) {
    if (memory != NULL) {
        window_free(&memory->window);
        free(memory->positions);
        free(memory);
    }
}

static int set_up(bodhi_reader *r, const int64_t *numbers, int64_t n) {
    pthread_mutex_lock(&r->dataset->mutex);
    r->n = (size_t)n;
    r->dataset->readers++;
    r->n_keys = r->dataset->n_segments;
    choose_windows(r);
    r->list = calloc(r->n + 1, sizeof *r->list);
    r->keys = calloc(r->n_keys + 1, sizeof *r->keys);
    r->windows = calloc((size_t)r->options.ring, sizeof *r->windows);
    bool memory = copy_asked(r) && r->list != NULL && r->keys != NULL && r->windows != NULL;
    if (memory) {
        take_memory(r);
        plan(r, numbers);
    }
    pthread_mutex_unlock(&r->dataset->mutex);
    return memory ? BODHI_OK : bodhi_fail_memory();
}

int bodhi_reader_open(bodhi_dataset *dataset, const int64_t *numbers, int64_t n, const bodhi_read_options *options,
                      bodhi_reader **reader) {
    bodhi_read_options chosen = options == NULL ? (bodhi_read_options){0} : *options;
    if (dataset == NULL || reader == NULL || n < 0 || (n > 0 && numbers == NULL)) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "dataset, numbers and reader must be given");
    }
    int status = check_options(&chosen);
    if (status != BODHI_OK) {
        return status;
    }
    bodhi_reader *r = calloc(1, sizeof *r);
    if (r == NULL) {
        return bodhi_fail_memory();
    }
    r->dataset = dataset;
    r->options = chosen;
    pthread_mutex_init(&r->mutex, NULL);
    pthread_cond_init(&r->changed, NULL);
    status = set_up(r, numbers, n);
    if (status != BODHI_OK) {
        bodhi_reader_close(r);
        return status;
    }
    *reader = r;
    return BODHI_OK;
}

void bodhi_reader_close(bodhi_reader *reader) {
    if (reader == NULL) {
        return;
    }
    pthread_mutex_lock(&reader->mutex);
    reader->stopping = true;
    pthread_cond_broadcast(&reader->changed);
    pthread_mutex_unlock(&reader->mutex);
    for (int i = 0; i < reader->n_threads; i++) {
        pthread_join(reader->threads[i], NULL);
    }
    leave_memory(reader);
    for (int64_t i = 0; reader->windows != NULL && i < reader->options.ring; i++) {
        window_free(&reader->windows[i]);
    }
    window_free(&reader->spare);
    dataset_reader_left(reader->dataset);
    pthread_cond_destroy(&reader->changed);
    pthread_mutex_destroy(&reader->mutex);
    free(reader->windows);
    free(reader->list);
    free(reader->keys);
    free(reader->ranges);
    free(reader->positions);
    free(reader);
}
