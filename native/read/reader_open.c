/* Opening and closing a reader. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "read/reader.h"

enum {
    NEAR_ATOMS = 64,
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
    r->subset = (selection){.fields = (unsigned)r->options.fields};
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

static int set_up(bodhi_reader *r, const int64_t *numbers) {
    choose_windows(r);
    r->list = calloc(r->n + 1, sizeof *r->list);
    r->windows = calloc((size_t)r->options.ring, sizeof *r->windows);
    if (!copy_asked(r) || r->list == NULL || r->windows == NULL) {
        return bodhi_fail_memory();
    }
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
