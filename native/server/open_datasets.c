/* The datasets that a server holds open, and where their frames lie; see answer.h. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/status.h"
#include "server/answer.h"
#include "store/dataset.h"

enum { MAX_IDLE = 8 }; /* datasets held open without a user: opening one with millions of frames takes its time */

/* --- Opening ----------------------------------------------------------------------------------------------------- */

static void close_held(held *h) {
    if (h->keeper != NULL) {
        keeper_finish(h->keeper);
        keeper_free(h->keeper);
    }
    bodhi_dataset_close(h->dataset);
    free(h);
}

void held_close_idle(bodhi_server *server) {
    int idle = 0;
    for (held **at = &server->datasets; *at != NULL;) {
        held *h = *at;
        if (h->users == 0 && h->awaited == 0 && h->since == 0 && ++idle > MAX_IDLE) {
            *at = h->next;
            close_held(h);
        } else {
            at = &h->next;
        }
    }
}

static bool is_named(const held *h, const wire_open *open) {
    const bodhi_dataset *d = h->dataset;
    return strcmp(d->name, open->name) == 0 && d->generation_bytes == open->generation_bytes &&
           memcmp(d->generation, open->generation, open->generation_bytes) == 0;
}

int held_open(bodhi_server *server, const wire_open *open, held **out) {
    held *h = server->datasets;
    while (h != NULL && !is_named(h, open)) {
        h = h->next;
    }
    if (h != NULL) {
        h->users++;
        *out = h;
        return bodhi_dataset_refresh(h->dataset);
    }
    h = calloc(1, sizeof *h);
    if (h == NULL) {
        return bodhi_fail_memory();
    }
    int status = bodhi_dataset_open(server->store, open->name, open->generation, open->generation_bytes,
                                    (open->flags & WIRE_PUSHES) != 0 ? BODHI_CREATE : 0, &h->dataset);
    if (status != BODHI_OK) {
        free(h);
        return status;
    }
    h->users = 1;
    h->next = server->datasets;
    server->datasets = h;
    *out = h;
    return BODHI_OK;
}

void held_release(bodhi_server *server, held *h) {
    if (--h->users > 0) {
        return;
    }
    held_flush(h);
    task *release = h->keeper == NULL ? NULL : keeper_task(TASK_RELEASE, 0, false);
    if (release != NULL) {
        held_give(h, release); /* the segment is then free for others, or for eviction */
    }
    held_close_idle(server);
}

void held_close_all(bodhi_server *server) {
    while (server->datasets != NULL) {
        held *h = server->datasets;
        server->datasets = h->next;
        close_held(h);
    }
}

/* --- Writing ----------------------------------------------------------------------------------------------------- */

void held_give(held *h, task *t) {
    h->awaited += t->verb != TASK_FRAME;
    keeper_give(h->keeper, t);
}

void held_flush(held *h) {
    task *t = h->since == 0 ? NULL : keeper_task(TASK_FLUSH, 0, h->durable);
    if (t != NULL) { /* else it is tried again at the next tick */
        h->since = 0;
        h->n_pushed = 0;
        h->durable = false;
        held_give(h, t);
    }
}

/* --- Asking ------------------------------------------------------------------------------------------------------ */

int open_segment(const bodhi_dataset *dataset, const bodhi_place *at) {
    segment named = {.key = dataset->key};
    segment_name(&named, (unsigned)at->kind, at->segment);
    int fd = io_open(dataset->fd, named.name, O_RDONLY);
    struct stat status;
    /* The lock keeps the segment from eviction for as long as somebody, whoever got the descriptor, holds it open. */
    if (fd >= 0 &&
        (io_lock(fd, LOCK_READERS, false) == LOCK_HELD || (bodhi_io.fstat(fd, &status) == 0 && status.st_nlink == 0))) {
        (void)io_close(fd);
        fd = -1;
    }
    return fd;
}

void held_say(const bodhi_place *places, size_t n_known, size_t n, unsigned char *answers) {
    memset(answers, 0, n);
    for (size_t i = 0; i < n_known; i++) {
        answers[i] = places[i].found == 0 ? 0 : (unsigned char)(places[i].kind == BODHI_NATIVE ? 1 : 2);
    }
}

/* The descriptor of the place's segment among those that are open, opened if there is room; -1 if it cannot be. */
static int descriptor_of(held *h, const bodhi_place *at, uint64_t *segments, int *descriptors, int capacity,
                         int *n_descriptors) {
    for (int i = *n_descriptors; i-- > 0;) {
        if (segments[i] == at->segment) {
            return i;
        }
    }
    int fd = *n_descriptors < capacity ? open_segment(h->dataset, at) : -1;
    if (fd < 0) {
        return -1;
    }
    segments[*n_descriptors] = at->segment;
    descriptors[*n_descriptors] = fd;
    return (*n_descriptors)++;
}

void held_places(held *h, const int64_t *numbers, size_t n, wire_place *places, int *descriptors, int capacity,
                 int *n_descriptors) {
    uint64_t segments[WIRE_MAX_SEGMENTS];
    *n_descriptors = 0;
    for (size_t i = 0; i < n; i++) {
        bodhi_place at = {0};
        places[i] = (wire_place){.descriptor = -1};
        if (bodhi_dataset_locate(h->dataset, &numbers[i], 1, &at) == BODHI_OK && at.found != 0) {
            places[i] = (wire_place){
                .segment = at.segment,
                .offset = (uint64_t)at.offset,
                .length = (uint64_t)at.length,
                .kind = (uint32_t)at.kind,
                .descriptor = descriptor_of(h, &at, segments, descriptors, capacity, n_descriptors),
            };
        }
    }
}
