/* Frames in flight: each is copied into a slot, which goes from list to list until it is acknowledged. */
#ifndef BODHI_SLOTS_H
#define BODHI_SLOTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bodhi.h"

typedef struct slot {
    struct slot *next;
    uint64_t number;
    size_t size;
    bool again;              /* it was given to a server before */
    unsigned char message[]; /* a FRAME: header and body, and room for a MAC */
} slot;

/* A list of slots in the order of their coming. */
typedef struct {
    slot *first, *last;
    int64_t n;
} slot_list;

void slots_append(slot_list *list, slot *s);

/* The first slot, taken off; NULL: there is none. */
slot *slots_take(slot_list *list);

/* The first slot with this frame, taken off; NULL: there is none. */
slot *slots_take_number(slot_list *list, uint64_t number);

/* A slot with a frame, to be freed; NULL: memory is out. */
slot *slots_make(const bodhi_frame *frame);

void slots_free(slot_list *list);

#endif
