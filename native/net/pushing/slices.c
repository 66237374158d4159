/* Pushing slices: some atoms of a frame, which they name; straight to the store of this node where that is allowed. The
 * public functions are in bodhi.h.
 *
 * The slices of one rank in one launch are a dataset of their own, in which a slice is a frame with the atoms that the
 * rank has: what holds for frames holds for them, and those of two launches never meet in a frame. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "codec/ids.h"
#include "net/pushing/pusher.h"

enum { MAX_NAME = 4096, MOST_HEAD = 128 };
#define DEFAULT_BATCH_BYTES (INT64_C(16) << 20)

/* --- Opening ----------------------------------------------------------------------------------------------------- */

/* The dataset in which the slices of a rank lie. */
typedef struct {
    char name[MAX_NAME + 1];
    unsigned char generation[MAX_NAME];
    size_t generation_bytes;
} slices_of;

static int name_slices(slices_of *names, const char *dataset, const void *generation, size_t generation_bytes,
                       const bodhi_slice_options *slices) {
    int named = snprintf(names->name, sizeof names->name, "%s" BODHI_SLICES_SUFFIX, dataset);
    uint64_t mark = slices->launch == NULL ? mark_of_launcher() : mark_of_name(slices->launch);
    int n = snprintf((char *)names->generation, MOST_HEAD,
                     "slices of rank %" PRId64 ", %" PRId64 " atoms, launch 0000000000, mark %016" PRIx64 "\n",
                     slices->rank, slices->n_atoms, mark); /* the store numbers launches */
    if (named < 0 || named > MAX_NAME || n < 0 || n >= MOST_HEAD ||
        generation_bytes > sizeof names->generation - (size_t)n) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "the dataset's name or generation is too long for slices");
    }
    if (generation_bytes > 0) {
        memcpy(names->generation + n, generation, generation_bytes);
    }
    names->generation_bytes = (size_t)n + generation_bytes;
    return BODHI_OK;
}

static int open_straight(slices_of *names, const char *dataset, const bodhi_push_options *options,
                         const bodhi_slice_options *slices, bodhi_pusher **pusher) {
    bodhi_pusher *p = pusher_new();
    if (p == NULL) {
        return bodhi_fail_memory();
    }
    int status = pusher_set_identity(p, options->identity);
    straight_options to = {.store = slices->store,
                           .quota = slices->quota,
                           .origin = dataset,
                           .dataset = names->name,
                           .generation = names->generation,
                           .generation_bytes = names->generation_bytes,
                           .identity = p->open.identity,
                           .durable = options->durable,
                           .batch_bytes = options->batch_bytes > 0 ? options->batch_bytes : DEFAULT_BATCH_BYTES};
    status = status == BODHI_OK ? straight_open(&to, &p->straight) : status;
    if (status != BODHI_OK) {
        bodhi_push_abandon(p);
        return status;
    }
    *pusher = p;
    return BODHI_OK;
}

/* Whether a store is not to be written to by this process, but maybe by its server. */
static bool is_forbidden(int status) {
    return status == BODHI_ERROR_UNSAFE || status == BODHI_ERROR_NETWORK || status == BODHI_ERROR_NOT_FOUND ||
           status == BODHI_ERROR_SYSTEM || status == BODHI_ERROR_VERSION;
}

int bodhi_push_open_slices(const char *const *servers, int n, const char *dataset, const void *generation,
                           size_t generation_bytes, const bodhi_push_options *options,
                           const bodhi_slice_options *slices, bodhi_pusher **pusher) {
    bodhi_push_options chosen = options == NULL ? (bodhi_push_options){0} : *options;
    if (dataset == NULL || *dataset == '\0' || *dataset == '/' || slices == NULL || pusher == NULL ||
        slices->n_atoms < 1 || slices->n_atoms > UINT32_MAX || slices->rank < 0 || n < 0 ||
        (n == 0 && slices->store == NULL) || (generation == NULL && generation_bytes > 0)) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT,
                          "slices need a dataset's name, which begins with no '/', 1 to %u atoms, a rank from 0, and a "
                          "store or servers",
                          UINT32_MAX);
    }
    slices_of *names = malloc(sizeof *names);
    if (names == NULL) {
        return bodhi_fail_memory();
    }
    int status = name_slices(names, dataset, generation, generation_bytes, slices);
    bool open = false;
    if (status == BODHI_OK && slices->store != NULL) {
        status = open_straight(names, dataset, &chosen, slices, pusher);
        open = status == BODHI_OK || n == 0 || !is_forbidden(status);
        status = open ? status : BODHI_OK;
    }
    if (status == BODHI_OK && !open) {
        status = bodhi_push_open(servers, n, names->name, names->generation, names->generation_bytes, &chosen, pusher);
    }
    free(names);
    if (status == BODHI_OK) {
        (*pusher)->slices_of = slices->n_atoms;
    }
    return status;
}

/* --- Pushing ----------------------------------------------------------------------------------------------------- */

/* Put vectors in the order of the ids. */
static float *in_order(float *vectors, const id_order *order, float *out) {
    if (vectors == NULL || order->ascends) {
        return vectors;
    }
    id_order_rows(order, vectors, out);
    return out;
}

/* What of a slice is no number; NULL: nothing is. */
static const char *what_is_nan(const bodhi_frame *frame) {
    bool any = false;
    for (int64_t i = 0; i < 3 * frame->n_atoms; i++) {
        any |= isnan(frame->positions[i]);
    }
    return isnan(frame->time) ? "its time" : any ? "a position" : NULL;
}

int bodhi_push_slice(bodhi_pusher *pusher, const bodhi_frame *frame, const int64_t *ids) {
    if (pusher == NULL || pusher->slices_of == 0 || frame == NULL || frame->number < 0 ||
        frame->number > BODHI_MAX_NUMBER || frame->n_atoms < 0 || frame->n_atoms > pusher->slices_of ||
        (frame->n_atoms > 0 && (frame->positions == NULL || ids == NULL))) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT,
                          "a slice needs a pusher that was opened for slices, a number from 0 to %lld, and ids and "
                          "positions of as many atoms as a frame has, or fewer",
                          (long long)BODHI_MAX_NUMBER);
    }
    const char *nan = what_is_nan(frame);
    if (nan != NULL) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "the slice of frame %lld: %s is no number (NaN)",
                          (long long)frame->number, nan);
    }
    if (frame->n_atoms == 0) {
        return BODHI_OK; /* a rank without atoms adds nothing to the frame */
    }
    slice_scratch *s = &pusher->scratch;
    int64_t wrong;
    enum ids_order sorted = ids_sort(&s->order, ids, (size_t)frame->n_atoms, pusher->slices_of, &wrong);
    if (sorted == IDS_NO_MEMORY) {
        return bodhi_fail_memory();
    }
    if (sorted == IDS_WRONG) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT,
                          "atom %lld of the slice of frame %lld is there twice, or not one of 0 to %lld",
                          (long long)wrong, (long long)frame->number, (long long)pusher->slices_of - 1);
    }
    bodhi_frame slice = *frame;
    size_t n = (size_t)frame->n_atoms;
    if (!ARRAY_FIT(s->vectors, s->capacity, 9 * n)) {
        return bodhi_fail_memory();
    }
    slice.ids = s->order.sorted;
    slice.positions = in_order(frame->positions, &s->order, s->vectors);
    slice.velocities = in_order(frame->velocities, &s->order, s->vectors + 3 * n);
    slice.forces = in_order(frame->forces, &s->order, s->vectors + 6 * n);
    return pusher->straight != NULL ? straight_push(pusher->straight, &slice) : pusher_push(pusher, &slice);
}
