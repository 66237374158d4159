/* Pushing slices straight to a store of this machine; see pusher.h. */
#include "net/pusher.h"

#include <errno.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/status.h"

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

/* --- Pushing ----------------------------------------------------------------------------------------------------- */

int direct_flush(bodhi_pusher *p) {
    int status = bodhi_flush(p->direct.writer, p->options.durable);
    p->facts.acknowledged += status == BODHI_OK ? p->facts.in_flight : 0;
    p->facts.in_flight = 0; /* after an error they may have been undone */
    p->direct.unflushed_bytes = 0;
    p->direct.flushed_at = now_ms();
    return status;
}

int direct_push(bodhi_pusher *p, const bodhi_frame *frame) {
    direct_store *d = &p->direct;
    int status = bodhi_append(d->writer, frame);
    if (status < 0) {
        bool alone = status == BODHI_ERROR_ARGUMENT || status == BODHI_ERROR_CONFLICT;
        p->facts.in_flight = alone ? p->facts.in_flight : 0; /* the others may have been undone */
        return status;
    }
    p->facts.in_flight++;
    d->unflushed_bytes += frame->n_atoms * 12;
    bool due = d->unflushed_bytes >= p->options.batch_bytes || now_ms() - d->flushed_at >= FLUSH_MS;
    return due ? direct_flush(p) : BODHI_OK;
}

void direct_close(bodhi_pusher *p) {
    int status = bodhi_writer_close(p->direct.writer);
    (void)status; /* what was not acknowledged is nobody's matter */
    bodhi_dataset_close(p->direct.dataset);
    bodhi_close(p->direct.store);
    p->direct = (direct_store){0};
}
