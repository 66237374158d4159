/* Frames in flight; see pusher.h. */
#include "net/pushing/pusher.h"

#include <stdlib.h>

#include "net/wire.h"

/* --- Lists ------------------------------------------------------------------------------------------------------- */

void slots_append(slot_list *list, slot *s) {
    s->next = NULL;
    if (list->first == NULL) {
        list->first = s;
    } else {
        list->last->next = s;
    }
    list->last = s;
    list->n++;
}

slot *slots_take(slot_list *list) {
    slot *s = list->first;
    if (s != NULL) {
        list->first = s->next;
        list->n--;
    }
    return s;
}

slot *slots_take_number(slot_list *list, uint64_t number, const slot *end) {
    slot *before = NULL;
    slot *s = list->first;
    while (s != end && s->number != number) {
        before = s;
        s = s->next;
    }
    if (s == end || before == NULL) {
        return s == end ? NULL : slots_take(list);
    }
    before->next = s->next;
    list->last = list->last == s ? before : list->last;
    list->n--;
    return s;
}

void slots_free(slot_list *list) {
    slot *s;
    while ((s = slots_take(list)) != NULL) {
        free(s);
    }
}

/* --- Filling ----------------------------------------------------------------------------------------------------- */

slot *slots_make(const bodhi_frame *frame) {
    size_t size = wire_frame_bytes(frame);
    slot *s = malloc(sizeof *s + WIRE_HEADER + size + MAC_BYTES);
    if (s == NULL) {
        return NULL;
    }
    wire_write_frame(s->message + WIRE_HEADER, frame);
    wire_header(s->message, WIRE_FRAME, s->message + WIRE_HEADER, size);
    s->number = (uint64_t)frame->number;
    s->size = WIRE_HEADER + size;
    s->again = false;
    return s;
}
