/* The segments that a dataset knows: finding and adding them, loading what is new in them into the table. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"
#include "base/memory.h"
#include "base/status.h"
#include "store/dataset.h"

/* --- The list of segments ---------------------------------------------------------------------------------------- */

static bool is_below(const segment *s, unsigned kind, uint64_t id) {
    return s->kind < kind || (s->kind == kind && s->key.segment < id);
}

/* Position in by_id of the first segment that is not below (kind, id). */
static size_t id_bound(const bodhi_dataset *dataset, unsigned kind, uint64_t id) {
    size_t low;
    ARRAY_SEARCH(low, dataset->n_segments, i, is_below(dataset->segments[dataset->by_id[i]], kind, id));
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

segment *dataset_add(bodhi_dataset *dataset, const segment *made, uint32_t *ordinal) {
    segment *s = malloc(sizeof *s);
    size_t n = dataset->n_segments + 1;
    if (s == NULL || !ARRAY_GROW(dataset->segments, dataset->segment_capacity, n) ||
        !ARRAY_GROW(dataset->by_id, dataset->id_capacity, n)) {
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

/* Apply one tombstone; false if it waits for what is not loaded yet. */
static bool apply_tombstone(bodhi_dataset *dataset, unsigned kind, const tombstone *dead) {
    uint32_t ordinal;
    const segment *s = dataset_find(dataset, kind, dead->segment, &ordinal);
    if (s == NULL) {
        return false;
    }
    const place copy = {.number = dead->number, .segment = ordinal, .offset = (uint32_t)(dead->offset / UNIT)};
    return dataset_kill(dataset, kind, &copy) || s->covered > dead->offset;
}

/* Apply `n` tombstones of one kind; those that match nothing yet wait. False: memory is out. */
static bool apply_tombstones(bodhi_dataset *dataset, unsigned kind, const tombstone *dead, size_t n) {
    size_t waiting = dataset->n_tombstones[kind];
    if (!ARRAY_GROW(dataset->tombstones[kind], dataset->tombstone_capacity[kind], waiting + n)) {
        return false;
    }
    if (n > 0) {
        memcpy(dataset->tombstones[kind] + waiting, dead, n * sizeof *dead);
    }
    size_t still = 0;
    for (size_t i = 0; i < waiting + n; i++) {
        tombstone next = dataset->tombstones[kind][i];
        if (!apply_tombstone(dataset, kind, &next)) {
            dataset->tombstones[kind][still++] = next;
        }
    }
    dataset->n_tombstones[kind] = still;
    return true;
}

void dataset_forget(bodhi_dataset *dataset, uint32_t ordinal) {
    segment *s = dataset->segments[ordinal];
    s->gone = true;
    dataset_set_sealed(dataset, s, NULL);
    if (s->live > 0) {
        (void)table_remove(&dataset->tables[s->kind], ordinal, UINT32_MAX);
        s->live = 0;
    }
}

int dataset_load(bodhi_dataset *dataset, uint32_t ordinal, bool writing) {
    segment *s = dataset->segments[ordinal];
    segment before = *s;
    findings content = {0};
    int error = segment_load(dataset->fd, s, ordinal, writing ? LOAD_WRITING : 0, &content);
    const sealed *opened = s->sealed != before.sealed ? s->sealed : NULL;
    if (error == 0 && table_add(&dataset->tables[s->kind], content.places, content.n_places)) {
        s->live += content.n_places + (opened == NULL ? 0 : opened->facts.frames);
        if (opened != NULL) {
            s->sealed->any_torn = &dataset->torn;
        }
        dataset->scanned += content.scanned;
        (void)apply_tombstones(dataset, s->kind, content.tombstones,
                               content.n_tombstones); /* else dropped frames stay a while */
    } else {
        bool gone = s->gone;
        if (opened != NULL) {
            sealed_close(s->sealed);
        }
        *s = before;
        s->gone = gone;
        error = error == 0 ? ENOMEM : error;
    }
    findings_free(&content);
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
    io_drop(fd);
}

void dataset_mend(bodhi_dataset *dataset) {
    while (dataset->torn) {
        dataset->torn = false;
        for (unsigned kind = 0; kind < 2; kind++) {
            table_free(&dataset->tables[kind]);
            dataset->n_tombstones[kind] = 0;
        }
        for (uint32_t i = 0; i < dataset->n_segments; i++) {
            segment *s = dataset->segments[i];
            s->torn = s->sealed != NULL && s->sealed->torn ? s->sealed->facts.crc : s->torn;
            dataset_set_sealed(dataset, s, NULL);
            s->covered = s->index_covered = SEGMENT_HEADER_BYTES;
            s->index_at = s->looked_at = s->live = 0;
        }
        for (uint32_t i = 0; i < dataset->n_segments; i++) {
            segment *s = dataset->segments[i];
            if (!s->gone && !s->refused && dataset_load(dataset, i, false) != 0 && s->gone) {
                dataset_forget(dataset, i);
            }
        }
    }
}

/* --- Refreshing -------------------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b) {
    return strcmp(a, b);
}

/* The names of the segments in the directory, sorted (so in the order of their making); -1 and errno on failure. */
static ssize_t list_names(const bodhi_dataset *dataset, char (**names)[SEGMENT_NAME]) {
    DIR *directory = io_list(dataset->fd, ".");
    if (directory == NULL) {
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
        if (!ARRAY_GROW(*names, capacity, n + 1)) {
            (void)closedir(directory);
            free(*names);
            errno = ENOMEM;
            return -1;
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

static bool is_same(const struct stat *a, const struct stat *b) {
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* The directory may have been deleted and made again: take that of the name now, under the same descriptor. */
static int follow_directory(bodhi_dataset *dataset) {
    struct stat opened;
    struct stat named;
    bool there = io_status(dataset->store->fd, dataset->directory, &named);
    if (!there && errno != ENOENT) {
        return errno;
    }
    dataset->removed = !there;
    dataset->listed = there ? named : (struct stat){0};
    (void)clock_gettime(CLOCK_REALTIME, &dataset->listed_at);
    if (bodhi_io.fstat(dataset->fd, &opened) != 0) {
        return errno;
    }
    if (!there || is_same(&opened, &named)) {
        return 0;
    }
    int fd = io_open(dataset->store->fd, dataset->directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (fd < 0) {
        return errno;
    }
    atomic_fetch_add(&dataset->directory_number, 1); /* first: who works in it sees it, and syncs the name */
    int error = io_replace(fd, dataset->fd) ? 0 : errno;
    io_drop(fd);
    return error;
}

static int report(const bodhi_dataset *dataset, int error) {
    return error == 0 ? BODHI_OK : bodhi_fail_system(error, "listing", dataset->directory);
}

static int refresh(bodhi_dataset *dataset) {
    char(*names)[SEGMENT_NAME] = NULL;
    int error = follow_directory(dataset);
    ssize_t n = error != 0 || dataset->removed ? 0 : list_names(dataset, &names);
    if (error != 0 || n < 0) {
        error = error != 0 ? error : errno;
        dataset->listed = (struct stat){0};
        return report(dataset, error);
    }
    for (uint32_t i = 0; i < dataset->n_segments; i++) {
        if (n == 0 || bsearch(dataset->segments[i]->name, names, (size_t)n, SEGMENT_NAME, by_name) == NULL) {
            dataset_forget(dataset, i);
        }
    }
    for (ssize_t i = 0; i < n && error == 0; i++) {
        error = refresh_one(dataset, names[i]);
    }
    dataset_mend(dataset);
    free(names);
    return report(dataset, error);
}

static int64_t ns_between(const struct timespec *from, const struct timespec *to) {
    return ((int64_t)to->tv_sec - from->tv_sec) * 1000000000 + to->tv_nsec - from->tv_nsec;
}

/* Whether the directory is as it was listed a moment ago. Times of files are coarse: what just changed may not show. */
static bool is_listed(const bodhi_dataset *dataset) {
    enum { COARSE_NS = 50000000, MOMENT_NS = 500000000 };
    struct stat now;
    struct timespec clock;
    const struct timespec *changed = &dataset->listed.st_mtim;
    (void)clock_gettime(CLOCK_REALTIME, &clock);
    int64_t age = ns_between(&dataset->listed_at, &clock);
    return dataset->listed.st_ino != 0 && ns_between(changed, &dataset->listed_at) > COARSE_NS && age >= 0 &&
           age < MOMENT_NS && io_status(dataset->store->fd, dataset->directory, &now) &&
           is_same(&now, &dataset->listed) && now.st_mtim.tv_sec == changed->tv_sec &&
           now.st_mtim.tv_nsec == changed->tv_nsec;
}

int dataset_keep_up(bodhi_dataset *dataset) {
    pthread_mutex_lock(&dataset->mutex);
    int status = is_listed(dataset) ? BODHI_OK : refresh(dataset);
    pthread_mutex_unlock(&dataset->mutex);
    return status;
}

int dataset_restore(bodhi_dataset *dataset) {
    int status = report(dataset, follow_directory(dataset));
    if (status == BODHI_OK && dataset->removed) {
        status = dataset_make_directory(dataset);
    }
    status = status == BODHI_OK ? refresh(dataset) : status;
    status = status == BODHI_OK ? dataset_write_meta(dataset, false) : status;
    return status == BODHI_OK ? dataset_restore_author(dataset) : status;
}

int dataset_reopen(bodhi_dataset *dataset, bool create) {
    pthread_mutex_lock(&dataset->mutex);
    int status = refresh(dataset);
    if (status == BODHI_OK && dataset->removed) {
        status = create ? dataset_restore(dataset)
                        : bodhi_fail(BODHI_ERROR_NOT_FOUND, "%s: no dataset %s there any more", dataset->store->path,
                                     dataset->name);
    }
    pthread_mutex_unlock(&dataset->mutex);
    return status;
}

int bodhi_dataset_refresh(bodhi_dataset *dataset) {
    pthread_mutex_lock(&dataset->mutex);
    int status = refresh(dataset);
    pthread_mutex_unlock(&dataset->mutex);
    return status;
}
