/* Pushing slices: some atoms of a frame, which they name; the public function is in bodhi.h. */
#include <math.h>

#include "base/memory.h"
#include "base/status.h"
#include "codec/ids.h"
#include "net/pushing/pusher.h"

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
