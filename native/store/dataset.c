/* Datasets: opening one, loading its segments, and what is asked of it. */
#include "store/dataset.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io.h"
#include "base/status.h"

/* --- The list of segments ---------------------------------------------------------------------------------------- */

/* Position in by_id of the first segment that is not below (kind, id). */
static size_t id_bound(const bodhi_dataset *dataset, unsigned kind, uint64_t id) {
    size_t low = 0;
    size_t n = dataset->n_segments;
    while (n > 0) {
        size_t half = n / 2;
        const segment *s = dataset->segments[dataset->by_id[low + half]];
        if (s->kind < kind || (s->kind == kind && s->key.segment < id)) {
            low += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return low;
}

segment *dataset_find(const bodhi_dataset *dataset, unsigned kind, uint64_t id, uint32_t *ordinal) {
    size_t at = id_bound(dataset, kind, id);
    if (at == dataset->n_segments) {
        return NULL;
    }
    segment *s = dataset->segments[dataset->by_id[at]];
    if (s->kind != kind || s->key.segment != id) {
        return NULL;
    }
    *ordinal = dataset->by_id[at];
    return s;
}

static bool room_for_segment(bodhi_dataset *dataset) {
    if (dataset->n_segments < dataset->segment_capacity) {
        return true;
    }
    size_t capacity = dataset->segment_capacity == 0 ? 16 : dataset->segment_capacity * 2;
    segment **segments =
        realloc((void *)dataset->segments, capacity * sizeof *segments); // NOLINT(bugprone-sizeof-expression): pointers
    if (segments != NULL) {
        dataset->segments = segments;
    }
    uint32_t *by_id = realloc(dataset->by_id, capacity * sizeof *by_id);
    if (by_id != NULL) {
        dataset->by_id = by_id;
    }
    if (segments == NULL || by_id == NULL) {
        return false;
    }
    dataset->segment_capacity = capacity;
    return true;
}

segment *dataset_add(bodhi_dataset *dataset, const segment *made, uint32_t *ordinal) {
    segment *s = malloc(sizeof *s);
    if (s == NULL || !room_for_segment(dataset)) {
        free(s);
        return NULL;
    }
    *s = *made;
    size_t at = id_bound(dataset, s->kind, s->key.segment);
    memmove(dataset->by_id + at + 1, dataset->by_id + at, (dataset->n_segments - at) * sizeof *dataset->by_id);
    *ordinal = (uint32_t)dataset->n_segments;
    dataset->by_id[at] = *ordinal;
    dataset->segments[dataset->n_segments++] = s;
    return s;
}

/* --- Loading ----------------------------------------------------------------------------------------------------- */

/* The living copy that a tombstone speaks of, or NULL. */
static place *target_of(const bodhi_dataset *dataset, unsigned kind, const tombstone *dead, uint32_t ordinal) {
    size_t state = 0;
    place *copy;
    while ((copy = table_find(&dataset->tables[kind], dead->number, &state)) != NULL) {
        if (copy->segment == ordinal && (uint64_t)copy->offset * UNIT == dead->offset) {
            return copy;
        }
    }
    return NULL;
}

/* Put one tombstone into force; false if it waits for what is not loaded yet. */
static bool bury(bodhi_dataset *dataset, unsigned kind, const tombstone *dead) {
    uint32_t ordinal;
    segment *s = dataset_find(dataset, kind, dead->segment, &ordinal);
    if (s == NULL) {
        return false;
    }
    place *copy = target_of(dataset, kind, dead, ordinal);
    if (copy != NULL) {
        copy->dead = 1;
        s->live--;
    }
    return copy != NULL || s->covered > dead->offset;
}

bool dataset_bury(bodhi_dataset *dataset, unsigned kind, const tombstone *dead, size_t n) {
    size_t waiting = dataset->n_tombstones[kind];
    if (n > 0) {
        tombstone *grown = realloc(dataset->tombstones[kind], (waiting + n) * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        memcpy(grown + waiting, dead, n * sizeof *dead);
        dataset->tombstones[kind] = grown;
    }
    size_t kept = 0;
    for (size_t i = 0; i < waiting + n; i++) {
        tombstone one = dataset->tombstones[kind][i];
        if (!bury(dataset, kind, &one)) {
            dataset->tombstones[kind][kept++] = one;
        }
    }
    dataset->n_tombstones[kind] = kept;
    return true;
}

void dataset_forget(bodhi_dataset *dataset, uint32_t ordinal) {
    segment *s = dataset->segments[ordinal];
    s->gone = true;
    if (s->live > 0) {
        table_forget_segment(&dataset->tables[s->kind], ordinal);
        s->live = 0;
    }
}

int dataset_load(bodhi_dataset *dataset, uint32_t ordinal, bool writing) {
    segment *s = dataset->segments[ordinal];
    segment before = *s;
    findings found = {0};
    int error = segment_load(dataset->fd, s, ordinal, writing, &found);
    if (error == 0 && table_add(&dataset->tables[s->kind], found.places, found.n_places)) {
        s->live += found.n_places;
        dataset->scanned += found.scanned;
        dataset->refused_version = found.version != 0 ? found.version : dataset->refused_version;
        (void)dataset_bury(dataset, s->kind, found.tombstones,
                           found.n_tombstones); /* else dropped frames stay a while */
    } else {
        bool gone = s->gone;
        *s = before;
        s->gone = gone;
        error = error == 0 ? ENOMEM : error;
    }
    findings_free(&found);
    return error;
}

/* Rebuild an incomplete index, if no writer is at it; whatever fails, nothing is lost. */
static void repair(bodhi_dataset *dataset, segment *s) {
    int fd = io_open(dataset->fd, s->name, O_RDWR);
    if (fd < 0) {
        return;
    }
    if (io_lock(fd, LOCK_WRITER, true) == LOCK_GOT) {
        (void)segment_recover(dataset->fd, s, fd);
    }
    (void)io_close(fd);
}

/* --- Refreshing -------------------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b) {
    return strcmp(a, b);
}

/* The names of the segments in the directory, sorted (so in the order of their making); -1 and errno on failure. */
static ssize_t list_names(const bodhi_dataset *dataset, char (**names)[SEGMENT_NAME]) {
    int fd = io_open(dataset->fd, ".", O_RDONLY | O_DIRECTORY);
    DIR *directory = fd < 0 ? NULL : fdopendir(fd);
    if (directory == NULL) {
        int error = errno;
        if (fd >= 0) {
            (void)io_close(fd);
        }
        errno = error;
        return -1;
    }
    size_t n = 0;
    size_t capacity = 0;
    *names = NULL;
    struct dirent *entry;
    while ((entry = readdir(directory)) != NULL) { // NOLINT(concurrency-mt-unsafe): a stream of our own
        segment s;
        if (!segment_from_name(&s, entry->d_name, 0, 0)) {
            continue;
        }
        if (n == capacity) {
            capacity = capacity == 0 ? 64 : capacity * 2;
            char(*grown)[SEGMENT_NAME] = realloc(*names, capacity * SEGMENT_NAME);
            if (grown == NULL) {
                (void)closedir(directory);
                free(*names);
                errno = ENOMEM;
                return -1;
            }
            *names = grown;
        }
        memcpy((*names)[n++], s.name, SEGMENT_NAME);
    }
    (void)closedir(directory);
    if (n > 0) {
        qsort(*names, n, SEGMENT_NAME, by_name);
    }
    return (ssize_t)n;
}

/* Load one listed segment; an errno only where the whole refresh has to end. */
static int refresh_one(bodhi_dataset *dataset, const char *name) {
    segment made;
    uint32_t ordinal;
    (void)segment_from_name(&made, name, dataset->key.dataset, dataset->key.generation);
    segment *s = dataset_find(dataset, made.kind, made.key.segment, &ordinal);
    if (s == NULL && (s = dataset_add(dataset, &made, &ordinal)) == NULL) {
        return ENOMEM;
    }
    if (s->gone || s->refused) {
        return 0;
    }
    int error = dataset_load(dataset, ordinal, false);
    if (s->gone) {
        dataset_forget(dataset, ordinal);
    }
    if (error == 0 && s->incomplete && !is_read_only(dataset)) {
        repair(dataset, s);
    }
    return error == ENOMEM ? error : 0; /* a segment that cannot be opened or read costs its frames only */
}

static int refresh(bodhi_dataset *dataset) {
    char(*names)[SEGMENT_NAME];
    ssize_t n = list_names(dataset, &names);
    if (n < 0) {
        return errno;
    }
    for (uint32_t i = 0; i < dataset->n_segments; i++) {
        if (n == 0 || bsearch(dataset->segments[i]->name, names, (size_t)n, SEGMENT_NAME, by_name) == NULL) {
            dataset_forget(dataset, i);
        }
    }
    int error = 0;
    for (ssize_t i = 0; i < n && error == 0; i++) {
        error = refresh_one(dataset, names[i]);
    }
    free(names);
    return error;
}

int bodhi_dataset_refresh(bodhi_dataset *dataset) {
    pthread_mutex_lock(&dataset->mutex);
    int error = refresh(dataset);
    pthread_mutex_unlock(&dataset->mutex);
    return error == 0 ? BODHI_OK : bodhi_fail_system(error, "listing", dataset->directory);
}

/* --- Opening ----------------------------------------------------------------------------------------------------- */

static unsigned char *read_meta(int directory, size_t *size) {
    enum { MOST = PREFIX_BYTES + 8 + 2 * MAX_NAME };
    unsigned char *data = malloc(MOST);
    int fd = data == NULL ? -1 : io_open(directory, "meta", O_RDONLY);
    if (fd < 0) {
        free(data);
        return NULL;
    }
    ssize_t got = io_read(fd, data, MOST, 0, READ_ANY);
    (void)io_close(fd);
    *size = got < 0 ? 0 : (size_t)got;
    return data;
}

static bool set_names(bodhi_dataset *dataset, const char *name, size_t name_bytes, const void *generation,
                      size_t generation_bytes) {
    dataset->name = malloc(name_bytes + 1);
    dataset->generation = malloc(generation_bytes + 1);
    if (dataset->name == NULL || dataset->generation == NULL) {
        return false;
    }
    memcpy(dataset->name, name, name_bytes);
    dataset->name[name_bytes] = '\0';
    if (generation_bytes > 0) {
        memcpy(dataset->generation, generation, generation_bytes);
    }
    dataset->generation_bytes = generation_bytes;
    dataset->key.dataset = hash_bytes(name, name_bytes);
    dataset->key.generation = hash_bytes(generation, generation_bytes);
    return true;
}

static int write_meta_file(const bodhi_dataset *dataset, bool replace) {
    unsigned char data[PREFIX_BYTES + 8 + 2 * MAX_NAME];
    size_t size =
        write_meta(data, dataset->name, strlen(dataset->name), dataset->generation, dataset->generation_bytes);
    if (io_write_file(dataset->fd, "meta", data, size, replace) || errno == EEXIST) {
        return BODHI_OK;
    }
    return bodhi_fail_system(errno, "write of meta", dataset->directory);
}

/* Check that the directory is the dataset's whose names are set; a missing or damaged meta file is written anew. */
static int verify_meta(const bodhi_dataset *dataset, bool may_write) {
    size_t size = 0;
    unsigned char *data = read_meta(dataset->fd, &size);
    bool missing = data == NULL;
    const char *name;
    const void *generation;
    size_t name_bytes;
    size_t generation_bytes;
    unsigned version = 0;
    enum parsed parsed =
        missing ? PARSED_DAMAGED : parse_meta(data, size, &name, &name_bytes, &generation, &generation_bytes, &version);
    int status = BODHI_OK;
    if (parsed == PARSED_VERSION) {
        status = bodhi_fail(BODHI_ERROR_VERSION, "%s/%s is of format version %u; this himach reads version %d",
                            dataset->store->path, dataset->directory, version, FORMAT_VERSION);
    } else if (parsed == PARSED &&
               (name_bytes != strlen(dataset->name) || memcmp(name, dataset->name, name_bytes) != 0 ||
                generation_bytes != dataset->generation_bytes ||
                memcmp(generation, dataset->generation, generation_bytes) != 0)) {
        status = bodhi_fail(BODHI_ERROR_CONFLICT, "%s/%s holds the dataset %.*s, which has the same hash as %s",
                            dataset->store->path, dataset->directory, (int)name_bytes, name, dataset->name);
    } else if (parsed != PARSED && may_write) {
        status = write_meta_file(dataset, !missing);
    }
    free(data);
    return status;
}

/* Take the names from the meta file. */
static int adopt_meta(bodhi_dataset *dataset) {
    size_t size = 0;
    unsigned char *data = read_meta(dataset->fd, &size);
    const char *name;
    const void *generation;
    size_t name_bytes;
    size_t generation_bytes;
    unsigned version = 0;
    enum parsed parsed = data == NULL
                             ? PARSED_DAMAGED
                             : parse_meta(data, size, &name, &name_bytes, &generation, &generation_bytes, &version);
    int status = BODHI_OK;
    if (parsed == PARSED_VERSION) {
        status = bodhi_fail(BODHI_ERROR_VERSION, "%s/%s is of format version %u; this himach reads version %d",
                            dataset->store->path, dataset->directory, version, FORMAT_VERSION);
    } else if (parsed != PARSED) {
        status = bodhi_fail(BODHI_ERROR_NOT_FOUND, "%s/%s: its meta file is missing or damaged", dataset->store->path,
                            dataset->directory);
    } else if (!set_names(dataset, name, name_bytes, generation, generation_bytes)) {
        status = bodhi_fail_memory();
    }
    free(data);
    return status;
}

static bodhi_dataset *new_dataset(bodhi_store *store) {
    bodhi_dataset *dataset = calloc(1, sizeof *dataset);
    if (dataset != NULL) {
        dataset->store = store;
        dataset->fd = -1;
        pthread_mutex_init(&dataset->mutex, NULL);
    }
    return dataset;
}

static int open_directory(bodhi_dataset *dataset, int flags) {
    int store = dataset->store->fd;
    if ((flags & BODHI_CREATE) != 0 && !is_read_only(dataset) &&
        bodhi_io.mkdirat(store, dataset->directory, 0700) != 0 && errno != EEXIST) {
        return bodhi_fail_system(errno, "mkdir", dataset->directory);
    }
    dataset->fd = io_open(store, dataset->directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (dataset->fd < 0) {
        return errno == ENOENT ? bodhi_fail(BODHI_ERROR_NOT_FOUND, "%s: no dataset %s there", dataset->store->path,
                                            dataset->name != NULL ? dataset->name : dataset->directory)
                               : bodhi_fail_system(errno, "open", dataset->directory);
    }
    return BODHI_OK;
}

static int finish_opening(bodhi_dataset *dataset, int status, bodhi_dataset **out) {
    if (status == BODHI_OK) {
        status = bodhi_dataset_refresh(dataset);
    }
    if (status != BODHI_OK) {
        bodhi_dataset_close(dataset);
        return status;
    }
    if (!is_read_only(dataset)) {
        (void)utimensat(dataset->fd, "meta", NULL, 0); /* last use */
    }
    *out = dataset;
    return BODHI_OK;
}

int bodhi_dataset_open(bodhi_store *store, const char *name, const void *generation, size_t generation_bytes, int flags,
                       bodhi_dataset **dataset) {
    if (store == NULL || dataset == NULL || name == NULL || (generation == NULL && generation_bytes > 0)) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "store, name, generation and dataset must be given");
    }
    size_t name_bytes = strlen(name);
    if (name_bytes == 0 || name_bytes > MAX_NAME || generation_bytes > MAX_NAME) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "name has %zu bytes and generation %zu; both may have %d", name_bytes,
                          generation_bytes, MAX_NAME);
    }
    bodhi_dataset *opened = new_dataset(store);
    if (opened == NULL) {
        return bodhi_fail_memory();
    }
    int status = BODHI_OK;
    if (!set_names(opened, name, name_bytes, generation, generation_bytes)) {
        status = bodhi_fail_memory();
    } else {
        (void)snprintf(opened->directory, sizeof opened->directory, "%016" PRIx64 "-%016" PRIx64, opened->key.dataset,
                       opened->key.generation);
        status = open_directory(opened, flags);
    }
    if (status == BODHI_OK) {
        status = verify_meta(opened, (flags & BODHI_CREATE) != 0 && !is_read_only(opened));
    }
    return finish_opening(opened, status, dataset);
}

int bodhi_dataset_open_directory(bodhi_store *store, const char *directory, bodhi_dataset **dataset) {
    if (store == NULL || directory == NULL || dataset == NULL || strlen(directory) != DIRECTORY_NAME - 1 ||
        strspn(directory, "0123456789abcdef-") != DIRECTORY_NAME - 1) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "directory must be two hexadecimal numbers of 16 digits with a dash");
    }
    bodhi_dataset *opened = new_dataset(store);
    if (opened == NULL) {
        return bodhi_fail_memory();
    }
    memcpy(opened->directory, directory, DIRECTORY_NAME);
    int status = open_directory(opened, 0);
    if (status == BODHI_OK) {
        status = adopt_meta(opened);
    }
    return finish_opening(opened, status, dataset);
}

void bodhi_dataset_close(bodhi_dataset *dataset) {
    if (dataset == NULL) {
        return;
    }
    for (size_t i = 0; i < dataset->n_segments; i++) {
        segment *s = dataset->segments[i];
        if (s->fd >= 0) {
            (void)io_close(s->fd);
        }
        if (s->direct_fd >= 0) {
            (void)io_close(s->direct_fd);
        }
        free(s);
    }
    for (int kind = 0; kind < 2; kind++) {
        table_free(&dataset->tables[kind]);
        free(dataset->tombstones[kind]);
    }
    free((void *)dataset->segments);
    free(dataset->by_id);
    reader_memory_free(dataset->left);
    if (dataset->fd >= 0) {
        (void)io_close(dataset->fd);
    }
    pthread_mutex_destroy(&dataset->mutex);
    free(dataset->name);
    free(dataset->generation);
    free(dataset);
}

const char *bodhi_dataset_name(const bodhi_dataset *dataset) {
    return dataset->name;
}

const void *bodhi_dataset_generation(const bodhi_dataset *dataset, size_t *bytes) {
    *bytes = dataset->generation_bytes;
    return dataset->generation;
}

const char *bodhi_dataset_directory(const bodhi_dataset *dataset) {
    return dataset->directory;
}
