/* Opening and closing a dataset; its meta file. */
#include "store/dataset.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io.h"
#include "base/status.h"

static int set_names(bodhi_dataset *dataset, const meta_names *names) {
    dataset->name = malloc(names->name_bytes + 1);
    dataset->generation = malloc(names->generation_bytes + 1);
    if (dataset->name == NULL || dataset->generation == NULL) {
        return bodhi_fail_memory();
    }
    memcpy(dataset->name, names->name, names->name_bytes);
    dataset->name[names->name_bytes] = '\0';
    if (names->generation_bytes > 0) {
        memcpy(dataset->generation, names->generation, names->generation_bytes);
    }
    dataset->generation_bytes = names->generation_bytes;
    dataset->key.dataset = hash_bytes(names->name, names->name_bytes);
    dataset->key.generation = hash_bytes(names->generation, names->generation_bytes);
    return BODHI_OK;
}

/* Take the names from the meta file. Where they are set, check that it has them; a missing or damaged one is written
 * anew. */
static int take_meta(bodhi_dataset *dataset, bool may_write) {
    unsigned char data[META_BYTES];
    meta_names meta;
    const enum parsed parsed = dataset_read_meta(dataset->fd, data, &meta);
    if (parsed == PARSED_VERSION) {
        return bodhi_fail(BODHI_ERROR_VERSION, "%s/%s is of format version %u; this himach reads version %d",
                          dataset->store->path, dataset->directory, meta.version, FORMAT_VERSION);
    }
    if (parsed != PARSED && dataset->name == NULL) {
        return bodhi_fail(BODHI_ERROR_NOT_FOUND, "%s/%s: its meta file is missing or damaged", dataset->store->path,
                          dataset->directory);
    }
    if (parsed != PARSED) {
        return may_write ? dataset_write_meta(dataset, parsed != PARSED_SHORT) : BODHI_OK;
    }
    if (dataset->name == NULL) {
        return set_names(dataset, &meta);
    }
    if (meta.name_bytes != strlen(dataset->name) || memcmp(meta.name, dataset->name, meta.name_bytes) != 0 ||
        meta.generation_bytes != dataset->generation_bytes ||
        memcmp(meta.generation, dataset->generation, meta.generation_bytes) != 0) {
        return bodhi_fail(BODHI_ERROR_CONFLICT, "%s/%s holds the dataset %.*s, which has the same hash as %s",
                          dataset->store->path, dataset->directory, (int)meta.name_bytes, meta.name, dataset->name);
    }
    return BODHI_OK;
}

static bodhi_dataset *new_dataset(bodhi_store *store) {
    bodhi_dataset *dataset = calloc(1, sizeof *dataset);
    if (dataset != NULL) {
        dataset->store = store;
        dataset->fd = -1;
        dataset->directory_number = 1;
        dataset->mend = dataset_mend;
        pthread_mutex_init(&dataset->mutex, NULL);
    }
    return dataset;
}

static int open_dataset_directory(bodhi_dataset *dataset, bool create) {
    int status = create ? dataset_make_directory(dataset) : BODHI_OK;
    if (status != BODHI_OK) {
        return status;
    }
    dataset->fd = io_open(dataset->store->fd, dataset->directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (dataset->fd < 0) {
        return errno == ENOENT ? bodhi_fail(BODHI_ERROR_NOT_FOUND, "%s: no dataset %s there", dataset->store->path,
                                            dataset->name != NULL ? dataset->name : dataset->directory)
                               : bodhi_fail_system(errno, "open", dataset->directory);
    }
    return BODHI_OK;
}

bool dataset_sync_names(bodhi_dataset *dataset) {
    int store = dataset->store->fd;
    unsigned number = atomic_load(&dataset->directory_number);
    if (!io_sync(dataset->fd)) {
        return false;
    }
    if (atomic_load(&dataset->rooted) != number) {
        if (!io_sync(store) || !io_sync_parent(store)) {
            return false;
        }
        atomic_store(&dataset->rooted, number);
    }
    return true;
}

/* Open the directory of a dataset whose names are set, or are to be found there. */
static int open_named(bodhi_dataset *dataset, int status, bool create, bodhi_dataset **out) {
    status = status == BODHI_OK ? open_dataset_directory(dataset, create) : status;
    status = status == BODHI_OK ? take_meta(dataset, create) : status;
    status = status == BODHI_OK ? bodhi_dataset_refresh(dataset) : status;
    if (status != BODHI_OK) {
        bodhi_dataset_close(dataset);
        return status;
    }
    dataset_use(dataset);
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
    const meta_names names = {
        .name = name, .name_bytes = name_bytes, .generation = generation, .generation_bytes = generation_bytes};
    int status = set_names(opened, &names);
    (void)snprintf(opened->directory, sizeof opened->directory, "%016" PRIx64 "-%016" PRIx64, opened->key.dataset,
                   opened->key.generation);
    return open_named(opened, status, (flags & BODHI_CREATE) != 0 && !is_read_only(opened), dataset);
}

int bodhi_dataset_open_directory(bodhi_store *store, const char *directory, bodhi_dataset **dataset) {
    if (store == NULL || directory == NULL || dataset == NULL || !is_dataset(directory)) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "directory must be two hexadecimal numbers of 16 digits with a dash");
    }
    bodhi_dataset *opened = new_dataset(store);
    if (opened == NULL) {
        return bodhi_fail_memory();
    }
    memcpy(opened->directory, directory, DIRECTORY_NAME);
    return open_named(opened, BODHI_OK, false, dataset);
}

void bodhi_dataset_close(bodhi_dataset *dataset) {
    if (dataset == NULL) {
        return;
    }
    for (size_t i = 0; i < dataset->n_segments; i++) {
        segment *s = dataset->segments[i];
        io_drop(s->fd);
        io_drop(s->direct_fd);
        sealed_close(s->sealed);
        free(s);
    }
    for (int kind = 0; kind < 2; kind++) {
        table_free(&dataset->tables[kind]);
        free(dataset->tombstones[kind]);
    }
    free((void *)dataset->segments);
    free(dataset->by_id);
    io_drop(dataset->fd);
    pthread_mutex_destroy(&dataset->mutex);
    free(dataset->name);
    free(dataset->generation);
    free(dataset->author);
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
