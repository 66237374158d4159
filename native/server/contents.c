/* What a store has: places of frames, bytes, attachments, numbers; and what it is as a whole, of which a look at a
 * dataset is no use of it. See server.h. */
#include "server/server.h"

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
#include "base/threads.h"
#include "store/dataset.h"

enum {
    PART_BYTES = 128 << 10,       /* of an attachment at once: the loop waits for the disk so long */
    ATTACHMENT_NAME = 2 + 64 + 1, /* "x-", the letters, and the end */
    MOST_ROWS = 256,              /* runs of frames that are told of a dataset, of each kind */
    MOST_STAMP = 128 << 10,       /* bytes of what says of its origin */
    MOST_NOTE = 4096,             /* bytes of other notes */
    SURVEY_MS = 50                /* the loop does nothing else meanwhile */
};
#define TOO_LONG UINT32_MAX
_Static_assert(sizeof(bodhi_run) == 24, "runs lie in messages so");

wire_question question_of(const connection *c) {
    wire_question question;
    memcpy(&question, c->in.body, sizeof question);
    return question;
}

/* --- Places ------------------------------------------------------------------------------------------------------ */

/* The ordinal of the place's segment among those of the answer, to go along as a descriptor if the client is of this
 * machine; -1: it cannot be opened, or there is no room. */
static int descriptor_of(connection *c, const wire_place *at, uint64_t *segments, int *n_segments) {
    for (int i = *n_segments; i-- > 0;) {
        if (segments[i] == at->segment) {
            return i;
        }
    }
    const bodhi_place place_in = {.segment = at->segment, .kind = at->kind};
    bool room = *n_segments < WIRE_MAX_SEGMENTS;
    int fd = !room ? -1 : c->remote ? 0 : dataset_share_segment(c->dataset->dataset, &place_in);
    if (fd < 0) {
        return -1;
    }
    if (!c->remote) {
        c->descriptors[c->n_descriptors++] = fd;
    }
    segments[*n_segments] = at->segment;
    return (*n_segments)++;
}

static wire_place place_of(bodhi_dataset *dataset, int64_t number) {
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

/* Where the frames lie, up to the first whose segment has no room among the descriptors. */
bool send_places(bodhi_server *server, connection *c, const int64_t *numbers, size_t n) {
    bodhi_dataset *dataset = c->dataset->dataset;
    uint64_t segments[WIRE_MAX_SEGMENTS];
    int n_segments = 0;
    size_t count = 0;
    c->descriptors_at = c->out.n;
    pthread_mutex_lock(&dataset->mutex);
    for (; count < n; count++) {
        wire_place at = place_of(dataset, numbers[count]);
        if (at.length > 0) {
            at.descriptor = descriptor_of(c, &at, segments, &n_segments);
        }
        if (at.descriptor < 0 && at.length > 0 && n_segments == WIRE_MAX_SEGMENTS) {
            break;
        }
        output_add(c, &at, sizeof at);
    }
    pthread_mutex_unlock(&dataset->mutex);
    server->counters[COUNT_READS]++;
    server->counters[COUNT_PLACES] += count;
    return output_end(c, WIRE_READ, count);
}

/* --- Bytes ------------------------------------------------------------------------------------------------------- */

static wire_extent extent_at(const connection *c, size_t i) {
    wire_extent at;
    memcpy(&at, c->in.body + i * sizeof at, sizeof at);
    return at;
}

/* Whether the extents of a TAKE are such and no more bytes than it may ask for, *total. */
static bool check_extents(const connection *c, size_t n, size_t *total) {
    *total = 0;
    for (size_t i = 0; i < n; i++) {
        const wire_extent at = extent_at(c, i);
        *total += at.size;
        if (at.size > WIRE_MAX_TAKEN || *total > WIRE_MAX_TAKEN || at.offset > INT64_MAX || at.kind > BODHI_ALIEN) {
            return false;
        }
    }
    return true;
}

bool answer_take(bodhi_server *server, connection *c) {
    size_t n = c->in.size / sizeof(wire_extent);
    size_t total;
    if (!check_extents(c, n, &total)) {
        return output_error(c, BODHI_ERROR_ARGUMENT,
                            "an extent is out of range, or they are more than a message takes");
    }
    wire_extent last = {0};
    int fd = -1; /* of the last one's segment, so that neighbours open it once */
    size_t at = 4 * n;
    unsigned char *body = output_room(c, at + total);
    for (size_t i = 0; body != NULL && i < n; i++) {
        const wire_extent part = extent_at(c, i);
        if (fd < 0 || last.segment != part.segment || last.kind != part.kind) {
            const bodhi_place place_in = {.segment = part.segment, .kind = (int32_t)part.kind};
            io_drop(fd);
            fd = dataset_share_segment(c->dataset->dataset, &place_in);
            last = part;
        }
        ssize_t got = fd < 0 ? -1 : io_read(fd, body + at, part.size, part.offset, READ_ANY);
        put32(body + 4 * i, got < 0 ? WIRE_GONE : (uint32_t)got);
        at += got < 0 ? 0 : (size_t)got;
    }
    io_drop(fd);
    c->out.n_body += at;
    server->counters[COUNT_TAKEN_BYTES] += at - 4 * n;
    return output_end(c, WIRE_TAKE, n);
}

/* --- Attachments ------------------------------------------------------------------------------------------------- */

/* The file's name of an attachment; false if nothing may be called so. It is never a path. */
static bool attachment_name(const unsigned char *name, size_t size, char file[ATTACHMENT_NAME]) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    bool right = size >= 1 && size <= ATTACHMENT_NAME - 3;
    for (size_t i = 0; right && i < size; i++) {
        right = name[i] != '\0' && strchr(letters, name[i]) != NULL;
    }
    if (right) {
        (void)snprintf(file, ATTACHMENT_NAME, "x-%.*s", (int)size, (const char *)name);
    }
    return right;
}

/* Read a part of an attachment, its size, and which file it is: it may be replaced between parts. -1 and errno. */
static ssize_t read_attachment(int fd, uint64_t from, unsigned char *part, uint64_t *size, uint64_t *which) {
    struct stat status;
    if (fd < 0 || bodhi_io.fstat(fd, &status) != 0) {
        return -1;
    }
    if (!S_ISREG(status.st_mode)) {
        errno = ENOENT;
        return -1;
    }
    *size = (uint64_t)status.st_size;
    *which = (uint64_t)status.st_ino << 32 ^ (uint64_t)status.st_mtim.tv_sec << 30 ^ (uint64_t)status.st_mtim.tv_nsec;
    ssize_t got = io_read(fd, part, PART_BYTES, from, READ_ANY);
    if (got == PART_BYTES) {
        (void)posix_fadvise(fd, (off_t)from + PART_BYTES, (off_t)8 * PART_BYTES,
                            POSIX_FADV_WILLNEED); /* for the next ones */
    }
    return got;
}

bool answer_attachment(connection *c) {
    char file[ATTACHMENT_NAME];
    const wire_question question = question_of(c);
    uint64_t size = UINT64_MAX;
    uint64_t which = 0;
    if (question.first > INT64_MAX ||
        !attachment_name(c->in.body + sizeof question, c->in.size - sizeof question, file)) {
        return output_error(c, BODHI_ERROR_ARGUMENT, "no attachment may have this name");
    }
    unsigned char *body = output_room(c, 16 + PART_BYTES);
    if (body == NULL) {
        return output_end(c, WIRE_FETCH, 1);
    }
    int fd = io_open(c->dataset->dataset->fd, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    ssize_t got = read_attachment(fd, question.first, body + 16, &size, &which);
    int error = errno;
    io_drop(fd);
    if (got < 0 && error != ENOENT && error != ELOOP) {
        return output_error(c, bodhi_fail_system(error, "read", file), bodhi_message());
    }
    put64(body, size);
    put64(body + 8, which);
    c->out.n_body += 16 + (got < 0 ? 0 : (size_t)got);
    return output_end(c, WIRE_FETCH, 1);
}

/* --- Numbers ----------------------------------------------------------------------------------------------------- */

bool answer_runs(connection *c) {
    const wire_question question = question_of(c);
    int64_t last = question.last > INT64_MAX ? INT64_MAX : (int64_t)question.last;
    bodhi_run *runs = malloc(WIRE_MAX_RUNS * sizeof *runs);
    int64_t n = 0;
    int status = runs == NULL ? bodhi_fail_memory()
                              : bodhi_dataset_runs(c->dataset->dataset, (int)question.kind, (int64_t)question.first,
                                                   last, runs, WIRE_MAX_RUNS, &n);
    size_t count = n < 0 ? WIRE_MAX_RUNS : (size_t)n;
    output_add(c, runs, status == BODHI_OK ? count * sizeof *runs : 0);
    free(runs);
    return status == BODHI_OK ? output_end(c, WIRE_RUNS, count) : output_error(c, status, bodhi_message());
}

/* --- Surveys ------------------------------------------------------------------------------------------------------ */

/* The first directory behind `after`, in the order of names, that begins with `prefix`; false: there is none. */
static bool next_directory(int store, const char *prefix, const char *after, char chosen[DIRECTORY_NAME]) {
    DIR *entries = io_list(store, ".");
    const struct dirent *entry;
    bool any = false;
    while (entries != NULL && (entry = readdir(entries)) != NULL) { // NOLINT(concurrency-mt-unsafe): a stream of ours
        if (is_dataset(entry->d_name) && strncmp(entry->d_name, prefix, strlen(prefix)) == 0 &&
            strcmp(entry->d_name, after) > 0 && (!any || strcmp(entry->d_name, chosen) < 0)) {
            memcpy(chosen, entry->d_name, DIRECTORY_NAME);
            any = true;
        }
    }
    if (entries != NULL) {
        (void)closedir(entries);
    }
    return any;
}

/* Add a file of the dataset if it has no more bytes than `most`; returns how many, or TOO_LONG: to be fetched. */
static uint32_t add_file(connection *c, const bodhi_dataset *dataset, const char *file, size_t most) {
    int fd = io_open(dataset->fd, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    unsigned char *content = output_room(c, most + 1);
    ssize_t got = fd < 0 || content == NULL ? 0 : io_read(fd, content, most + 1, 0, READ_ANY);
    bool fits = got <= (ssize_t)most;
    size_t size = got < 0 || !fits ? 0 : (size_t)got;
    c->out.n_body += size;
    io_drop(fd);
    return fits ? (uint32_t)size : TOO_LONG;
}

/* Add the frames of one kind as runs; returns how many, or -1 where they are too many, or lie in none. */
static int32_t add_runs(connection *c, bodhi_dataset *dataset, int kind) {
    bodhi_run runs[MOST_ROWS];
    int64_t count = 0;
    if (bodhi_dataset_runs(dataset, kind, 0, INT64_MAX, runs, MOST_ROWS, &count) != BODHI_OK) {
        return -1;
    }
    output_add(c, runs, count < 0 ? 0 : (size_t)count * sizeof *runs);
    return (int32_t)count;
}

/* Add a dataset to the answer, unless it has just gone. */
static void describe(connection *c, bodhi_dataset *dataset) {
    bodhi_facts facts;
    unsigned char head[WIRE_DATASET_HEAD] = {0};
    if (bodhi_dataset_query(dataset, &facts) != BODHI_OK) {
        return;
    }
    size_t at = c->out.n_body;
    output_add(c, head, sizeof head);
    output_add(c, dataset->directory, WIRE_DIRECTORY);
    output_add(c, dataset->name, strlen(dataset->name));
    output_add(c, dataset->generation, dataset->generation_bytes);
    put32(head, (uint32_t)strlen(dataset->name));
    put32(head + 4, (uint32_t)dataset->generation_bytes);
    put32(head + 8, add_file(c, dataset, "x-origin.json", MOST_STAMP));
    put32(head + 12, add_file(c, dataset, "x-author", MOST_NOTE));
    put32(head + 16, add_file(c, dataset, "x-copies", MOST_NOTE));
    put32(head + 20, (uint32_t)add_runs(c, dataset, BODHI_NATIVE));
    put32(head + 24, (uint32_t)add_runs(c, dataset, BODHI_ALIEN));
    put64(head + 32, (uint64_t)facts.native);
    put64(head + 40, (uint64_t)facts.alien);
    put64(head + 48, (uint64_t)facts.bytes);
    put64(head + 56, (uint64_t)facts.last_used);
    if (!c->out.failed) {
        memcpy(wire_body(&c->out) + at, head, sizeof head);
    }
}

static void describe_directory(bodhi_server *server, connection *c, const char *directory) {
    bodhi_dataset *opened = NULL;
    for (open_dataset *d = server->datasets; d != NULL; d = d->next) {
        if (strcmp(d->dataset->directory, directory) == 0 && dataset_keep_up(d->dataset) == BODHI_OK) {
            describe(c, d->dataset);
            return;
        }
    }
    if (bodhi_dataset_open_directory(server->looked_at, directory, &opened) == BODHI_OK) {
        describe(c, opened);
        bodhi_dataset_close(opened);
    }
}

/* As many datasets as a message takes and as can be looked at in a moment, but one at least. */
bool answer_survey(bodhi_server *server, connection *c) {
    char after[DIRECTORY_NAME] = "";
    char prefix[DIRECTORY_NAME] = "";
    char next[DIRECTORY_NAME];
    const wire_question question = question_of(c);
    if (question.first != 0 || question.last != 0) {
        (void)snprintf(after, sizeof after, "%016" PRIx64 "-%016" PRIx64, question.first, question.last);
    }
    if (c->in.size > sizeof question) {
        uint64_t hash = hash_bytes(c->in.body + sizeof question, c->in.size - sizeof question);
        (void)snprintf(prefix, sizeof prefix, "%016" PRIx64 "-", hash);
    }
    (void)output_room(c, 0);
    size_t fits = c->out.n_body;
    size_t n = 0;
    int64_t until = now_ms() + SURVEY_MS;
    while (!c->out.failed && (n == 0 || now_ms() < until) && next_directory(server->store->fd, prefix, after, next)) {
        describe_directory(server, c, next);
        if (c->out.n_body > WIRE_MAX_PART) {
            break;
        }
        n += c->out.n_body > fits;
        fits = c->out.n_body;
        memcpy(after, next, sizeof after);
    }
    c->out.n_body = fits;
    return output_end(c, WIRE_SURVEY, n);
}
