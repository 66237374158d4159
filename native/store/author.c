/* Whose frames a dataset has, where they have no origin: what a simulation says of itself is attached, and
 * whoever pushes later says the same or is refused. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/status.h"
#include "store/dataset.h"

static const char author_file[] = "x-author"; /* an attachment (himach/io/dataset/attachment.py) */

/* Beside its frames a dataset has this file if its origin is known. */
static const char origin_file[] = "x-origin.json";

/* Read who it is into `author`; "" if nobody said so yet. */
static int read_author(const bodhi_dataset *dataset, char author[MAX_NAME + 1]) {
    int fd = io_open(dataset->fd, author_file, O_RDONLY | O_NOFOLLOW);
    author[0] = '\0';
    if (fd < 0) {
        return errno == ENOENT ? BODHI_OK : bodhi_fail_system(errno, "open of author", dataset->directory);
    }
    ssize_t got = io_read(fd, author, MAX_NAME, 0, READ_ANY);
    int error = errno;
    (void)io_close(fd);
    author[got < 0 ? 0 : got] = '\0';
    return got < 0 ? bodhi_fail_system(error, "read of author", dataset->directory) : BODHI_OK;
}

static int fail_conflict(const bodhi_dataset *dataset, const char *author, const char *identity) {
    return bodhi_fail(BODHI_ERROR_CONFLICT,
                      "dataset %s has frames of the simulation '%s', and this one is '%s': push under another name. If "
                      "it is the same one, restarted, give identity '%s'; to begin anew, 'himach cache evict' the "
                      "dataset",
                      dataset->name, author, identity, author);
}

/* Keep in mind who it is, to say so again if the directory is deleted. */
static int remember(bodhi_dataset *dataset, const char *identity) {
    char *copy = strdup(identity);
    if (copy == NULL) {
        return bodhi_fail_memory();
    }
    free(dataset->author);
    dataset->author = copy;
    return BODHI_OK;
}

static int claim(bodhi_dataset *dataset, const char *identity, bool alone) {
    char author[MAX_NAME + 1];
    int status = read_author(dataset, author);
    if (status != BODHI_OK) {
        return status;
    }
    bool vacant = author[0] == '\0' || (alone && table_living(&dataset->tables[BODHI_NATIVE]) == 0);
    if (strcmp(author, identity) != 0 && vacant) {
        if (io_write_file(dataset->fd, author_file, identity, strlen(identity), author[0] != '\0')) {
            return remember(dataset, identity);
        }
        if (errno != EEXIST) {
            return bodhi_fail_system(errno, "write of author", dataset->directory);
        }
        status = read_author(dataset, author); /* another process was first */
    }
    if (status != BODHI_OK) {
        return status;
    }
    return strcmp(author, identity) == 0 ? remember(dataset, identity) : fail_conflict(dataset, author, identity);
}

/* Whether another generation of the name has an origin; its directory is then in `found`. */
static bool is_staged(const bodhi_dataset *dataset, char found[DIRECTORY_NAME]) {
    enum { HASH = 17 /* of the name, and a dash */ };
    DIR *entries = io_list(dataset->store->fd, ".");
    const struct dirent *entry;
    bool staged = false;
    while (entries != NULL && !staged && (entry = readdir(entries)) != NULL) { // NOLINT(concurrency-mt-unsafe): ours
        char path[DIRECTORY_NAME + sizeof origin_file];
        struct stat status;
        if (strlen(entry->d_name) == DIRECTORY_NAME - 1 && strncmp(entry->d_name, dataset->directory, HASH) == 0) {
            (void)snprintf(path, sizeof path, "%s/%s", entry->d_name, origin_file);
            staged = io_status(dataset->store->fd, path, &status);
            memcpy(found, entry->d_name, DIRECTORY_NAME);
        }
    }
    if (entries != NULL) {
        (void)closedir(entries);
    }
    return staged;
}

int dataset_refuse_staged(const bodhi_dataset *dataset) {
    char found[DIRECTORY_NAME];
    return !is_staged(dataset, found)
               ? BODHI_OK
               : bodhi_fail(BODHI_ERROR_CONFLICT,
                            "dataset %s is of a trajectory (%s/%s): push under another name, or 'himach cache evict' "
                            "it first",
                            dataset->name, dataset->store->path, found);
}

int dataset_claim(bodhi_dataset *dataset, const char *identity, bool alone) {
    pthread_mutex_lock(&dataset->mutex);
    int status = claim(dataset, identity, alone);
    pthread_mutex_unlock(&dataset->mutex);
    return status;
}

int dataset_restore_author(const bodhi_dataset *dataset) {
    return dataset->author == NULL ||
                   io_write_file(dataset->fd, author_file, dataset->author, strlen(dataset->author), false) ||
                   errno == EEXIST
               ? BODHI_OK
               : bodhi_fail_system(errno, "write of author", dataset->directory);
}
