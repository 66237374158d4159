/* What is asked of an open dataset, descriptors for its readers, and eviction. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/io.h"
#include "base/status.h"
#include "store/dataset.h"

/* --- Descriptors ------------------------------------------------------------------------------------------------- */

static void close_segment(bodhi_dataset *dataset, segment *s) {
    if (s->direct_fd >= 0) {
        (void)io_close(s->direct_fd);
    }
    if (s->fd >= 0) {
        (void)io_close(s->fd);
        dataset->open_segments--;
    }
    s->fd = s->direct_fd = -1;
}

/* Close the segment that was idle for longest; false if none is idle. */
static bool close_idle(bodhi_dataset *dataset) {
    segment *oldest = NULL;
    for (size_t i = 0; i < dataset->n_segments; i++) {
        segment *s = dataset->segments[i];
        if (s->fd >= 0 && s->users == 0 && (oldest == NULL || s->used_at < oldest->used_at)) {
            oldest = s;
        }
    }
    if (oldest != NULL) {
        close_segment(dataset, oldest);
    }
    return oldest != NULL;
}

static int open_with_room(bodhi_dataset *dataset, const char *name, int flags) {
    int fd = io_open(dataset->fd, name, flags);
    while (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
        int error = errno;
        if (!close_idle(dataset)) {
            errno = error;
            return -1;
        }
        fd = io_open(dataset->fd, name, flags);
    }
    return fd;
}

/* Open for reading and hold against eviction. */
static bool open_segment(bodhi_dataset *dataset, segment *s) {
    if (dataset->open_segments >= MAX_OPEN_SEGMENTS) {
        (void)close_idle(dataset);
    }
    int fd = open_with_room(dataset, s->name, O_RDONLY);
    if (fd < 0) {
        return false;
    }
    struct stat status;
    bool evicted = io_lock(fd, LOCK_READERS, false) == LOCK_HELD || /* just being evicted; other failures do no harm */
                   (bodhi_io.fstat(fd, &status) == 0 && status.st_nlink == 0);
    if (evicted) {
        (void)io_close(fd);
        errno = ENOENT;
        return false;
    }
    s->fd = fd;
    dataset->open_segments++;
    return true;
}

static int hold(bodhi_dataset *dataset, uint32_t ordinal, bool direct) {
    segment *s = dataset->segments[ordinal];
    if (s->gone) {
        errno = ENOENT;
        return -1;
    }
    if (s->fd < 0 && !open_segment(dataset, s)) {
        if (errno == ENOENT) {
            dataset_forget(dataset, ordinal);
            errno = ENOENT;
        }
        return -1;
    }
    s->users++;
    s->used_at = ++dataset->clock;
    if (direct && s->direct_fd < 0) {
        s->direct_fd = open_with_room(dataset, s->name, O_RDONLY | O_DIRECT);
    }
    return direct && s->direct_fd >= 0 ? s->direct_fd : s->fd;
}

int dataset_hold(bodhi_dataset *dataset, uint32_t ordinal, bool direct) {
    pthread_mutex_lock(&dataset->mutex);
    int fd = hold(dataset, ordinal, direct);
    int error = errno;
    pthread_mutex_unlock(&dataset->mutex);
    errno = error;
    return fd;
}

void dataset_release(bodhi_dataset *dataset, uint32_t ordinal) {
    pthread_mutex_lock(&dataset->mutex);
    dataset->segments[ordinal]->users--;
    pthread_mutex_unlock(&dataset->mutex);
}

void dataset_reader_left(bodhi_dataset *dataset) {
    pthread_mutex_lock(&dataset->mutex);
    dataset->readers--;
    while (dataset->readers == 0 && dataset->open_segments > 0 && close_idle(dataset)) {
    }
    pthread_mutex_unlock(&dataset->mutex);
}

/* --- Questions --------------------------------------------------------------------------------------------------- */

static int64_t file_bytes(int directory, const char *name, int64_t *modified) {
    struct stat status;
    if (fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) != 0) {
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
    facts->native = (int64_t)table_living(&dataset->tables[BODHI_NATIVE]);
    facts->alien = (int64_t)table_living(&dataset->tables[BODHI_ALIEN]);
    for (size_t i = 0; i < dataset->n_segments; i++) {
        const segment *s = dataset->segments[i];
        if (!s->gone) {
            facts->bytes +=
                file_bytes(dataset->fd, s->name, &modified) + file_bytes(dataset->fd, s->index_name, &modified);
            facts->segments += !s->refused;
            facts->refused_segments += s->refused;
        }
    }
    facts->refused_version = dataset->refused_version;
    facts->memory = (int64_t)(table_memory(&dataset->tables[0]) + table_memory(&dataset->tables[1]) +
                              dataset->n_segments * (sizeof(segment) + sizeof(segment *) + sizeof(uint32_t)));
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
    *count = (int64_t)table_numbers(&dataset->tables[kind], (uint64_t)from, numbers, (size_t)capacity);
    pthread_mutex_unlock(&dataset->mutex);
    return BODHI_OK;
}

static bodhi_place locate(const bodhi_dataset *dataset, int64_t number) {
    for (int kind = BODHI_NATIVE; number >= 0 && kind <= BODHI_ALIEN; kind++) {
        size_t state = 0;
        const place *copy = table_find(&dataset->tables[kind], (uint64_t)number, &state);
        if (copy != NULL) {
            return (bodhi_place){.segment = dataset->segments[copy->segment]->key.segment,
                                 .kind = kind,
                                 .found = 1,
                                 .offset = (int64_t)copy->offset * UNIT,
                                 .length = (int64_t)copy->length * UNIT};
        }
    }
    return (bodhi_place){.found = 0};
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
        (void)io_close(fd);
    }
    return facts;
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

/* --- Eviction ---------------------------------------------------------------------------------------------------- */

/* Delete the files of a segment on which the caller holds both locks. The index goes last: one without a segment is
 * nothing, a segment without an index would be read again. */
static int unlink_segment(bodhi_dataset *dataset, const segment *s) {
    if (bodhi_io.unlinkat(dataset->fd, s->name, 0) != 0 && errno != ENOENT) {
        return bodhi_fail_system(errno, "unlink", s->name);
    }
    (void)bodhi_io.unlinkat(dataset->fd, s->index_name, 0);
    return BODHI_OK;
}

static int evict(bodhi_dataset *dataset, uint32_t ordinal) {
    segment *s = dataset->segments[ordinal];
    if (s->users > 0) {
        return bodhi_fail(BODHI_ERROR_BUSY, "%s is being read", s->name);
    }
    close_segment(dataset, s); /* our own hold would stop us */
    int fd = open_with_room(dataset, s->name, O_RDWR);
    if (fd < 0) {
        return errno == ENOENT ? bodhi_fail(BODHI_ERROR_NOT_FOUND, "%s is gone", s->name)
                               : bodhi_fail_system(errno, "open", s->name);
    }
    int status;
    if (io_lock(fd, LOCK_WRITER, true) != LOCK_GOT || io_lock(fd, LOCK_READERS, true) != LOCK_GOT) {
        status = bodhi_fail(BODHI_ERROR_BUSY, "%s is held by a writer or reader", s->name);
    } else {
        status = unlink_segment(dataset, s);
    }
    (void)io_close(fd);
    if (status == BODHI_OK) {
        dataset_forget(dataset, ordinal);
    }
    return status;
}

int bodhi_dataset_evict(bodhi_dataset *dataset, uint64_t id) {
    if (dataset == NULL || is_read_only(dataset)) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "the dataset is not open for writing");
    }
    uint32_t ordinal;
    pthread_mutex_lock(&dataset->mutex);
    segment *s = dataset_find(dataset, BODHI_NATIVE, id, &ordinal);
    if (s == NULL) {
        s = dataset_find(dataset, BODHI_ALIEN, id, &ordinal);
    }
    int status = s == NULL || s->gone || s->refused ? bodhi_fail(BODHI_ERROR_NOT_FOUND, "there is no such segment")
                                                    : evict(dataset, ordinal);
    pthread_mutex_unlock(&dataset->mutex);
    return status;
}
