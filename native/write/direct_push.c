/* Pushing straight to a store; see direct_push.h. */
#include "write/direct_push.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/status.h"
#include "base/stream.h"
#include "write/writer.h"

enum { FLUSH_MS = 1000 };

struct straight {
    bodhi_store *store;
    bodhi_dataset *dataset;
    bodhi_writer *writer;
    int durable;
    int64_t batch_bytes, unflushed_bytes, flushed_at;
    bodhi_push_facts *facts;
    bool syncing; /* the stream's thread syncs `list`, which has the first `n_syncing` frames of those in flight */
    uint64_t ticket;
    sync_list list;
    int64_t n_syncing;
    bool synced;
};

/* A trajectory may be staged under the name at the same moment: whoever comes second is to find the first one. */
static int open_locked(straight *s, const straight_options *options) {
    enum { TRIES = 60 }; /* of a second */
    int lock = store_lock(s->store);
    for (int tried = 1; lock < 0 && errno == EWOULDBLOCK && tried < TRIES; tried++) {
        lock = store_lock(s->store);
    }
    if (lock < 0) {
        return bodhi_fail_system(errno, "lock of the store", options->store);
    }
    int status = store_refuse_staged(s->store, options->dataset);
    if (status == BODHI_OK) {
        status = store_number_launch(s->store, options->dataset, options->generation, options->generation_bytes);
    }
    if (status == BODHI_OK) {
        status = bodhi_dataset_open(s->store, options->dataset, options->generation, options->generation_bytes,
                                    BODHI_CREATE, &s->dataset);
    }
    if (status == BODHI_OK && options->identity[0] != '\0') {
        status = dataset_claim(s->dataset, options->identity, false);
    }
    io_drop(lock);
    return status;
}

int straight_open(const straight_options *options, straight **opened) {
    straight *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return bodhi_fail_memory();
    }
    s->durable = options->durable;
    s->batch_bytes = options->batch_bytes;
    s->facts = options->facts;
    s->flushed_at = now_ms();
    int status = bodhi_open(options->store, BODHI_CREATE, &s->store);
    if (status == BODHI_OK) {
        bodhi_store_set_quota(s->store, options->quota);
        status = open_locked(s, options);
    }
    status = status == BODHI_OK ? bodhi_writer_open(s->dataset, BODHI_NATIVE, NULL, &s->writer) : status;
    if (status == BODHI_OK) {
        s->writer->durable = s->durable != 0;
        status = writer_begin_streaming(s->writer, s->durable != 0);
    }
    if (status != BODHI_OK) {
        straight_close(s);
        return status;
    }
    *opened = s;
    return BODHI_OK;
}

/* --- Flushing: the writer's stream syncs, while the next batch comes ---------------------------------------------- */

static void run_sync(void *argument) {
    straight *s = argument;
    s->synced = sync_listed(&s->list);
}

/* Wait for the sync that is under way, and make what it was for visible. */
static int end_sync(straight *s) {
    if (!s->syncing) {
        return BODHI_OK;
    }
    stream_await(s->writer->stream, s->ticket);
    s->syncing = false;
    int status = s->synced ? writer_settle_stream(s->writer) : writer_end_flush(s->writer, false);
    bool whole = status == BODHI_OK && !s->writer->undone;
    if (whole) {
        status = writer_end_flush(s->writer, true);
        whole = status == BODHI_OK;
    }
    s->facts->acknowledged += whole ? s->n_syncing : 0;
    /* Those behind a batch that is undone may have been undone with it. */
    s->facts->in_flight = whole ? s->facts->in_flight - s->n_syncing : 0;
    return status;
}

/* Flush now, and wait for it: where nothing is to be synced, or frames were there that must be. */
static int flush_now(straight *s) {
    int status = bodhi_flush(s->writer, s->durable);
    s->facts->acknowledged += status == BODHI_OK ? s->facts->in_flight : 0;
    s->facts->in_flight = 0;
    return status;
}

/* Have what was pushed synced; end_sync() has the rest. */
static int begin_sync(straight *s) {
    int status = end_sync(s);
    s->unflushed_bytes = 0;
    s->flushed_at = now_ms();
    if (status != BODHI_OK || !s->durable || s->writer->n_existing > 0) {
        return status != BODHI_OK ? status : flush_now(s);
    }
    status = writer_begin_flush(s->writer, &s->list);
    if (status != BODHI_OK) {
        (void)sync_listed(&s->list);
        s->facts->in_flight = 0;
        return status;
    }
    s->n_syncing = s->facts->in_flight;
    s->syncing = true;
    s->ticket = stream_call(s->writer->stream, run_sync, s);
    return BODHI_OK;
}

/* --- Pushing ------------------------------------------------------------------------------------------------------ */

int straight_push(straight *s, const bodhi_frame *frame) {
    int status = s->syncing && stream_has_called(s->writer->stream, s->ticket) ? end_sync(s) : BODHI_OK;
    status = status == BODHI_OK ? bodhi_append(s->writer, frame) : status;
    if (status < 0) {
        if (status != BODHI_ERROR_ARGUMENT && status != BODHI_ERROR_CONFLICT) {
            int ended = end_sync(s); /* so that what is acknowledged is told once for all */
            (void)ended;
            s->facts->in_flight = 0; /* the others may have been undone */
        }
        return status;
    }
    s->facts->in_flight++;
    s->unflushed_bytes += frame->n_atoms * 12;
    bool due = s->unflushed_bytes >= s->batch_bytes || now_ms() - s->flushed_at >= FLUSH_MS;
    return due ? begin_sync(s) : BODHI_OK;
}

int straight_flush(straight *s) {
    int status = begin_sync(s);
    int ended = end_sync(s);
    return status != BODHI_OK ? status : ended;
}

void straight_close(straight *s) {
    if (s != NULL) {
        int status = end_sync(s);
        (void)status; /* what was not acknowledged is nobody's matter */
        status = bodhi_writer_close(s->writer);
        (void)status;
        bodhi_dataset_close(s->dataset);
        bodhi_close(s->store);
        free(s);
    }
}
