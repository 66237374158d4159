/* The datasets that a server holds open; see answer.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"
#include "dataset.h"
#include "io.h"
#include "status.h"

enum {
    MAX_IDLE = 8,          /* datasets held open without a user: opening one with millions of frames takes its time */
    START_BYTES = 2 << 20, /* the disk begins to write while more is received */
};

/* --- Opening ----------------------------------------------------------------------------------------------------- */

static void close_writer(held *h) {
    if (bodhi_writer_close(h->writer) < 0) {
        h->since = 0; /* what it held was not acknowledged */
    }
    h->writer = NULL;
}

static void close_held(held *h) {
    close_writer(h);
    bodhi_dataset_close(h->dataset);
    free(h);
}

/* Close the idle datasets but the MAX_IDLE that were opened last. */
static void close_idle_datasets(bodhi_server *server) {
    int idle = 0;
    for (held **at = &server->datasets; *at != NULL;) {
        held *h = *at;
        if (h->users == 0 && ++idle > MAX_IDLE) {
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
    if (--h->users == 0) {
        close_writer(h); /* its segment is free for others, or for eviction */
        h->since = 0;
        h->durable = false;
        close_idle_datasets(server);
    }
}

void held_close_all(bodhi_server *server) {
    while (server->datasets != NULL) {
        held *h = server->datasets;
        server->datasets = h->next;
        close_held(h);
    }
}

/* --- Writing ----------------------------------------------------------------------------------------------------- */

int held_append(held *h, const bodhi_frame *frame, bool durable) {
    int status = h->writer != NULL ? BODHI_OK : bodhi_writer_open(h->dataset, BODHI_NATIVE, NULL, &h->writer);
    if (status == BODHI_OK) {
        status = bodhi_append(h->writer, frame);
        if (durable) {
            writer_start_writing(h->writer, START_BYTES);
        }
    }
    h->doubtful = h->doubtful || status < 0;
    return status;
}

int held_flush(held *h, bool durable) {
    int status = h->writer == NULL ? BODHI_OK : bodhi_flush(h->writer, durable);
    if (status != BODHI_OK && status != BODHI_ERROR_FULL) {
        h->sync_failed = h->sync_failed || durable;
        if (bodhi_writer_close(h->writer) < 0) {
            h->since = 0; /* poisoned, as we know */
        }
        h->writer = NULL; /* the next frame opens another */
    }
    bool doubtful = h->doubtful;
    h->doubtful = false;
    return status == BODHI_OK && doubtful ? BODHI_ERROR_FULL : status;
}

static int open_segment(const bodhi_dataset *dataset, const bodhi_place *at) {
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

/* Sync the segments in which frames lie that another writer has written, maybe not durably. */
static bool sync_segments(held *h, const bodhi_place *places, size_t n) {
    uint64_t last = 0;
    for (size_t i = 0; i < n && !h->sync_failed; i++) {
        if (places[i].found == 0 || places[i].segment == last) {
            continue;
        }
        int fd = open_segment(h->dataset, &places[i]);
        if (fd < 0 || !io_sync(fd)) {
            h->sync_failed = true; /* never tried again */
        }
        if (fd >= 0) {
            (void)io_close(fd);
        }
        last = places[i].segment;
    }
    return !h->sync_failed && io_sync(h->dataset->fd);
}

void held_judge(held *h, pushed *frames, size_t n, int flushed, bool durable) {
    uint64_t synced = 0; /* the last segment looked at */
    for (size_t i = 0; i < n; i++) {
        bodhi_place at = {0};
        int64_t number = (int64_t)frames[i].number;
        if (frames[i].status == BODHI_OK && flushed == BODHI_OK) {
            continue;
        }
        /* It was there before, or not all of the batch could be kept: look. */
        if (frames[i].status < 0 || (flushed < 0 && flushed != BODHI_ERROR_FULL) ||
            bodhi_dataset_locate(h->dataset, &number, 1, &at) != BODHI_OK || at.found == 0) {
            frames[i].status = frames[i].status < 0 ? frames[i].status : flushed < 0 ? flushed : BODHI_ERROR_SYSTEM;
        } else if (durable && at.segment != synced && !sync_segments(h, &at, 1)) {
            frames[i].status = BODHI_ERROR_SYSTEM;
        } else {
            synced = at.segment;
        }
    }
}

/* --- Asking ------------------------------------------------------------------------------------------------------ */

void held_have(held *h, const int64_t *numbers, size_t n, bool durable, unsigned char *answers) {
    memset(answers, 0, n);
    bodhi_place *places = malloc(n * sizeof *places);
    if (places != NULL && bodhi_dataset_locate(h->dataset, numbers, (int64_t)n, places) == BODHI_OK &&
        (!durable || sync_segments(h, places, n))) {
        for (size_t i = 0; i < n; i++) {
            answers[i] = places[i].found == 0 ? 0 : (unsigned char)(places[i].kind == BODHI_NATIVE ? 1 : 2);
        }
    }
    free(places);
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

void held_position(held *h, const int64_t *numbers, size_t n, uint64_t position[2]) {
    position[0] = position[1] = UINT64_MAX;
    for (size_t i = 0; i < n; i++) {
        bodhi_place at = {0};
        if (bodhi_dataset_locate(h->dataset, &numbers[i], 1, &at) == BODHI_OK && at.found != 0 &&
            (at.segment < position[0] || (at.segment == position[0] && (uint64_t)at.offset < position[1]))) {
            position[0] = at.segment;
            position[1] = (uint64_t)at.offset;
        }
    }
}
