/* Sealing segments; see sealing.h. Nothing here is synced: a table that a power cut has torn is read as none. */
#include "write/sealing.h"

#include <stdlib.h>

#include "base/io.h"
#include "base/status.h"
#include "segments/frame_table.h"

static bool is_worth(const segment *s, uint64_t least) {
    return !s->gone && !s->refused && !s->frozen && !s->incomplete && !s->tombstones && s->live > 0 &&
           s->live >= s->sealed + least && s->index_covered == s->covered;
}

/* Write what is known of a segment in a table of at most `most` bytes, and have that in place of what is in memory. */
static void write_table(bodhi_dataset *dataset, uint32_t ordinal, uint64_t most, room *r) {
    segment *s = dataset->segments[ordinal];
    table *t = &dataset->tables[s->kind];
    size_t n;
    place *places = table_collect(t, ordinal, &n);
    bool fits = places != NULL && sealed_bytes(n) <= most;
    sealed_run run = {0};
    if (fits) {
        room_take(r, sealed_bytes(n));
        (void)(sealed_write(dataset->fd, s, places, n) && sealed_open(dataset->fd, s, ordinal, s->covered, &run));
        room_settle(r, sealed_bytes(n));
    }
    free(places);
    if (run.mapping != NULL && table_add_run(t, &run)) {
        table_remove(t, ordinal);
        s->live = run.n;
    } else {
        run_close(&run);
    }
}

void seal_appended(bodhi_dataset *dataset, uint32_t ordinal, uint64_t least, room *r) {
    const segment *s = dataset->segments[ordinal];
    pthread_mutex_lock(&dataset->mutex);
    bool worth = !is_read_only(dataset) && is_worth(s, least) && dataset_load(dataset, ordinal, false) == 0 &&
                 is_worth(s, least);
    int fd = worth ? dataset_share(dataset, ordinal) : -1; /* by which it stays */
    uint64_t bytes = sealed_bytes(s->live);
    pthread_mutex_unlock(&dataset->mutex);
    if (fd >= 0 && room_ask(r, dataset, bytes) == BODHI_OK) {
        pthread_mutex_lock(&dataset->mutex);
        if (is_worth(s, least)) {
            write_table(dataset, ordinal, bytes, r);
        }
        pthread_mutex_unlock(&dataset->mutex);
    }
    io_drop(fd);
}

int bodhi_dataset_seal(bodhi_dataset *dataset, int64_t least) {
    if (dataset == NULL || least < 0 || is_read_only(dataset)) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "a dataset open for writing and a number of frames must be given");
    }
    room r = {.fd = -1};
    pthread_mutex_lock(&dataset->mutex);
    size_t n = dataset->n_segments;
    pthread_mutex_unlock(&dataset->mutex);
    for (uint32_t i = 0; i < n; i++) {
        seal_appended(dataset, i, least == 0 ? SEAL_LEAST : (uint64_t)least, &r);
    }
    room_close(&r);
    return BODHI_OK;
}
