/* What is asked of an open dataset: facts, numbers, places, and which frames it has of a selection, as bits or runs. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/bytes.h"
#include "base/io.h"
#include "base/status.h"
#include "store/dataset.h"

static int64_t file_bytes(int directory, const char *name, int64_t *modified) {
    struct stat status;
    if (!io_status(directory, name, &status)) {
        return 0;
    }
    *modified = status.st_mtim.tv_sec;
    return status.st_size;
}

int bodhi_dataset_query(bodhi_dataset *dataset, bodhi_facts *facts) {
    if (dataset == NULL || facts == NULL) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "dataset and facts must be given");
    }
    int64_t modified = 0;
    memset(facts, 0, sizeof *facts);
    pthread_mutex_lock(&dataset->mutex);
    facts->native = (int64_t)dataset_living(dataset, BODHI_NATIVE);
    facts->alien = (int64_t)dataset_living(dataset, BODHI_ALIEN);
    for (size_t i = 0; i < dataset->n_segments; i++) {
        const segment *s = dataset->segments[i];
        if (!s->gone) {
            facts->bytes +=
                file_bytes(dataset->fd, s->name, &modified) + file_bytes(dataset->fd, s->index_name, &modified);
            facts->segments += !s->refused;
            facts->refused_segments += s->refused;
        }
    }
    facts->scanned = (int64_t)dataset->scanned;
    pthread_mutex_unlock(&dataset->mutex);
    (void)file_bytes(dataset->fd, "meta", &facts->last_used);
    return BODHI_OK;
}

int bodhi_dataset_numbers(bodhi_dataset *dataset, int kind, int64_t from, uint64_t *numbers, int64_t capacity,
                          int64_t *count) {
    if (dataset == NULL || (kind != BODHI_NATIVE && kind != BODHI_ALIEN) || from < 0 || capacity < 0 || count == NULL ||
        (numbers == NULL && capacity > 0)) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "kind is %d, from %lld, capacity %lld", kind, (long long)from,
                          (long long)capacity);
    }
    pthread_mutex_lock(&dataset->mutex);
    *count = (int64_t)dataset_numbers(dataset, (unsigned)kind, (uint64_t)from, numbers, (size_t)capacity);
    pthread_mutex_unlock(&dataset->mutex);
    return BODHI_OK;
}

static bodhi_place locate(bodhi_dataset *dataset, int64_t number) {
    place copy;
    int kind = number < 0 ? -1 : dataset_choose_copy(dataset, (uint64_t)number, &copy);
    if (kind < 0) {
        return (bodhi_place){.found = 0};
    }
    return (bodhi_place){.segment = dataset->segments[copy.segment]->key.segment,
                         .kind = kind,
                         .found = 1,
                         .offset = (int64_t)copy.offset * UNIT,
                         .length = (int64_t)copy.length * UNIT};
}

int bodhi_dataset_locate(bodhi_dataset *dataset, const int64_t *numbers, int64_t n, bodhi_place *places) {
    if (dataset == NULL || n < 0 || (n > 0 && (numbers == NULL || places == NULL))) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "dataset, numbers and places must be given");
    }
    pthread_mutex_lock(&dataset->mutex);
    for (int64_t i = 0; i < n; i++) {
        places[i] = locate(dataset, numbers[i]);
    }
    pthread_mutex_unlock(&dataset->mutex);
    return BODHI_OK;
}

static bodhi_segment_facts segment_facts(bodhi_dataset *dataset, const segment *s) {
    bodhi_segment_facts facts = {.id = s->key.segment, .kind = s->kind, .frames = (int64_t)s->live};
    int64_t modified = 0;
    facts.bytes = file_bytes(dataset->fd, s->index_name, &modified);
    facts.bytes += file_bytes(dataset->fd, s->name, &facts.last_written);
    int fd = io_open(dataset->fd, s->name, O_RDONLY);
    if (fd >= 0) {
        facts.busy = io_locked(fd, LOCK_WRITER);
        io_drop(fd);
    }
    return facts;
}

/* How many atoms the record at a place has, as its head says; 0: it cannot be read. */
static uint32_t atoms_at(bodhi_dataset *dataset, const place *at) {
    unsigned char head[RECORD_ATOMS_BYTES];
    int fd = dataset_pin(dataset, at->segment, false);
    if (fd < 0) {
        return 0;
    }
    uint64_t offset = (uint64_t)at->offset * UNIT + RECORD_ATOMS_AT;
    bool whole = io_read(fd, head, sizeof head, offset, READ_ANY) == (ssize_t)sizeof head;
    dataset_unpin(dataset, at->segment);
    return whole ? get32(head) : 0;
}

int bodhi_dataset_atoms(bodhi_dataset *dataset, const int64_t *numbers, int64_t n, uint32_t *atoms) {
    if (dataset == NULL || numbers == NULL || n < 0 || atoms == NULL) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "dataset, numbers and atoms must be given");
    }
    for (int64_t i = 0; i < n; i++) {
        copy_cursor at = {0};
        place copy;
        pthread_mutex_lock(&dataset->mutex);
        bool found = dataset_next_copy(dataset, BODHI_NATIVE, (uint64_t)numbers[i], &at, &copy);
        pthread_mutex_unlock(&dataset->mutex);
        atoms[i] = found ? atoms_at(dataset, &copy) : 0;
    }
    return BODHI_OK;
}

int bodhi_dataset_segments(bodhi_dataset *dataset, bodhi_segment_facts *facts, int64_t capacity, int64_t *count) {
    if (dataset == NULL || count == NULL || capacity < 0 || (facts == NULL && capacity > 0)) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "dataset, facts and count must be given");
    }
    pthread_mutex_lock(&dataset->mutex);
    *count = 0;
    for (size_t i = 0; i < dataset->n_segments; i++) {
        const segment *s = dataset->segments[i];
        if (!s->gone && !s->refused) {
            if (*count < capacity) {
                facts[*count] = segment_facts(dataset, s);
            }
            ++*count;
        }
    }
    pthread_mutex_unlock(&dataset->mutex);
    return BODHI_OK;
}

/* --- Selections: bits, by which nodes find out who reads what; runs, which servers tell --------------------------- */

int bodhi_dataset_mark(bodhi_dataset *dataset, int64_t first, int64_t step, int64_t count, uint64_t *native,
                       uint64_t *alien) {
    int64_t last = first;
    if (dataset == NULL || count < 0 || (count > 0 && (native == NULL || alien == NULL)) || step == 0 ||
        (count > 0 && (__builtin_mul_overflow(count - 1, step, &last) || __builtin_add_overflow(first, last, &last) ||
                       first < 0 || last < 0))) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "first is %lld, step %lld, count %lld", (long long)first,
                          (long long)step, (long long)count);
    }
    if (count == 0) {
        return BODHI_OK;
    }
    frame_selection chosen = {.low = (uint64_t)(step < 0 ? last : first),
                              .step = step < 0 ? -(uint64_t)step : (uint64_t)step,
                              .count = (uint64_t)count,
                              .backwards = step < 0};
    pthread_mutex_lock(&dataset->mutex);
    dataset_mark(dataset, BODHI_NATIVE, &chosen, native);
    dataset_mark(dataset, BODHI_ALIEN, &chosen, alien);
    pthread_mutex_unlock(&dataset->mutex);
    return BODHI_OK;
}

int bodhi_dataset_runs(bodhi_dataset *dataset, int kind, int64_t low, int64_t high, bodhi_run *runs, int64_t capacity,
                       int64_t *count) {
    if (dataset == NULL || (kind != BODHI_NATIVE && kind != BODHI_ALIEN) || low < 0 || capacity < 0 || count == NULL ||
        (runs == NULL && capacity > 0)) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "kind is %d, low %lld, capacity %lld", kind, (long long)low,
                          (long long)capacity);
    }
    pthread_mutex_lock(&dataset->mutex);
    *count = high < low ? 0 : dataset_runs(dataset, (unsigned)kind, (uint64_t)low, (uint64_t)high, runs, capacity);
    pthread_mutex_unlock(&dataset->mutex);
    return BODHI_OK;
}
