/* The datasets of slices, by their launch, and pushing straight to a store of this machine; see pusher.h.
 *
 * The slices of one rank in one launch are a dataset of their own, in which a slice is a frame with the atoms that the
 * rank has: what holds for frames holds for them, and those of two launches never meet in a frame. */
#include "net/pusher.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/status.h"
#include "base/threads.h"
#include "segments/record.h"

enum { FLUSH_MS = 1000, MOST = 1024, HEAD = 128 };

/* --- Launches ----------------------------------------------------------------------------------------------------- */

uint64_t mark_of_name(const char *name) {
    uint64_t hash = hash_bytes(name, strlen(name));
    return *name == '\0' ? 0 : hash == 0 ? 1 : hash;
}

static bool add_variable(char out[MOST], const char *name) {
    const char *value = getenv(name);
    bool is_set = value != NULL && *value != '\0';
    size_t n = strlen(out);
    if (is_set) {
        (void)snprintf(out + n, MOST - n, "%s=%s\n", name, value);
    }
    return is_set;
}

/* What one launcher says is enough; of another, which has started it, processes of some machines may know less. */
uint64_t mark_of_launcher(void) {
    static const char *const alone[] = {"PMIX_NAMESPACE", "PALS_APID", "FLUX_JOB_ID"};
    static const char *const steps[] = {"SLURM_STEP_ID", "SLURM_RESTART_COUNT", "PMI_JOBID"};
    char facts[MOST] = "";
    bool enough = false;
    for (size_t i = 0; i < sizeof alone / sizeof *alone && !enough; i++) {
        enough = add_variable(facts, alone[i]);
    }
    if (strstr(facts, "slurm.pmix.") != NULL) { /* job and step, which a job that was queued again has once more */
        (void)add_variable(facts, "SLURM_RESTART_COUNT");
    }
    if (!enough && !add_variable(facts, "SLURM_HET_JOB_ID")) { /* its components have numbers of their own */
        (void)add_variable(facts, "SLURM_JOB_ID");
    }
    for (size_t i = 0; i < sizeof steps / sizeof *steps && !enough; i++) {
        (void)add_variable(facts, steps[i]);
    }
    return mark_of_name(facts);
}

int launch_name_slices(bodhi_pusher *p, const bodhi_slice_options *slices) {
    char head[HEAD];
    uint64_t mark = slices->launch == NULL ? mark_of_launcher() : mark_of_name(slices->launch);
    size_t name = strlen(p->name);
    size_t bytes = p->open.generation_bytes;
    int n = snprintf(head, sizeof head,
                     "slices of rank %" PRId64 ", %" PRId64 " atoms, launch 0000000000, mark %016" PRIx64 "\n",
                     slices->rank, slices->n_atoms, mark); /* the store numbers launches */
    if (name + sizeof BODHI_SLICES_SUFFIX > sizeof p->name || n < 0 || n >= HEAD ||
        bytes > sizeof p->generation - (size_t)n) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "the dataset's name or generation is too long for slices");
    }
    memcpy(p->name + name, BODHI_SLICES_SUFFIX, sizeof BODHI_SLICES_SUFFIX);
    memmove(p->generation + n, p->generation, bytes);
    memcpy(p->generation, head, (size_t)n);
    p->open.generation_bytes = bytes + (size_t)n;
    return BODHI_OK;
}

/* --- Straight to a store ------------------------------------------------------------------------------------------ */

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
    (void)status; /* a failure concerns frames that were not acknowledged */
    bodhi_dataset_close(p->direct.dataset);
    bodhi_close(p->direct.store);
    p->direct = (direct_store){0};
}
