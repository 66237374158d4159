/* Launches that push slices are ordered by the seconds of their segments, which never go back as clocks do. */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/io.h"
#include "store/dataset.h"

enum { LAUNCH_BYTES = 16 };

/* What tells the launch in a generation of slices (net/pushing/slices.c); NULL: it is none of slices. */
static const char *launch_of(const void *generation, size_t bytes) {
    static const char begin[] = "slices of rank ";
    static const char before[] = ", launch ";
    if (bytes < sizeof begin || memcmp(generation, begin, sizeof begin - 1) != 0) {
        return NULL;
    }
    const char *end = memchr(generation, '\n', bytes);
    size_t line = end == NULL ? 0 : (size_t)(end - (const char *)generation);
    return line < sizeof before - 1 + LAUNCH_BYTES ||
                   memcmp(end - LAUNCH_BYTES - sizeof before + 1, before, sizeof before - 1) != 0
               ? NULL
               : end - LAUNCH_BYTES;
}

/* The last second in which a segment was begun in a dataset's directory; 0: there is none. */
static uint64_t last_begun(int directory) {
    DIR *entries = io_list(directory, ".");
    const struct dirent *entry;
    uint64_t last = 0;
    while (entries != NULL && (entry = readdir(entries)) != NULL) { // NOLINT(concurrency-mt-unsafe): ours
        segment s;
        if (segment_from_name(&s, entry->d_name, 0, 0) && s.key.segment >> 32 > last) {
            last = s.key.segment >> 32;
        }
    }
    if (entries != NULL) {
        (void)closedir(entries);
    }
    return last;
}

/* Whether the directory is that of another launch. */
static bool is_of_other(int directory, const char *launch) {
    size_t size;
    const char *name;
    const void *generation;
    size_t name_bytes;
    size_t bytes;
    unsigned version;
    unsigned char *meta = dataset_read_meta(directory, &size);
    const char *other =
        meta != NULL && parse_meta(meta, size, &name, &name_bytes, &generation, &bytes, &version) == PARSED
            ? launch_of(generation, bytes)
            : NULL;
    bool is = other != NULL && memcmp(other, launch, LAUNCH_BYTES) != 0;
    free(meta);
    return is;
}

uint64_t dataset_followed(const bodhi_dataset *dataset) {
    enum { MOST = 1 << 16 };
    char *text = malloc(MOST + 1);
    int fd = text == NULL ? -1 : io_open(dataset->fd, "x-followed", O_RDONLY | O_NOFOLLOW);
    ssize_t got = fd < 0 ? 0 : io_read(fd, text, MOST, 0, READ_ANY);
    uint64_t last = 0;
    if (got > 0) {
        text[got] = '\0';
        for (const char *line = text; line != NULL && *line != '\0'; line = strchr(line, '\n')) {
            char *field;
            line += *line == '\n';
            (void)strtoull(line, &field, 16);
            (void)strtoull(field, &field, 10);
            uint64_t second = strtoull(field, &field, 10);
            last = second > last ? second : last;
        }
    }
    io_drop(fd);
    free(text);
    return last < UINT32_MAX ? last << 32 : 0;
}

uint64_t dataset_least_segment(const bodhi_dataset *dataset) {
    const char *launch = launch_of(dataset->generation, dataset->generation_bytes);
    if (launch == NULL) {
        return 0;
    }
    uint64_t least = dataset_followed(dataset) >> 32;
    uint64_t now = (uint64_t)time(NULL);
    DIR *entries = io_list(dataset->store->fd, ".");
    const struct dirent *entry;
    while (entries != NULL && (entry = readdir(entries)) != NULL) { // NOLINT(concurrency-mt-unsafe): ours
        enum { HASH = 17 };                                         /* of the name, and a dash */
        if (strncmp(entry->d_name, dataset->directory, HASH) != 0) {
            continue;
        }
        int directory = io_open(dataset->store->fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
        uint64_t last = directory < 0 ? 0 : last_begun(directory);
        if (last >= now && last >= least && last < UINT32_MAX && is_of_other(directory, launch)) {
            least = last + 1;
        }
        io_drop(directory);
    }
    if (entries != NULL) {
        (void)closedir(entries);
    }
    return least << 32;
}
