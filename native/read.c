/* Reading: frames are asked for in any order, read in the order of the segments, and delivered as asked.
 *
 * The list is worked off in windows of a few megabytes. What the page cache has is read a small window at a time by the
 * caller itself, so that the bytes are still in the processor's cache when they are checked and used. At the first
 * window that is not cached threads take over and keep a ring of large windows filled. Checksums are taken at
 * delivery. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bodhi.h"
#include "dataset.h"
#include "io.h"
#include "status.h"

enum {
    SMALL_WINDOW = 512 << 10, /* bytes, for what is cached */
    MAX_ITEMS = 8192,         /* frames in a window */
    GAP_BYTES = 64 << 10,     /* gaps up to this size are read over */
    PAGE = 4096,
    DEFAULT_RING = 3, /* with 2 MiB each small enough to stay in the processor's cache, which was worth 10 to 20 % */
    MAX_RING = 64,
    MAX_THREADS = 2
};
#define DEFAULT_REQUEST (INT64_C(2) << 20)
#define MAX_REQUEST     (INT64_C(1) << 30)

/* A frame asked for and the copy of it to be read. */
typedef struct {
    place place;
    int8_t kind; /* -1: absent */
} wanted;

typedef struct {
    uint64_t at;   /* of the record in the window's buffer */
    int32_t error; /* 0: read; -1: cut short; else errno */
} item;

/* One request: neighbouring records of one segment. Items order[first] to order[last - 1]. */
typedef struct {
    uint32_t segment;
    uint64_t start, end; /* in the segment */
    uint64_t at;         /* in the buffer */
    size_t first, last;
} extent;

typedef struct {
    size_t first, count; /* in the reader's list */
    unsigned char *buffer;
    size_t capacity;
    item *items;
    uint32_t *order;
    extent *extents;
    size_t n_extents;
    int status; /* of filling it: OK or MEMORY */
} window;

enum fill_mode { FILL_CACHED, FILL_BUFFERED, FILL_DIRECT };

struct bodhi_reader {
    bodhi_dataset *dataset;
    bodhi_read_options options;
    bool direct;
    wanted *list;
    size_t n, next;
    segment_key *keys; /* by position of the segment */
    size_t n_keys;
    window *windows; /* the ring; without threads only the first is used */
    window spare;    /* for another copy of a damaged frame */
    window *current;
    float box[6];
    int64_t bytes;

    int n_threads;
    pthread_t threads[MAX_THREADS];
    pthread_mutex_t mutex; /* over what follows */
    pthread_cond_t changed;
    size_t planned;        /* frames up to here are in a window that was taken */
    size_t taken, emptied; /* windows, counted from the threads' start */
    bool ready[MAX_RING];
    bool stopping;
};

/* --- Planning a window ------------------------------------------------------------------------------------------- */

/* Bytes of the record that have to be read: what follows the last field asked for is left out. */
static uint64_t needed_bytes(const bodhi_reader *r, const place *p) {
    uint64_t length = (uint64_t)p->length * UNIT;
    unsigned unwanted = p->fields & ~(unsigned)r->options.fields;
    if (p->head == UINT16_MAX || unwanted == 0) {
        return length;
    }
    unsigned last = 0;
    for (unsigned field = 0; field < FIELD_COUNT; field++) {
        if (p->fields & (unsigned)r->options.fields & 1U << field) {
            last = field + 1;
        }
    }
    uint64_t head = (uint64_t)p->head * UNIT;
    unsigned parts = count_fields(p->fields & ((1U << last) - 1));
    return head + (length - head) * parts / count_fields(p->fields);
}

/* How many frames from `first` on make a window of `budget` bytes: at least one. */
static size_t count_items(const bodhi_reader *r, size_t first, uint64_t budget) {
    uint64_t bytes = 0;
    size_t count = 0;
    while (first + count < r->n && count < MAX_ITEMS) {
        const wanted *w = &r->list[first + count];
        bytes += w->kind < 0 ? 0 : needed_bytes(r, &w->place);
        if (bytes > budget && count > 0) {
            break;
        }
        count++;
    }
    return count;
}

static int compare_places(const place *a, const place *b) {
    if (a->segment != b->segment) {
        return a->segment < b->segment ? -1 : 1;
    }
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

static int by_place(const void *a, const void *b, void *list) {
    const wanted *wanted_list = list;
    return compare_places(&wanted_list[*(const uint32_t *)a].place, &wanted_list[*(const uint32_t *)b].place);
}

/* List the frames that are there, in the order of the segments; returns their number. */
static size_t order_items(const bodhi_reader *r, window *w) {
    size_t n = 0;
    bool sorted = true;
    wanted *list = r->list + w->first;
    for (uint32_t i = 0; i < w->count; i++) {
        w->items[i].error = 0;
        if (list[i].kind >= 0) {
            sorted = sorted && (n == 0 || compare_places(&list[w->order[n - 1]].place, &list[i].place) <= 0);
            w->order[n++] = i;
        }
    }
    if (!sorted) {
        qsort_r(w->order, n, sizeof *w->order, by_place, list);
    }
    return n;
}

/* Join neighbours into extents and lay these out in the buffer. Returns the bytes of buffer needed. */
static uint64_t lay_out(const bodhi_reader *r, window *w, size_t n) {
    uint64_t cursor = 0;
    w->n_extents = 0;
    for (size_t i = 0; i < n; i++) {
        const place *p = &r->list[w->first + w->order[i]].place;
        uint64_t offset = (uint64_t)p->offset * UNIT;
        uint64_t end = round_up(offset + needed_bytes(r, p), PAGE);
        extent *last = w->n_extents > 0 ? &w->extents[w->n_extents - 1] : NULL;
        if (last != NULL && last->segment == p->segment && offset <= last->end + GAP_BYTES) {
            last->end = end > last->end ? end : last->end;
            last->last = i + 1;
        } else {
            cursor += last != NULL ? last->end - last->start : 0;
            last = &w->extents[w->n_extents++];
            *last = (extent){.segment = p->segment,
                             .start = offset / PAGE * PAGE,
                             .end = end,
                             .at = cursor,
                             .first = i,
                             .last = i + 1};
        }
        w->items[w->order[i]].at = last->at + (offset - last->start);
    }
    return w->n_extents == 0 ? 0 : cursor + w->extents[w->n_extents - 1].end - w->extents[w->n_extents - 1].start;
}

static bool reserve_items(window *w, size_t count) {
    if (w->items == NULL) {
        w->items = calloc(MAX_ITEMS, sizeof *w->items);
        w->order = malloc(MAX_ITEMS * sizeof *w->order);
        w->extents = malloc(MAX_ITEMS * sizeof *w->extents);
    }
    return w->items != NULL && w->order != NULL && w->extents != NULL && count <= MAX_ITEMS;
}

static bool reserve_buffer(window *w, uint64_t size) {
    if (size <= w->capacity) {
        return true;
    }
    free(w->buffer);
    w->buffer = NULL;
    w->capacity = 0;
    void *buffer;
    if (posix_memalign(&buffer, PAGE, size) != 0) {
        return false;
    }
    w->buffer = buffer;
    w->capacity = size;
    return true;
}

static void free_window(window *w) {
    free(w->buffer);
    free(w->items);
    free(w->order);
    free(w->extents);
}

/* --- Filling a window -------------------------------------------------------------------------------------------- */

/* Read one record by itself, after the request that it was part of went wrong. */
static int read_alone(const bodhi_reader *r, window *w, uint32_t index, int fd) {
    const place *p = &r->list[w->first + index].place;
    uint64_t size = needed_bytes(r, p);
    ssize_t got = io_read(fd, w->buffer + w->items[index].at, size, (uint64_t)p->offset * UNIT, READ_ANY);
    if (got < 0) {
        return errno;
    }
    return (uint64_t)got < size ? -1 : 0;
}

static void fail_extent(window *w, const extent *e, int error) {
    for (size_t i = e->first; i < e->last; i++) {
        w->items[w->order[i]].error = error;
    }
}

/* Judge which records of an extent are there, of which `got` bytes were read; read the others alone. */
static void settle_extent(const bodhi_reader *r, window *w, const extent *e, uint64_t got) {
    int fd = -1;
    for (size_t i = e->first; i < e->last; i++) {
        uint32_t index = w->order[i];
        uint64_t end = w->items[index].at - e->at + needed_bytes(r, &r->list[w->first + index].place);
        w->items[index].error = 0;
        if (end > got) {
            fd = fd >= 0 ? fd : dataset_hold(r->dataset, e->segment, false);
            w->items[index].error = fd < 0 ? errno : read_alone(r, w, index, fd);
        }
    }
    if (fd >= 0) {
        dataset_release(r->dataset, e->segment);
    }
}

/* False: the page cache does not have it all (only with FILL_CACHED). */
static bool fill_extent(const bodhi_reader *r, window *w, const extent *e, enum fill_mode mode) {
    int fd = dataset_hold(r->dataset, e->segment, mode == FILL_DIRECT);
    if (fd < 0) {
        fail_extent(w, e, errno);
        return true;
    }
    uint64_t size = e->end - e->start;
    uint32_t last = w->order[e->last - 1];
    uint64_t wanted_size = w->items[last].at - e->at + needed_bytes(r, &r->list[w->first + last].place);
    ssize_t got = io_read(fd, w->buffer + e->at, mode == FILL_DIRECT ? size : wanted_size, e->start,
                          mode == FILL_CACHED ? READ_CACHED : READ_ANY);
    dataset_release(r->dataset, e->segment);
    if (mode == FILL_CACHED && got >= 0 && (uint64_t)got < wanted_size) {
        return false;
    }
    settle_extent(r, w, e, got < 0 ? 0 : (uint64_t)got);
    return true;
}

/* Fill a window with the frames from `first` on. False: not cached. */
static bool fill(const bodhi_reader *r, window *w, size_t first, uint64_t budget, enum fill_mode mode) {
    w->first = first;
    w->count = count_items(r, first, budget);
    w->status = BODHI_OK;
    bool memory = reserve_items(w, w->count);
    if (memory) {
        size_t n = order_items(r, w);
        memory = reserve_buffer(w, lay_out(r, w, n));
    }
    if (!memory) {
        w->status = BODHI_ERROR_MEMORY;
        return true;
    }
    for (size_t i = 0; i < w->n_extents; i++) {
        if (!fill_extent(r, w, &w->extents[i], mode)) {
            return false;
        }
    }
    return true;
}

/* --- The threads ------------------------------------------------------------------------------------------------- */

/* Both threads take windows in turn and fill them at the same time, so that the disk always has a request waiting. */
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
        r->planned += count_items(r, first, budget);
        pthread_mutex_unlock(&r->mutex);
        (void)fill(r, &r->windows[slot], first, budget, r->direct ? FILL_DIRECT : FILL_BUFFERED);
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

/* Start the threads, with all signals left to the caller's: one where the kernel reads ahead as well, two for direct
 * reads. False if there is none. */
static bool start_threads(bodhi_reader *r) {
    sigset_t all;
    sigset_t before;
    int wanted_threads = r->direct ? MAX_THREADS : 1;
    r->planned = r->next;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before);
    while (r->n_threads < wanted_threads && pthread_create(&r->threads[r->n_threads], NULL, read_ahead, r) == 0) {
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
    if (fill(r, w, r->next, SMALL_WINDOW, FILL_CACHED)) {
        return w;
    }
    if (r->options.no_thread == 0 && start_threads(r)) {
        return await_window(r);
    }
    (void)fill(r, w, r->next, (uint64_t)r->options.request_bytes, r->direct ? FILL_DIRECT : FILL_BUFFERED);
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

/* Check the record at `record`, of which needed_bytes() are there, and point `frame` into it. */
static bool unpack(bodhi_reader *r, const wanted *w, unsigned char *record, bodhi_frame *frame) {
    record_header header;
    size_t more;
    uint64_t there = needed_bytes(r, &w->place);
    if (parse_record(record, there, &r->keys[w->place.segment], (uint64_t)w->place.offset * UNIT, &header, &more) !=
            PARSED ||
        header.type != RECORD_FRAME || header.number != w->place.number || header.encoding != ENCODING_RAW ||
        header.fields != w->place.fields || header.length != (uint64_t)w->place.length * UNIT) {
        return false;
    }
    float *fields[FIELD_COUNT] = {NULL};
    for (unsigned i = 0; i < FIELD_COUNT; i++) {
        if ((header.fields & (unsigned)r->options.fields & 1U << i) == 0) {
            continue;
        }
        if (field_offset(&header, i) + field_bytes(&header) > there ||
            (r->options.unverified == 0 && !check_field(record, &header, i))) {
            return false;
        }
        fields[i] = (float *)(void *)(record + field_offset(&header, i));
    }
    memcpy(r->box, header.box, sizeof r->box);
    *frame = (bodhi_frame){.number = (int64_t)header.number,
                           .time = header.time,
                           .n_atoms = header.n_atoms,
                           .positions = fields[0],
                           .velocities = fields[1],
                           .forces = fields[2],
                           .box = header.has_box ? r->box : NULL,
                           .kind = w->kind};
    r->bytes += (int64_t)header.length;
    return true;
}

/* Choose the copy to read: the first living one, natives before aliens. */
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
    (void)fill(r, &r->spare, index, 0, FILL_BUFFERED);
    return r->spare.status != BODHI_OK ? ENOMEM : r->spare.items[0].error;
}

static int deliver(bodhi_reader *r, window *from, bodhi_frame *frame) {
    size_t index = r->next;
    wanted *w = &r->list[index];
    size_t at = index - from->first;
    int32_t reason = BODHI_REASON_ABSENT;
    int error = from->status != BODHI_OK ? ENOMEM : from->items[at].error;
    while (w->kind >= 0) {
        if (error == 0 && unpack(r, w, from->buffer + from->items[at].at, frame)) {
            return BODHI_OK;
        }
        reason = reason_of(error == 0 ? -1 : error);
        if (reason == BODHI_REASON_RESOURCES || reason == BODHI_REASON_GONE) {
            break;
        }
        give_up_copy(r, w);
        if (w->kind >= 0) {
            error = read_spare(r, index);
            from = &r->spare;
            at = 0;
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

static int check_options(bodhi_read_options *options) {
    options->fields = options->fields == 0 ? 7 : options->fields;
    options->request_bytes = options->request_bytes == 0 ? DEFAULT_REQUEST : options->request_bytes;
    options->ring = options->ring == 0 ? DEFAULT_RING : options->ring;
    if (options->fields < 0 || options->fields > 7 || options->request_bytes < 0 ||
        options->request_bytes > MAX_REQUEST || options->ring < 1 || options->ring > MAX_RING || options->direct < 0 ||
        options->direct > BODHI_DIRECT_OFF) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT,
                          "fields %d, request_bytes %lld (at most %lld), ring %lld (1 to %d), direct %d",
                          options->fields, (long long)options->request_bytes, (long long)MAX_REQUEST,
                          (long long)options->ring, MAX_RING, options->direct);
    }
    return BODHI_OK;
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
    r->direct =
        r->options.direct == BODHI_DIRECT_ON || (r->options.direct == BODHI_DIRECT_AUTO && exceeds_memory(dataset));
}

static int set_up(bodhi_reader *r, const int64_t *numbers, int64_t n) {
    pthread_mutex_lock(&r->dataset->mutex);
    r->n = (size_t)n;
    r->dataset->readers++;
    r->n_keys = r->dataset->n_segments;
    r->list = calloc(r->n + 1, sizeof *r->list);
    r->keys = calloc(r->n_keys + 1, sizeof *r->keys);
    r->windows = calloc((size_t)r->options.ring, sizeof *r->windows);
    bool memory = r->list != NULL && r->keys != NULL && r->windows != NULL;
    if (memory) {
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
    for (int64_t i = 0; reader->windows != NULL && i < reader->options.ring; i++) {
        free_window(&reader->windows[i]);
    }
    free_window(&reader->spare);
    dataset_reader_left(reader->dataset);
    pthread_cond_destroy(&reader->changed);
    pthread_mutex_destroy(&reader->mutex);
    free(reader->windows);
    free(reader->list);
    free(reader->keys);
    free(reader);
}
