/* Frames in flight; see pusher.h. */
#include "net/pushing/pusher.h"

#include <stdlib.h>
#include <string.h>

#include "net/wire.h"
#include "segments/record.h"

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
    const void *fields[] = {frame->positions, frame->velocities, frame->forces, frame->ids};
    const size_t row[] = {12, 12, 12, sizeof *frame->ids};
    size_t n_atoms = (size_t)frame->n_atoms;
    size_t size = WIRE_FRAME_HEAD;
    for (int i = 0; i < FIELD_COUNT; i++) {
        size += fields[i] != NULL ? n_atoms * row[i] : 0;
    }
    slot *s = malloc(sizeof *s + WIRE_HEADER + size + MAC_BYTES);
    if (s == NULL) {
        return NULL;
    }
    unsigned char *body = s->message + WIRE_HEADER;
    unsigned char *at = body + WIRE_FRAME_HEAD;
    wire_write_frame(body, frame);
    for (int i = 0; i < FIELD_COUNT; i++) {
        if (fields[i] != NULL) {
            memcpy(at, fields[i], n_atoms * row[i]);
            at += n_atoms * row[i];
        }
    }
    wire_header(s->message, WIRE_FRAME, body, size);
    s->number = (uint64_t)frame->number;
    s->size = WIRE_HEADER + size;
    s->again = false;
    return s;
}
