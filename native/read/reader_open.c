/* Opening and closing a reader; memory goes from one reader to the next. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "read/reader.h"

enum {
    NEAR_ATOMS = 64,
    MOST_SPARE = 64 << 20, /* bytes of memory that a reader passes on to the next */
    /* What is read through the page cache is best checked while the processor's cache has it; a direct read is best a
     * huge page. Rings this small stay in the processor's cache, which was worth 10 to 20 %. */
    BUFFERED_RING = 6,
    DIRECT_RING = 3,
    BUFFERED_REQUEST = 512 << 10,
    DIRECT_REQUEST = 2 << 20
};
#define MAX_REQUEST (INT64_C(1) << 30)

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
    if (options->fields < 0 || options->fields >= 1 << FIELD_COUNT ||
        ((options->fields & BODHI_IDS) != 0 && options->atoms != NULL) || options->request_bytes < 0 ||
        options->request_bytes > MAX_REQUEST || options->ring < 0 || options->ring > MAX_RING || options->direct < 0 ||
        options->direct > BODHI_DIRECT_OFF) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT,
                          "fields %d, request_bytes %lld (at most %lld), ring %lld (1 to %d), direct %d",
                          options->fields, (long long)options->request_bytes, (long long)MAX_REQUEST,
                          (long long)options->ring, MAX_RING, options->direct);
    }
    return check_ranges(options);
}

static void choose_windows(bodhi_reader *r) {
    bodhi_read_options *options = &r->options;
    r->direct =
        options->direct == BODHI_DIRECT_ON || (options->direct == BODHI_DIRECT_AUTO && r->locator->exceeds_memory);
    r->locator->direct = r->direct;
    if (options->request_bytes == 0) {
        options->request_bytes = r->direct ? DIRECT_REQUEST : BUFFERED_REQUEST;
    }
    if (options->ring == 0) {
        options->ring = r->direct ? DIRECT_RING : BUFFERED_RING;
    }
}

/* Copy what is asked of each frame; ranges that nearly touch become one. False: memory is out. */
static bool copy_asked(bodhi_reader *r) {
    r->subset = (selection){.fields = (unsigned)r->options.fields, .unverified = r->options.unverified != 0};
    if (r->options.atoms != NULL) {
        r->ranges = calloc((size_t)r->options.n_ranges + 1, sizeof *r->ranges);
        if (r->ranges == NULL) {
            return false;
        }
        for (int64_t i = 0; i < r->options.n_ranges; i++) {
            const bodhi_range *range = &r->options.atoms[i];
            bodhi_range *last = r->subset.n_ranges > 0 ? &r->ranges[r->subset.n_ranges - 1] : NULL;
            if (last != NULL && range->first - last->last <= NEAR_ATOMS) {
                last->last = range->last;
            } else {
                r->ranges[r->subset.n_ranges++] = *range;
            }
        }
        r->subset.ranges = r->ranges;
        r->options.atoms = NULL;
    }
    return true;
}

/* The memory of a reader that is closed. */
typedef struct {
    spare_memory head;
    window *windows;
    int64_t n;
    float *positions;
    size_t position_capacity;
} reader_memory;

static void free_memory(spare_memory *memory) {
    reader_memory *spare = (reader_memory *)(void *)memory;
    for (int64_t i = 0; i < spare->n; i++) {
        window_free(&spare->windows[i]);
    }
    free(spare->windows);
    free(spare->positions);
    free(spare);
}

/* Put other memory in the place of what is passed on. */
static reader_memory *swap_memory(const bodhi_reader *r, reader_memory *other) {
    pthread_mutex_lock(r->locator->mutex);
    spare_memory *spare = *r->locator->spare;
    *r->locator->spare = other == NULL ? NULL : &other->head;
    pthread_mutex_unlock(r->locator->mutex);
    return (reader_memory *)(void *)spare;
}

static void take_memory(bodhi_reader *r) {
    reader_memory *spare = r->direct ? NULL : swap_memory(r, NULL);
    if (spare != NULL) {
        for (; spare->n > 0 && spare->n > r->options.ring; spare->n--) {
            window_free(&spare->windows[spare->n - 1]);
        }
        memcpy(r->windows, spare->windows, (size_t)spare->n * sizeof *r->windows);
        r->positions = spare->positions;
        r->position_capacity = spare->position_capacity;
        free(spare->windows);
        free(spare);
    }
}

/* Give the memory of windows and positions to the next reader, if it is not much. */
static void pass_memory_on(bodhi_reader *r) {
    size_t size = r->position_capacity;
    for (int64_t i = 0; r->windows != NULL && i < r->options.ring; i++) {
        r->windows[i].layout.known = false;
        size += r->windows[i].capacity;
    }
    if (r->direct || r->windows == NULL || r->windows[0].buffer == NULL || size > MOST_SPARE) {
        return;
    }
    reader_memory *spare = malloc(sizeof *spare);
    if (spare == NULL) {
        return;
    }
    *spare = (reader_memory){{free_memory}, r->windows, r->options.ring, r->positions, r->position_capacity};
    reader_memory *other = swap_memory(r, spare);
    if (other != NULL) {
        free_memory(&other->head);
    }
    r->windows = NULL;
    r->positions = NULL;
}

static int set_up(bodhi_reader *r, const int64_t *numbers) {
    choose_windows(r);
    r->list = calloc(r->n + 1, sizeof *r->list);
    r->windows = calloc((size_t)r->options.ring, sizeof *r->windows);
    if (!copy_asked(r) || r->list == NULL || r->windows == NULL) {
        return bodhi_fail_memory();
    }
    take_memory(r);
    for (size_t i = 0; i < r->n; i++) {
        r->list[i].place.number = (uint64_t)numbers[i];
    }
    return r->n == 0 ? BODHI_OK : r->locator->locate(r->locator, r->list, r->n, &r->located);
}

int reader_open(locator *from, const int64_t *numbers, int64_t n, const bodhi_read_options *options,
                bodhi_reader **reader) {
    bodhi_reader *r = from == NULL ? NULL : calloc(1, sizeof *r);
    if (r == NULL) {
        if (from != NULL) {
            from->close(from);
        }
        return bodhi_fail_memory();
    }
    r->locator = from;
    r->n = (size_t)n;
    r->options = options == NULL ? (bodhi_read_options){0} : *options;
    pthread_mutex_init(&r->mutex, NULL);
    pthread_cond_init(&r->changed, NULL);
    int status = check_options(&r->options);
    status = status == BODHI_OK ? set_up(r, numbers) : status;
    if (status != BODHI_OK) {
        bodhi_reader_close(r);
        return status;
    }
    *reader = r;
    return BODHI_OK;
}

int bodhi_reader_open(bodhi_dataset *dataset, const int64_t *numbers, int64_t n, const bodhi_read_options *options,
                      bodhi_reader **reader) {
    if (dataset == NULL || reader == NULL || n < 0 || (n > 0 && numbers == NULL)) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "dataset, numbers and reader must be given");
    }
    return reader_open(lookup_open(dataset), numbers, n, options, reader);
}

void bodhi_reader_close(bodhi_reader *reader) {
    if (reader == NULL) {
        return;
    }
    reader_join(reader);
    pass_memory_on(reader);
    for (int64_t i = 0; reader->windows != NULL && i < reader->options.ring; i++) {
        window_free(&reader->windows[i]);
    }
    window_free(&reader->spare);
    reader->locator->close(reader->locator);
    pthread_cond_destroy(&reader->changed);
    pthread_mutex_destroy(&reader->mutex);
    free(reader->windows);
    free(reader->list);
    free(reader->ranges);
    free(reader->positions);
    free(reader->ids);
    free(reader);
}
