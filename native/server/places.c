/* Where frames lie: the answer to a READ; see places.h. */
#include "server/places.h"

#include <stdlib.h>

#include "server/connection.h"
#include "store/dataset.h"

/* The descriptor of the place's segment among those that are open, opened if there is room; -1 if it cannot be. */
static int descriptor_of(const bodhi_dataset *dataset, const wire_place *at, uint64_t *segments, int *descriptors,
                         int *n_descriptors) {
    for (int i = *n_descriptors; i-- > 0;) {
        if (segments[i] == at->segment) {
            return i;
        }
    }
    const bodhi_place place_in = {.segment = at->segment, .kind = at->kind};
    int fd = *n_descriptors < WIRE_MAX_SEGMENTS ? dataset_share_segment(dataset, &place_in) : -1;
    if (fd < 0) {
        return -1;
    }
    segments[*n_descriptors] = at->segment;
    descriptors[*n_descriptors] = fd;
    return (*n_descriptors)++;
}

static wire_place place_of(const bodhi_dataset *dataset, int64_t number) {
    place copy;
    int kind = dataset_choose_copy(dataset, (uint64_t)number, &copy);
    return kind < 0 ? (wire_place){.descriptor = -1}
                    : (wire_place){.segment = dataset->segments[copy.segment]->key.segment,
                                   .offset = (uint64_t)copy.offset * UNIT,
                                   .length = (uint64_t)copy.length * UNIT,
                                   .descriptor = -1,
                                   .kind = (uint8_t)kind,
                                   .fields = copy.fields,
                                   .head = copy.head};
}

/* Where the frames lie, up to the first whose segment has no room among the descriptors; returns how many these are. */
static size_t find_places(bodhi_dataset *dataset, const int64_t *numbers, size_t n, wire_place *places,
                          int *descriptors, int *n_descriptors) {
    uint64_t segments[WIRE_MAX_SEGMENTS];
    bool room = true;
    size_t found = 0;
    *n_descriptors = 0;
    pthread_mutex_lock(&dataset->mutex);
    for (size_t i = 0; i < n && room; i++) {
        places[i] = place_of(dataset, numbers[i]);
        if (places[i].length > 0) {
            places[i].descriptor = descriptor_of(dataset, &places[i], segments, descriptors, n_descriptors);
        }
        room = places[i].descriptor >= 0 || places[i].length == 0 || *n_descriptors < WIRE_MAX_SEGMENTS;
        found += room;
    }
    pthread_mutex_unlock(&dataset->mutex);
    return found;
}

bool send_places(bodhi_server *server, connection *c, const int64_t *numbers, size_t n) {
    wire_place *places = malloc(n * sizeof *places);
    size_t at = c->n_out;
    unsigned char *body = places == NULL ? NULL : output_body(c, n * WIRE_PLACE_BYTES);
    if (body == NULL) {
        free(places);
        return output_error(c, BODHI_ERROR_MEMORY, "out of memory");
    }
    size_t found = find_places(c->dataset->dataset, numbers, n, places, c->descriptors, &c->n_descriptors);
    c->descriptors_at = at;
    for (size_t i = 0; i < found; i++) {
        wire_write_place(body + i * WIRE_PLACE_BYTES, &places[i]);
    }
    free(places);
    output_done(c, WIRE_PLACES, found * WIRE_PLACE_BYTES);
    server->counters[COUNT_READS]++;
    server->counters[COUNT_PLACES] += found;
    return true;
}
