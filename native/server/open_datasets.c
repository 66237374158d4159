/* The datasets that a server has open; see server.h. */
#include "server/server.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "store/dataset.h"

enum { MAX_IDLE = 8 }; /* datasets that stay open without a user: opening one with millions of frames takes its time */

static void close_dataset(open_dataset *d) {
    ingest_free(d->ingest);
    bodhi_dataset_close(d->dataset);
    free(d);
}

/* Whether nobody uses the dataset, and nothing of what was pushed to it is still to be written. */
static bool is_idle(const open_dataset *d) {
    return d->users == 0 && d->awaited == 0;
}

void datasets_close_idle(bodhi_server *server) {
    int idle = 0;
    for (open_dataset **at = &server->datasets; *at != NULL;) {
        open_dataset *d = *at;
        if (is_idle(d) && ++idle > MAX_IDLE) {
            *at = d->next;
            close_dataset(d);
        } else {
            at = &d->next;
        }
    }
}

static bool is_named(const open_dataset *d, const wire_open *open) {
    const bodhi_dataset *dataset = d->dataset;
    return strcmp(dataset->name, open->name) == 0 && dataset->generation_bytes == open->generation_bytes &&
           memcmp(dataset->generation, open->generation, open->generation_bytes) == 0;
}

static int open_new(bodhi_server *server, const wire_open *open, open_dataset **out) {
    open_dataset *d = calloc(1, sizeof *d);
    if (d == NULL) {
        return bodhi_fail_memory();
    }
    int status = bodhi_dataset_open(server->store, open->name, open->generation, open->generation_bytes,
                                    (open->flags & WIRE_PUSHES) != 0 ? BODHI_CREATE : 0, &d->dataset);
    if (status != BODHI_OK) {
        free(d);
        return status;
    }
    d->next = server->datasets;
    server->datasets = d;
    *out = d;
    return BODHI_OK;
}

int datasets_acquire(bodhi_server *server, wire_open *open, open_dataset **out) {
    bool pushes = (open->flags & WIRE_PUSHES) != 0;
    int status = pushes ? store_refuse_staged(server->store, open->name) : BODHI_OK; /* before a directory is made */
    if (status == BODHI_OK && pushes) {
        status = store_number_launch(server->store, open->name, open->generation, open->generation_bytes);
    }
    open_dataset *d = server->datasets;
    while (d != NULL && !is_named(d, open)) {
        d = d->next;
    }
    if (status == BODHI_OK) {
        status = d == NULL ? open_new(server, open, &d) : dataset_reopen(d->dataset, pushes);
    }
    if (status != BODHI_OK || d == NULL) {
        return status;
    }
    if (pushes && open->identity[0] != '\0') {
        status = dataset_claim(d->dataset, open->identity, is_idle(d));
    }
    if (status == BODHI_OK) {
        d->users++;
        dataset_use(d->dataset);
        *out = d;
    }
    return status;
}

void datasets_release(bodhi_server *server, open_dataset *d) {
    if (--d->users > 0) {
        return;
    }
    datasets_flush(d);
    task *release = d->ingest == NULL ? NULL : task_new(TASK_RELEASE, 0, false);
    if (release != NULL) {
        datasets_submit(d, release); /* the segment is then free for others, or for eviction */
    }
    datasets_close_idle(server);
}

void datasets_close_all(bodhi_server *server) {
    while (server->datasets != NULL) {
        open_dataset *d = server->datasets;
        server->datasets = d->next;
        close_dataset(d);
    }
}

void datasets_submit(open_dataset *d, task *t) {
    d->awaited++;
    ingest_submit(d->ingest, t);
}

void datasets_flush(open_dataset *d) {
    task *t = d->unflushed_since == 0 ? NULL : task_new(TASK_FLUSH, 0, d->durable);
    if (t != NULL) { /* else it is tried again at the next tick */
        d->unflushed_since = 0;
        d->n_unflushed = 0;
        d->durable = false;
        datasets_submit(d, t);
    }
}
