/* Whose frames a dataset without an origin has: whoever pushes later says the same of itself or is refused; and which
 * launch of a simulation slices are of: launches are numbered in each store, in the order in which their first slices
 * come. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>

#include "base/io.h"
#include "base/status.h"
#include "store/dataset.h"

static const char author_file[] = "x-author"; /* an attachment (himach/io/datasets/attachment.py) */

/* Read who it is into `author`; "" if nobody said so yet. */
static int read_author(const bodhi_dataset *dataset, char author[MAX_NAME + 1]) {
    int fd = io_open(dataset->fd, author_file, O_RDONLY | O_NOFOLLOW);
    author[0] = '\0';
    if (fd < 0) {
        return errno == ENOENT ? BODHI_OK : bodhi_fail_system(errno, "open of author", dataset->directory);
    }
    ssize_t got = io_read(fd, author, MAX_NAME, 0, READ_ANY);
    io_drop(fd);
    author[got < 0 ? 0 : got] = '\0';
    return got < 0 ? bodhi_fail_system(errno, "read of author", dataset->directory) : BODHI_OK;
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

static int claim_vacant(bodhi_dataset *dataset, const char *identity, bool alone) {
    char author[MAX_NAME + 1];
    int status = read_author(dataset, author);
    if (status != BODHI_OK) {
        return status;
    }
    bool vacant = author[0] == '\0' || (alone && dataset_is_vacant(dataset, BODHI_NATIVE));
    if (strcmp(author, identity) != 0 && vacant) {
        if (io_write_file(dataset->fd, author_file, identity, strlen(identity),
                          author[0] != '\0' ? FILE_REPLACE : FILE_NEW)) {
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

int store_refuse_staged(const bodhi_store *store, const char *name) {
    size_t length = strlen(name);
    size_t suffix = strlen(BODHI_SLICES_SUFFIX);
    length -= length > suffix && strcmp(name + length - suffix, BODHI_SLICES_SUFFIX) == 0 ? suffix : 0;
    uint64_t hash = hash_bytes(name, length);
    DIR *entries = io_list(store->fd, ".");
    if (entries == NULL) {
        return bodhi_fail_system(errno, "looking for a trajectory of the name", name);
    }
    int status = BODHI_OK;
    const char *directory;
    while (status == BODHI_OK && (directory = store_next_directory(entries, hash)) != NULL) {
        char path[DIRECTORY_NAME + sizeof ORIGIN_FILE];
        struct stat origin;
        (void)snprintf(path, sizeof path, "%s/" ORIGIN_FILE, directory);
        if (io_status(store->fd, path, &origin)) {
            status = bodhi_fail(BODHI_ERROR_CONFLICT,
                                "dataset %.*s is of a trajectory (%s/%s): push under another name, or 'himach cache "
                                "evict' it first",
                                (int)length, name, store->path, directory);
        } else if (errno != ENOENT) {
            status = bodhi_fail_system(errno, "looking for a trajectory of the name", name);
        }
    }
    (void)closedir(entries);
    return status;
}

int store_lock(const bodhi_store *store) {
    enum { STEP_NS = 5000000, STEPS = 200 };
    int fd = io_open(store->fd, ".", O_RDONLY | O_DIRECTORY);
    for (int i = 0; fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0; i++) {
        if ((errno != EWOULDBLOCK && errno != EINTR) || i == STEPS) {
            io_drop(fd);
            return -1;
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = STEP_NS}, NULL);
    }
    return fd;
}

int dataset_claim(bodhi_dataset *dataset, const char *identity, bool alone) {
    pthread_mutex_lock(&dataset->mutex);
    int status = claim_vacant(dataset, identity, alone);
    pthread_mutex_unlock(&dataset->mutex);
    return status;
}

int dataset_check_author(bodhi_dataset *dataset) {
    char author[MAX_NAME + 1] = "";
    pthread_mutex_lock(&dataset->mutex); /* another pusher may claim it just now */
    int status = dataset->author == NULL ? BODHI_OK : read_author(dataset, author);
    if (status == BODHI_OK && author[0] != '\0' && strcmp(author, dataset->author) != 0) {
        status = fail_conflict(dataset, author, dataset->author);
    }
    pthread_mutex_unlock(&dataset->mutex);
    return status;
}

int dataset_restore_author(const bodhi_dataset *dataset) {
    return dataset->author == NULL ||
                   io_write_file(dataset->fd, author_file, dataset->author, strlen(dataset->author), FILE_NEW) ||
                   errno == EEXIST
               ? BODHI_OK
               : bodhi_fail_system(errno, "write of author", dataset->directory);
}

/* How the first line of a generation of slices ends (net/slices.c). */
static const char line_end[] = ", launch 0000000000, mark 0000000000000000\n";
enum { LINE_END = sizeof line_end - 1, TO_NUMBER = 9, NUMBER = 10, TO_MARK = 26, MARK = 16 };

/* Beside the slices of a launch lies this file if a later one supersedes some (himach/io/push/held_slices.py). */
static const char superseded_file[] = "x-superseded";

typedef struct {
    uint64_t number;
    char mark[MARK];
    bool superseded;
} launch;

/* Where that end lies in a generation; NULL: it is none of slices. */
static char *find_line_end(const void *generation, size_t bytes) {
    const char *newline = memchr(generation, '\n', bytes);
    size_t line = newline == NULL ? 0 : (size_t)(newline - (const char *)generation);
    char *end = memmem(generation, line, line_end, TO_NUMBER);
    return end != NULL && newline - end == LINE_END - 1 ? end : NULL;
}

/* The launch whose slices lie in a directory of a dataset. False: none are there, or it cannot be read. */
static bool read_launch(int store, const char *name, launch *out) {
    unsigned char data[META_BYTES];
    meta_names meta;
    int directory = io_open(store, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    bool known = directory >= 0 && dataset_read_meta(directory, data, &meta) == PARSED;
    const char *end = known ? find_line_end(meta.generation, meta.generation_bytes) : NULL;
    if (end != NULL) {
        struct stat status;
        out->number = strtoull(end + TO_NUMBER, NULL, 10);
        memcpy(out->mark, end + TO_MARK, MARK);
        out->superseded = io_status(directory, superseded_file, &status);
    }
    io_drop(directory);
    return end != NULL;
}

int store_number_launch(const bodhi_store *store, const char *name, void *generation, size_t bytes) {
    char *end = find_line_end(generation, bytes);
    DIR *entries = end == NULL ? NULL : io_list(store->fd, ".");
    if (entries == NULL) {
        return end == NULL ? BODHI_OK : bodhi_fail_system(errno, "listing", store->path);
    }
    const uint64_t hash = hash_bytes(name, strlen(name));
    uint64_t last = 0;
    uint64_t own = 0; /* of the same mark the last one */
    bool superseded = false;
    const char *directory;
    while ((directory = store_next_directory(entries, hash)) != NULL) {
        launch other;
        if (!read_launch(store->fd, directory, &other)) {
            continue;
        }
        last = other.number > last ? other.number : last;
        if (memcmp(other.mark, end + TO_MARK, MARK) == 0 && other.number >= own) {
            superseded = other.superseded || (superseded && other.number == own);
            own = other.number;
        }
    }
    (void)closedir(entries);
    char text[24];
    (void)snprintf(text, sizeof text, "%0*" PRIu64, NUMBER, own > 0 && !superseded ? own : last + 1);
    memcpy(end + TO_NUMBER, text, NUMBER);
    return BODHI_OK;
}
