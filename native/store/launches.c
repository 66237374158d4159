/* The launches of a simulation are numbered in each store, in the order in which their first slices come. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/status.h"
#include "store/dataset.h"

/* How the first line of a generation of slices ends (net/launch.c). */
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
