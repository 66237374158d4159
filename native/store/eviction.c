/* What lies in a store, and deleting segments. Opening is use of a dataset: only bodhi_store_sweep() does it. */
#include "store/dataset.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io.h"
#include "base/memory.h"
#include "base/status.h"

#define LARGEST_RESERVE (INT64_C(1) << 30)
enum { RESERVED_SHARE = 20 }; /* a twentieth of the file system stays free, or LARGEST_RESERVE */

/* Beside some atoms of the frames of a dataset whose origin is known lies this (himach/io/datasets/subsets.py). */
static const char atoms_file[] = "x-atoms";

/* --- Looking ----------------------------------------------------------------------------------------------------- */

typedef struct {
    bodhi_stored_segment *segments;
    size_t n, capacity;
    int64_t used;
} listing;

/* The segment that a file belongs to, itself, its index or its sealed table. */
static bool segment_of_file(const char *name, segment *s) {
    char file[SEGMENT_NAME] = "";
    if (strlen(name) >= sizeof file) {
        return false;
    }
    memcpy(file, name, strlen(name) + 1);
    char *dot = strrchr(file, '.');
    if (dot != NULL && (strcmp(dot, ".idx") == 0 || strcmp(dot, ".tab") == 0)) {
        memcpy(dot, ".seg", 4);
    }
    return segment_from_name(s, file, 0, 0);
}

/* Count all files of a dataset, and list those of its segments; false if memory is out. */
static bool list_dataset(listing *list, int store, const char *name) {
    DIR *directory = io_list(store, name);
    size_t first = list->n;
    int64_t last_used = 0;
    bool pushed = true;
    bool enough = true;
    struct dirent *entry;
    while (directory != NULL && enough && (entry = readdir(directory)) != NULL) { // NOLINT(concurrency-mt-unsafe): ours
        struct stat status;
        segment s;
        if (!io_status(dirfd(directory), entry->d_name, &status) || !S_ISREG(status.st_mode)) {
            continue;
        }
        bool is_segment = segment_of_file(entry->d_name, &s);
        int64_t blocks = is_segment ? status.st_size : (int64_t)status.st_blocks * 512; /* other files may have holes */
        list->used += blocks < status.st_size ? blocks : status.st_size;
        enough = !is_segment || ARRAY_GROW(list->segments, list->capacity, list->n + 1);
        if (is_segment && enough) {
            list->segments[list->n++] =
                (bodhi_stored_segment){.id = s.key.segment, .kind = s.kind, .bytes = status.st_size};
        } else if (strcmp(entry->d_name, "meta") == 0) {
            last_used = (int64_t)status.st_mtim.tv_sec * 1000000000 + status.st_mtim.tv_nsec;
        } else if (strcmp(entry->d_name, ORIGIN_FILE) == 0 || strcmp(entry->d_name, atoms_file) == 0) {
            pushed = false;
        }
    }
    for (size_t i = first; i < list->n; i++) {
        memcpy(list->segments[i].directory, name, DIRECTORY_NAME);
        list->segments[i].last_used = last_used;
        list->segments[i].pushed = pushed;
    }
    if (directory != NULL) {
        (void)closedir(directory);
    }
    return enough;
}

static int by_turn(const void *left, const void *right) {
    const bodhi_stored_segment *a = left;
    const bodhi_stored_segment *b = right;
    int names = strcmp(a->directory, b->directory);
    if (a->last_used != b->last_used) {
        return a->last_used < b->last_used ? -1 : 1;
    }
    if (names != 0 || a->kind != b->kind) {
        return names != 0 ? names : b->kind - a->kind;
    }
    return a->id < b->id ? -1 : a->id > b->id;
}

/* Bring the list into its order; a segment and its other files become one. */
static void arrange(listing *list) {
    if (list->n > 0) {
        qsort(list->segments, list->n, sizeof *list->segments, by_turn);
    }
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++) {
        if (n > 0 && by_turn(&list->segments[n - 1], &list->segments[i]) == 0) {
            list->segments[n - 1].bytes += list->segments[i].bytes;
        } else {
            list->segments[n++] = list->segments[i];
        }
    }
    list->n = n;
}

static bool list_store(listing *list, int store, DIR *directory) {
    struct dirent *entry;
    while ((entry = readdir(directory)) != NULL) { // NOLINT(concurrency-mt-unsafe): a stream of our own
        struct stat status;
        if (is_dataset(entry->d_name)) {
            if (!list_dataset(list, store, entry->d_name)) {
                return false;
            }
        } else if (io_status(store, entry->d_name, &status) && S_ISREG(status.st_mode)) {
            list->used += status.st_size;
        }
    }
    arrange(list);
    return true;
}

int survey_store(int store, bodhi_usage *usage, bodhi_stored_segment **segments, size_t *n) {
    struct statfs disk;
    DIR *directory = bodhi_io.fstatfs(store, &disk) == 0 ? io_list(store, ".") : NULL;
    if (directory == NULL) {
        return bodhi_fail_system(errno, "listing", "the store");
    }
    listing list = {0};
    bool listed = list_store(&list, store, directory);
    (void)closedir(directory);
    if (!listed) {
        free(list.segments);
        return bodhi_fail_memory();
    }
    int64_t size = (int64_t)disk.f_blocks * disk.f_frsize;
    *usage =
        (bodhi_usage){.used = list.used,
                      .free = (int64_t)disk.f_bavail * disk.f_frsize,
                      .size = size,
                      .reserve = size / RESERVED_SHARE < LARGEST_RESERVE ? size / RESERVED_SHARE : LARGEST_RESERVE};
    *segments = list.segments;
    *n = list.n;
    return BODHI_OK;
}

int bodhi_survey(const char *directory, bodhi_usage *usage, bodhi_stored_segment **segments, int64_t *n) {
    if (directory == NULL || usage == NULL || segments == NULL || n == NULL) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "directory, usage, segments and n must be given");
    }
    int fd = io_open(AT_FDCWD, directory, O_RDONLY | O_DIRECTORY);
    if (fd < 0) {
        return errno == ENOENT || errno == ENOTDIR
                   ? bodhi_fail(BODHI_ERROR_NOT_FOUND, "%s: there is no such store", directory)
                   : bodhi_fail_system(errno, "open", directory);
    }
    size_t count = 0;
    int status = survey_store(fd, usage, segments, &count);
    *n = (int64_t)count;
    io_drop(fd);
    return status;
}

/* --- Deleting ---------------------------------------------------------------------------------------------------- */

/* Of another version or dataset: not ours to delete. What has no readable header is. */
static int check_header(int fd, const segment *s) {
    unsigned char header[SEGMENT_HEADER_BYTES];
    ssize_t got = io_read(fd, header, sizeof header, 0, READ_ANY);
    size_t size = got < 0 ? 0 : (size_t)got;
    return parse_file_header(header, size, MAGIC_SEGMENT, &s->key, s->kind) == PARSED_FOREIGN
               ? bodhi_fail(BODHI_ERROR_VERSION, "%s is of another dataset or format version", s->name)
               : BODHI_OK;
}

/* Keep those of a segment's tombstones whose records are still there. */
static size_t living_tombstones(int directory, const segment *s, tombstone *tombstones, size_t n) {
    size_t living = 0;
    for (size_t i = 0; i < n; i++) {
        segment target;
        struct stat status;
        segment_name(&target, s->kind, tombstones[i].segment);
        if (tombstones[i].segment != s->key.segment &&
            (io_status(directory, target.name, &status) || errno != ENOENT)) {
            tombstones[living++] = tombstones[i];
        }
    }
    return living;
}

/* Write a segment of tombstones. */
static int write_tombstones(int directory, const segment *from, const tombstone *tombstones, size_t n) {
    segment s = {.key = from->key};
    if (!segment_new_name(&s, from->kind)) {
        return bodhi_fail_system(errno, "getrandom", from->name);
    }
    size_t records = SEGMENT_HEADER_BYTES + n * TOMBSTONE_BYTES;
    size_t entries = SEGMENT_HEADER_BYTES + n * ENTRY_BYTES;
    unsigned char *bytes = malloc(records + entries);
    if (bytes == NULL) {
        return bodhi_fail_memory();
    }
    unsigned char *index = bytes + records;
    write_file_header(bytes, MAGIC_SEGMENT, &s.key, s.kind);
    write_file_header(index, MAGIC_INDEX, &s.key, s.kind);
    for (size_t i = 0; i < n; i++) {
        const record_header header = {.type = RECORD_TOMBSTONE,
                                      .kind = s.kind,
                                      .number = tombstones[i].number,
                                      .offset = SEGMENT_HEADER_BYTES + i * TOMBSTONE_BYTES,
                                      .target_segment = tombstones[i].segment,
                                      .target_offset = tombstones[i].offset};
        const index_entry entry = entry_of(&header);
        write_tombstone(bytes + header.offset, &header, &s.key);
        write_entry(index + SEGMENT_HEADER_BYTES + i * ENTRY_BYTES, &entry, s.key.segment);
    }
    bool written = io_write_file(directory, s.index_name, index, entries, FILE_NEW) &&
                   io_write_file(directory, s.name, bytes, records, FILE_NEW) && io_sync(directory);
    int status = written ? BODHI_OK : bodhi_fail_system(errno, "write", s.name);
    free(bytes);
    return status;
}

/* What a segment says of others' records holds on when it goes, or dropped frames would come back. Needs its locks. */
static int carry_tombstones(int directory, const segment *s) {
    findings content = {0};
    segment loaded = *s;
    loaded.covered = SEGMENT_HEADER_BYTES;
    int error = segment_load(directory, &loaded, 0, LOAD_WRITING | LOAD_UNSEALED, &content);
    int status = error == 0 ? BODHI_OK : bodhi_fail_system(error, "read", s->name);
    size_t living = living_tombstones(directory, s, content.tombstones, content.n_tombstones);
    if (status == BODHI_OK && living > 0) {
        status = content.n_places > 0
                     ? write_tombstones(directory, s, content.tombstones, living)
                     : bodhi_fail(BODHI_ERROR_BUSY, "%s says which frames of other segments are dropped", s->name);
    }
    findings_free(&content);
    return status;
}

/* Delete what only speaks of a segment; whether anything did. */
static bool unlink_rest(int directory, const segment *s) {
    char tab[SEGMENT_NAME];
    sealed_name(s, tab);
    bool any = bodhi_io.unlinkat(directory, tab, 0) == 0;
    return bodhi_io.unlinkat(directory, s->index_name, 0) == 0 || any;
}

/* The index goes last: one without a segment is nothing, a segment without an index would be read again. */
static int unlink_files(int directory, const segment *s) {
    if (bodhi_io.unlinkat(directory, s->name, 0) != 0 && errno != ENOENT) {
        return bodhi_fail_system(errno, "unlink", s->name);
    }
    (void)unlink_rest(directory, s);
    return BODHI_OK;
}

/* Whether nothing lives in a segment, looked at anew: also what this process passed over. Needs the writer's lock. */
static int check_empty(bodhi_store *store, const char *directory, const segment *s) {
    bodhi_dataset *dataset = NULL;
    int status = bodhi_dataset_open_directory(store, directory, &dataset);
    if (status != BODHI_OK) {
        return status;
    }
    uint32_t ordinal;
    pthread_mutex_lock(&dataset->mutex);
    const segment *other = dataset_find(dataset, s->kind, s->key.segment, &ordinal);
    bool known = other != NULL && dataset_load(dataset, ordinal, true) == 0 && other->checked && !other->gone &&
                 !other->refused && !other->frozen;
    status = known && other->live == 0 ? BODHI_OK : bodhi_fail(BODHI_ERROR_BUSY, "%s has living frames", s->name);
    pthread_mutex_unlock(&dataset->mutex);
    bodhi_dataset_close(dataset);
    return status;
}

/* A segment without a file leaves an index that is nothing. With `store`, only if nothing lives in it. */
static int evict_segment(int directory, const segment *s, bodhi_store *store, const char *name) {
    int fd = io_open(directory, s->name, O_RDWR);
    if (fd < 0 && errno == ENOENT) {
        return unlink_rest(directory, s) ? BODHI_OK : bodhi_fail(BODHI_ERROR_NOT_FOUND, "%s is gone", s->name);
    }
    if (fd < 0) {
        return bodhi_fail_system(errno, "open", s->name);
    }
    int status = check_header(fd, s);
    if (status == BODHI_OK) {
        bool ours = io_lock(fd, LOCK_WRITER, true) == LOCK_GOT;
        struct stat file;
        bool headless = bodhi_io.fstat(fd, &file) == 0 && file.st_size < SEGMENT_HEADER_BYTES;
        if (ours && store != NULL && !headless) { /* readers are locked out only when it goes */
            status = check_empty(store, name, s);
        }
        ours = ours && io_lock(fd, LOCK_READERS, true) == LOCK_GOT;
        if (status == BODHI_OK && !ours) {
            status = bodhi_fail(BODHI_ERROR_BUSY, "%s is held by a writer or reader", s->name);
        }
        status = status == BODHI_OK ? carry_tombstones(directory, s) : status;
        status = status == BODHI_OK ? unlink_files(directory, s) : status;
    }
    io_drop(fd);
    return status;
}

static int evict_stored(bodhi_store *store, const bodhi_stored_segment *stored, bool only_empty) {
    if (store == NULL || stored == NULL || (store->flags & BODHI_READ_ONLY) != 0 || !is_dataset(stored->directory)) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "a store open for writing and a segment as listed must be given");
    }
    segment s = {.key = {.dataset = strtoull(stored->directory, NULL, 16),
                         .generation = strtoull(stored->directory + 17, NULL, 16)}};
    segment_name(&s, (unsigned)stored->kind, stored->id);
    int fd = io_open(store->fd, stored->directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (fd < 0) {
        return errno == ENOENT ? bodhi_fail(BODHI_ERROR_NOT_FOUND, "%s is gone", s.name)
                               : bodhi_fail_system(errno, "open", stored->directory);
    }
    int status = evict_segment(fd, &s, only_empty ? store : NULL, stored->directory);
    io_drop(fd);
    return status;
}

int bodhi_store_evict(bodhi_store *store, const bodhi_stored_segment *stored) {
    return evict_stored(store, stored, false);
}

int bodhi_store_sweep(bodhi_store *store, const bodhi_stored_segment *stored) {
    return evict_stored(store, stored, true);
}
