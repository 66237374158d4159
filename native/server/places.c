/* Where frames lie: the answer to a READ; see places.h. */
#include "server/places.h"

#include <stdlib.h>

#include "server/connection.h"
#include "store/dataset.h"

/* The descriptor of the place's segment among those that are open, opened if there is room; -1 if it cannot be. */
static int descriptor_of(const open_dataset *d, const bodhi_place *at, uint64_t *segments, int *descriptors,
                         int capacity, int *n_descriptors) {
    for (int i = *n_descriptors; i-- > 0;) {
        if (segments[i] == at->segment) {
            return i;
        }
    }
    int fd = *n_descriptors < capacity ? dataset_share_segment(d->dataset, at) : -1;
    if (fd < 0) {
        return -1;
    }
    segments[*n_descriptors] = at->segment;
    descriptors[*n_descriptors] = fd;
    return (*n_descriptors)++;
}

/* Where the frames lie, with descriptors of up to `capacity` segments; what has no place has descriptor -1. */
static void find_places(const open_dataset *d, const int64_t *numbers, size_t n, wire_place *places, int *descriptors,
                        int capacity, int *n_descriptors) {
    uint64_t segments[WIRE_MAX_SEGMENTS];
    *n_descriptors = 0;
    for (size_t i = 0; i < n; i++) {
        bodhi_place at = {0};
        places[i] = (wire_place){.descriptor = -1};
        if (bodhi_dataset_locate(d->dataset, &numbers[i], 1, &at) == BODHI_OK && at.found != 0) {
            places[i] = (wire_place){
                .segment = at.segment,
                .offset = (uint64_t)at.offset,
                .length = (uint64_t)at.length,
                .kind = (uint32_t)at.kind,
                .descriptor = descriptor_of(d, &at, segments, descriptors, capacity, n_descriptors),
            };
        }
    }
}

bool send_places(bodhi_server *server, connection *c, const int64_t *numbers, size_t n) {
    wire_place *places = malloc(n * sizeof *places);
    size_t at = c->n_out;
    unsigned char *body = places == NULL ? NULL : output_body(c, n * WIRE_PLACE_BYTES);
    if (body == NULL) {
        free(places);
        return output_error(c, BODHI_ERROR_MEMORY, "out of memory");
    }
    find_places(c->dataset, numbers, n, places, c->descriptors, WIRE_MAX_SEGMENTS, &c->n_descriptors);
    c->descriptors_at = at;
    for (size_t i = 0; i < n; i++) {
        wire_write_place(body + i * WIRE_PLACE_BYTES, &places[i]);
    }
    free(places);
    output_done(c, WIRE_PLACES, n * WIRE_PLACE_BYTES);
    server->counters[COUNT_READS]++;
    server->counters[COUNT_PLACES] += n;
    return true;
}
