/* What a store has: places of frames, generations, attachments, marks; see contents.h. */
#include "server/contents.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io.h"
#include "base/status.h"
#include "server/connection.h"
#include "store/dataset.h"

enum {
    LONGEST_ATTACHED = 64, /* letters in the name of an attachment */
    PART_BYTES = 128 << 10 /* of an attachment at once: the loop waits for the disk so long */
};

/* --- Places ------------------------------------------------------------------------------------------------------ */

/* The descriptor of the place's segment among those that are open, opened if there is room; -1 if it cannot be. */
static int descriptor_of(const bodhi_dataset *dataset, const wire_place *at, uint64_t *segments, int *descriptors,
                         int *n_descriptors) {
    for (int i = *n_descriptors; i-- > 0;) {
        if (segments[i] == at->segment) {
            return i;
        }
    }
    const bodhi_place place_in = {.segment = at->segment, .kind = at->kind};
    int fd = *n_descriptors < WIRE_MAX_SEGMENTS ? dataset_share_segment(dataset, &place_in) : -1;
    if (fd < 0) {
        return -1;
    }
    segments[*n_descriptors] = at->segment;
    descriptors[*n_descriptors] = fd;
    return (*n_descriptors)++;
}

static wire_place place_of(const bodhi_dataset *dataset, int64_t number) {
    place copy;
    int kind = dataset_choose_copy(dataset, (uint64_t)number, &copy);
    return kind < 0 ? (wire_place){.descriptor = -1}
                    : (wire_place){.segment = dataset->segments[copy.segment]->key.segment,
                                   .offset = (uint64_t)copy.offset * UNIT,
                                   .length = (uint64_t)copy.length * UNIT,
                                   .descriptor = -1,
                                   .kind = (uint8_t)kind,
                                   .fields = copy.fields,
                                   .head = copy.head};
}

/* Where the frames lie, up to the first whose segment has no room among the descriptors; returns how many these are. */
static size_t find_places(bodhi_dataset *dataset, const int64_t *numbers, size_t n, wire_place *places,
                          int *descriptors, int *n_descriptors) {
    uint64_t segments[WIRE_MAX_SEGMENTS];
    bool room = true;
    size_t found = 0;
    *n_descriptors = 0;
    pthread_mutex_lock(&dataset->mutex);
    for (size_t i = 0; i < n && room; i++) {
        places[i] = place_of(dataset, numbers[i]);
        if (places[i].length > 0) {
            places[i].descriptor = descriptor_of(dataset, &places[i], segments, descriptors, n_descriptors);
        }
        room = places[i].descriptor >= 0 || places[i].length == 0 || *n_descriptors < WIRE_MAX_SEGMENTS;
        found += room;
    }
    pthread_mutex_unlock(&dataset->mutex);
    return found;
}

bool send_places(bodhi_server *server, connection *c, const int64_t *numbers, size_t n) {
    wire_place *places = malloc(n * sizeof *places);
    size_t at = c->n_out;
    unsigned char *body = places == NULL ? NULL : output_body(c, n * WIRE_PLACE_BYTES);
    if (body == NULL) {
        free(places);
        return output_error(c, BODHI_ERROR_MEMORY, "out of memory");
    }
    size_t found = find_places(c->dataset->dataset, numbers, n, places, c->descriptors, &c->n_descriptors);
    c->descriptors_at = at;
    for (size_t i = 0; i < found; i++) {
        wire_write_place(body + i * WIRE_PLACE_BYTES, &places[i]);
    }
    free(places);
    output_done(c, WIRE_PLACES, found * WIRE_PLACE_BYTES);
    server->counters[COUNT_READS]++;
    server->counters[COUNT_PLACES] += found;
    return true;
}

/* --- Generations ------------------------------------------------------------------------------------------------- */

/* Append the generation that a subdirectory of the store holds of dataset `name`, if it does. Returns the bytes. */
static size_t write_generation(int store, const char *directory, const unsigned char *name, size_t size,
                               unsigned char *out, size_t room) {
    int fd = io_open(store, directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    size_t meta_bytes = 0;
    unsigned char *meta = fd < 0 ? NULL : dataset_read_meta(fd, &meta_bytes);
    const char *found;
    const void *generation;
    size_t found_bytes;
    size_t bytes = 0;
    unsigned version;
    size_t used = 0;
    if (meta != NULL && parse_meta(meta, meta_bytes, &found, &found_bytes, &generation, &bytes, &version) == PARSED &&
        found_bytes == size && memcmp(found, name, size) == 0 && 4 + bytes <= room) {
        wire_put32(out, (uint32_t)bytes);
        memcpy(out + 4, generation, bytes);
        used = 4 + bytes;
    }
    free(meta);
    if (fd >= 0) {
        (void)io_close(fd);
    }
    return used;
}

bool answer_generations(const bodhi_server *server, connection *c) {
    char hash[20];
    size_t size = 0;
    DIR *entries = io_list(server->store->fd, ".");
    unsigned char *body = output_body(c, WIRE_MAX_PART);
    if (entries == NULL || body == NULL) {
        if (entries != NULL) {
            (void)closedir(entries);
        }
        return output_error(c, BODHI_ERROR_SYSTEM, "the store's directory cannot be read now");
    }
    const struct dirent *entry;
    (void)snprintf(hash, sizeof hash, "%016llx-", (unsigned long long)hash_bytes(c->in.body, c->in.size));
    while ((entry = readdir(entries)) != NULL) { // NOLINT(concurrency-mt-unsafe): a stream of our own
        if (strncmp(entry->d_name, hash, 17) == 0) {
            size += write_generation(server->store->fd, entry->d_name, c->in.body, c->in.size, body + size,
                                     WIRE_MAX_PART - size);
        }
    }
    (void)closedir(entries);
    output_done(c, WIRE_GENERATIONS, size);
    return true;
}

/* --- Attachments ------------------------------------------------------------------------------------------------- */

/* The file's name of an attachment; false if nothing may be called so. It is never a path. */
static bool attachment_name(const unsigned char *name, size_t size, char file[LONGEST_ATTACHED + 3]) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    bool right = size >= 1 && size <= LONGEST_ATTACHED;
    for (size_t i = 0; right && i < size; i++) {
        right = name[i] != '\0' && strchr(letters, name[i]) != NULL;
    }
    if (right) {
        (void)snprintf(file, LONGEST_ATTACHED + 3, "x-%.*s", (int)size, (const char *)name);
    }
    return right;
}

bool answer_attachment(connection *c) {
    char file[LONGEST_ATTACHED + 3];
    uint64_t from = wire_get64(c->in.body);
    if (from > INT64_MAX || !attachment_name(c->in.body + 8, c->in.size - 8, file)) {
        return output_error(c, BODHI_ERROR_ARGUMENT, "no attachment may have this name");
    }
    unsigned char *body = output_body(c, 8 + PART_BYTES);
    if (body == NULL) {
        return output_error(c, BODHI_ERROR_MEMORY, "out of memory");
    }
    struct stat status;
    int fd = io_open(c->dataset->dataset->fd, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    bool there = fd >= 0 && bodhi_io.fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
    ssize_t got = there ? io_read(fd, body + 8, PART_BYTES, from, READ_ANY) : -1;
    if (got == PART_BYTES) {
        (void)posix_fadvise(fd, (off_t)from + PART_BYTES, (off_t)8 * PART_BYTES,
                            POSIX_FADV_WILLNEED); /* for what is next */
    }
    if (fd >= 0) {
        (void)io_close(fd);
    }
    wire_put64(body, got < 0 ? UINT64_MAX : (uint64_t)status.st_size);
    output_done(c, WIRE_ATTACHMENT, 8 + (got < 0 ? 0 : (size_t)got));
    return true;
}

/* --- Marks ------------------------------------------------------------------------------------------------------- */

bool answer_mark(connection *c) {
    int64_t first = (int64_t)wire_get64(c->in.body);
    int64_t step = (int64_t)wire_get64(c->in.body + 8);
    uint64_t count = wire_get64(c->in.body + 16);
    if (count == 0 || count > WIRE_MAX_MARKED) {
        return output_error(c, BODHI_ERROR_ARGUMENT, "so many frames are not marked at once");
    }
    size_t words = (size_t)(count + 63) / 64;
    unsigned char *body = output_body(c, 16 * words);
    uint64_t *marks = calloc(2 * words, sizeof *marks);
    if (body == NULL || marks == NULL) {
        free(marks);
        return output_error(c, BODHI_ERROR_MEMORY, "out of memory");
    }
    int status = bodhi_dataset_mark(c->dataset->dataset, first, step, (int64_t)count, marks, marks + words);
    for (size_t i = 0; status == BODHI_OK && i < 2 * words; i++) {
        wire_put64(body + 8 * i, marks[i]);
    }
    free(marks);
    if (status != BODHI_OK) {
        return output_error(c, status, bodhi_message());
    }
    output_done(c, WIRE_MARKED, 16 * words);
    return true;
}
