/* Pushing slices straight to a store of this machine; see pusher.h. */
#include "net/pusher.h"

#include <errno.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/status.h"
#include "base/stream.h"

enum { FLUSH_MS = 1000 };

/* A trajectory may be staged under the name at the same moment: whoever comes second is to find the first one. */
static int open_locked(bodhi_pusher *p) {
    enum { TRIES = 60 }; /* of a second */
    direct_store *d = &p->direct;
    wire_open *open = &p->open;
    int lock = store_lock(d->store);
    for (int tried = 1; lock < 0 && errno == EWOULDBLOCK && tried < TRIES; tried++) {
        lock = store_lock(d->store);
    }
    if (lock < 0) {
        return bodhi_fail_system(errno, "lock of the store", d->store->path);
    }
    int status = store_refuse_staged(d->store, open->name);
    if (status == BODHI_OK) {
        status = store_number_launch(d->store, open->name, open->generation, open->generation_bytes);
    }
    if (status == BODHI_OK) {
        status = bodhi_dataset_open(d->store, open->name, open->generation, open->generation_bytes, BODHI_CREATE,
                                    &d->dataset);
    }
    if (status == BODHI_OK && open->identity[0] != '\0') {
        status = dataset_claim(d->dataset, open->identity, false);
    }
    io_drop(lock);
    return status;
}

int direct_open(bodhi_pusher *p, const bodhi_slice_options *slices) {
    direct_store *d = &p->direct;
    bool durable = p->options.durable != 0;
    d->flushed_at = now_ms();
    int status = bodhi_open(slices->store, BODHI_CREATE, &d->store);
    if (status == BODHI_OK) {
        bodhi_store_set_quota(d->store, slices->quota);
        status = open_locked(p);
    }
    status = status == BODHI_OK ? bodhi_writer_open(d->dataset, BODHI_NATIVE, NULL, &d->writer) : status;
    if (status == BODHI_OK) {
        d->writer->durable = durable;
        status = writer_begin_streaming(d->writer, durable);
    }
    if (status != BODHI_OK) {
        direct_close(p);
    }
    return status;
}

/* --- Flushing: the writer's stream syncs, while the next batch comes ---------------------------------------------- */

static void run_sync(void *argument) {
    direct_store *d = argument;
    d->synced = sync_listed(&d->list);
}

/* Wait for the sync that is under way, and make what it was for visible. */
static int end_sync(bodhi_pusher *p) {
    direct_store *d = &p->direct;
    if (!d->syncing) {
        return BODHI_OK;
    }
    stream_await(d->writer->stream, d->ticket);
    d->syncing = false;
    int status = d->synced ? writer_settle_stream(d->writer) : writer_end_flush(d->writer, false);
    bool whole = status == BODHI_OK && !d->writer->undone;
    if (whole) {
        status = writer_end_flush(d->writer, true);
        whole = status == BODHI_OK;
    }
    p->facts.acknowledged += whole ? d->n_syncing : 0;
    /* Those behind a batch that is undone may have been undone with it. */
    p->facts.in_flight = whole ? p->facts.in_flight - d->n_syncing : 0;
    return status;
}

/* Flush now, and wait for it: where nothing is to be synced, or frames were there that must be. */
static int flush_now(bodhi_pusher *p) {
    int status = bodhi_flush(p->direct.writer, p->options.durable);
    p->facts.acknowledged += status == BODHI_OK ? p->facts.in_flight : 0;
    p->facts.in_flight = 0;
    return status;
}

/* Have what was pushed synced; end_sync() has the rest. */
static int begin_sync(bodhi_pusher *p) {
    direct_store *d = &p->direct;
    int status = end_sync(p);
    d->unflushed_bytes = 0;
    d->flushed_at = now_ms();
    if (status != BODHI_OK || !p->options.durable || d->writer->n_existing > 0) {
        return status != BODHI_OK ? status : flush_now(p);
    }
    status = writer_begin_flush(d->writer, &d->list);
    if (status != BODHI_OK) {
        (void)sync_listed(&d->list);
        p->facts.in_flight = 0;
        return status;
    }
    d->n_syncing = p->facts.in_flight;
    d->syncing = true;
    d->ticket = stream_call(d->writer->stream, run_sync, d);
    return BODHI_OK;
}

int direct_push(bodhi_pusher *p, const bodhi_frame *frame) {
    direct_store *d = &p->direct;
    int status = d->syncing && stream_has_called(d->writer->stream, d->ticket) ? end_sync(p) : BODHI_OK;
    status = status == BODHI_OK ? bodhi_append(d->writer, frame) : status;
    if (status < 0) {
        if (status != BODHI_ERROR_ARGUMENT && status != BODHI_ERROR_CONFLICT) {
            int ended = end_sync(p); /* so that what is acknowledged is told once for all */
            (void)ended;
            p->facts.in_flight = 0; /* the others may have been undone */
        }
        return status;
    }
    p->facts.in_flight++;
    d->unflushed_bytes += frame->n_atoms * 12;
    bool due = d->unflushed_bytes >= p->options.batch_bytes || now_ms() - d->flushed_at >= FLUSH_MS;
    return due ? begin_sync(p) : BODHI_OK;
}

int direct_flush(bodhi_pusher *p) {
    int status = begin_sync(p);
    int ended = end_sync(p);
    return status != BODHI_OK ? status : ended;
}

void direct_close(bodhi_pusher *p) {
    int status = end_sync(p);
    (void)status; /* what was not acknowledged is nobody's matter */
    status = bodhi_writer_close(p->direct.writer);
    (void)status;
    bodhi_dataset_close(p->direct.dataset);
    bodhi_close(p->direct.store);
    p->direct = (direct_store){0};
}
