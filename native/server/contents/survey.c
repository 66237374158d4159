/* What a server says of its store as a whole. Looking at a dataset is no use of it. */
#include "server/server.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/status.h"
#include "server/connection.h"
#include "store/dataset.h"

enum {
    MOST_ROWS = 256,        /* runs of frames that are told of a dataset, of each kind */
    MOST_STAMP = 128 << 10, /* bytes of what says of its origin */
    MOST_NOTE = 4096,       /* bytes of other notes */
    SURVEY_MS = 50,         /* the loop does nothing else meanwhile */
    NAME = WIRE_DIRECTORY
};
#define TOO_LONG UINT32_MAX
_Static_assert(sizeof(bodhi_run) == 24, "runs lie in messages so");

/* --- Directories ------------------------------------------------------------------------------------------------- */

static bool is_directory_name(const char *name) {
    return strlen(name) == NAME && strspn(name, "0123456789abcdef-") == NAME;
}

/* The first directory behind `after`, in the order of names, that begins with `prefix`; false: there is none. */
static bool next_directory(int store, const char *prefix, const char *after, char chosen[DIRECTORY_NAME]) {
    DIR *entries = io_list(store, ".");
    const struct dirent *entry;
    bool any = false;
    while (entries != NULL && (entry = readdir(entries)) != NULL) { // NOLINT(concurrency-mt-unsafe): a stream of ours
        if (is_directory_name(entry->d_name) && strncmp(entry->d_name, prefix, strlen(prefix)) == 0 &&
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

/* --- One dataset ------------------------------------------------------------------------------------------------- */

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
    output_add(c, dataset->directory, NAME);
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

/* --- Answers ----------------------------------------------------------------------------------------------------- */

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
